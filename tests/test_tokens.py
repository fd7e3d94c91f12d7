"""Text to tokens and back: no forged control tokens, no lost text, no seams in long text."""

import json
import re
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

import mlxchat.text.encoder as encoder_module
from mlxchat.errors import InputError
from mlxchat.text.reply_reader import StreamDecoder
from mlxchat.text.template import ChatTemplate
from mlxchat.text.tokens import Tokenizer
from scripts.tiny_model import CHAT_TEMPLATE, CONTROL_TOKENS, THINK_TOKENS, byte_tokenizer
from tests.conftest import examples

ENGLISH = (
    "It was the best of times, it was the worst of times;\n\n  indented 1234 lines,\n"
    "\tdon't and   spaces. Ünïcödé ∑ 漢字 🙂!\r\nelse {\n    x = [1, 2];\n}\n"
)


def trained_byte_level(texts: list[str], vocabulary: int = 400) -> tokenizers.Tokenizer:
    """Byte-level BPE as in GPT-2, Llama 3, Qwen and SmolLM."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def llama_decoder() -> Any:
    replace = decoders.Replace("▁", " ")
    return decoders.Sequence(
        [replace, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )


def trained_sentencepiece() -> tokenizers.Tokenizer:
    """BPE with ▁ for spaces, a leading one, and byte fallback, as in Llama 2."""
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = llama_decoder()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<unk>", "<s>", "</s>", *CONTROL_TOKENS, *byte_pieces],
        show_progress=False,
    )
    tokenizer.train_from_iterator(re.findall(r"\S+|\s", ENGLISH.replace("\n", "")), trainer)
    # The trainer wrongly flags the bytes as special.
    parts = json.loads(tokenizer.to_str())
    parts["added_tokens"] = [
        token for token in parts["added_tokens"] if token["content"] not in byte_pieces
    ]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(parts))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


BACKENDS = {
    "bytes": byte_tokenizer(),
    "byte level": trained_byte_level([ENGLISH] * 3),
    "sentencepiece": trained_sentencepiece(),
}
TEMPLATE = ChatTemplate(CHAT_TEMPLATE, {})


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> tokenizers.Tokenizer:
    return BACKENDS[request.param]


def make_tokenizer(backend: tokenizers.Tokenizer) -> Tokenizer:
    eos_id = backend.token_to_id("<|im_end|>")
    assert eos_id is not None
    return Tokenizer(backend, TEMPLATE, [eos_id])


def plain_ids(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    return backend.encode(text, add_special_tokens=False).ids


def test_a_harmless_prompt_is_tokenized_like_the_rendered_template(
    backend: tokenizers.Tokenizer,
) -> None:
    rendered = TEMPLATE.render(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ENGLISH}]
    )
    prompt = make_tokenizer(backend).prompt(ENGLISH, "Be brief.")
    assert prompt.ids.tolist() == plain_ids(backend, rendered)
    assert prompt.notices == ()


hostile_piece = st.sampled_from(
    [*CONTROL_TOKENS, *THINK_TOKENS, "<|im_start|>system\n", "<|im_", "start|>", "<", "\ufdd0"]
)


@settings(max_examples=examples(50))
@given(st.lists(st.one_of(hostile_piece, st.text(max_size=4)), max_size=12).map("".join))
def test_no_text_becomes_a_control_token_and_none_is_lost(text: str) -> None:
    for backend in BACKENDS.values():
        tokenizer = make_tokenizer(backend)
        control = {id_: token.content for id_, token in backend.get_added_tokens_decoder().items()}
        forbidden = [id_ for id_, content in control.items() if content in CONTROL_TOKENS]
        assert not np.isin(tokenizer.encode(text), forbidden).any()
        harmless = tokenizer.prompt("")
        hostile = tokenizer.prompt(text, system=None)
        count = np.isin(harmless.ids, forbidden).sum()
        assert np.isin(hostile.ids, forbidden).sum() == count
    tokenizer = make_tokenizer(BACKENDS["byte level"])
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tokens_in_the_template_are_control_tokens_even_if_not_flagged() -> None:
    backend = byte_tokenizer()
    template = ChatTemplate(CHAT_TEMPLATE + "{{ '<think>' }}", {})
    ids = Tokenizer(backend, template).prompt("a <think> b").ids
    assert (ids == backend.token_to_id("<think>")).sum() == 1


def test_added_tokens_that_are_not_control_tokens_are_used() -> None:
    backend = byte_tokenizer()
    backend.add_tokens([AddedToken("    ", special=False), AddedToken("<table>", special=False)])
    ids = make_tokenizer(backend).encode("<table>    x").tolist()
    assert ids == [backend.token_to_id("<table>"), backend.token_to_id("    "), ord("x")]


def test_look_alikes_that_normalize_to_a_control_token_are_refused() -> None:
    backend = byte_tokenizer()
    backend.normalizer = normalizers.NFKC()
    backend.add_special_tokens([AddedToken("<go>", special=True, normalized=True)])
    with pytest.raises(InputError, match="look-alike"):
        make_tokenizer(backend).prompt("\uff1cgo\uff1e")


@pytest.mark.parametrize("chunk_chars", [40, 64, 200])
def test_long_text_in_chunks_gets_the_same_tokens_as_in_one_piece(
    backend: tokenizers.Tokenizer, chunk_chars: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"line {n} of some text, with words;\nand more\n" for n in range(60))
    monkeypatch.setattr(encoder_module, "CHUNK_CHARS", chunk_chars)
    calls: list[tuple[int, int]] = []
    ids = make_tokenizer(backend).encode(text, lambda done, total: calls.append((done, total)))
    assert ids.tolist() == plain_ids(backend, text)
    assert len(calls) > len(text) / chunk_chars / 2
    assert calls[-1] == (len(text), len(text))


def test_long_text_without_lines_or_words_is_cut_without_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoder_module, "CHUNK_CHARS", 100)
    tokenizer = make_tokenizer(BACKENDS["byte level"])
    text = "漢字=" * 500
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=200)
@given(st.lists(st.integers(0, 599), max_size=40), st.sampled_from(sorted(BACKENDS)))
@example([129, 0, 0, 296], "byte level")
@example([129, 296, 97, 127], "byte level")
def test_streamed_text_equals_the_text_decoded_at_once(ids: list[int], name: str) -> None:
    """A character came out as replacement characters if it contained control tokens, or if invalid
    bytes followed within three tokens."""
    backend = BACKENDS[name]
    ids = [id_ % backend.get_vocab_size() for id_ in ids]
    tokenizer = make_tokenizer(backend)
    whole = tokenizer.decode(ids)
    decoder = StreamDecoder(tokenizer._decoder)
    pieces = [decoder.add(id_) for id_ in ids] + [decoder.finish()]
    streamed = "".join(pieces)
    if "\ufffd" in whole and name == "sentencepiece":
        # If one byte token is invalid, its decoder discards the whole run, even if already shown.
        assert len(streamed) >= len(whole.replace("\ufffd", ""))
    elif "\ufffd" in whole:
        # The number of replacement characters for invalid bytes depends on how they are grouped.
        assert re.sub("\ufffd+", "\ufffd", streamed) == re.sub("\ufffd+", "\ufffd", whole)
    else:
        assert streamed == whole


@settings(max_examples=100)
@given(st.text(max_size=30))
def test_streaming_never_shows_part_of_a_character(text: str) -> None:
    tokenizer = make_tokenizer(BACKENDS["bytes"])
    decoder = StreamDecoder(tokenizer._decoder)
    pieces = [decoder.add(id_) for id_ in tokenizer.encode(text)]
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text
    assert "".join(pieces) + decoder.finish() == text


def test_a_run_of_control_tokens_costs_the_same_for_every_token() -> None:
    tokenizer = make_tokenizer(BACKENDS["bytes"])
    decoder = StreamDecoder(tokenizer._decoder)
    for _ in range(1000):
        assert decoder.add(257) == ""
    assert len(decoder._pending) + len(decoder._shown) < 20


def test_raw_text_follows_only_the_beginning_token() -> None:
    backend = BACKENDS["sentencepiece"]
    prompt = make_tokenizer(backend).raw_prompt("the best of times")
    assert prompt.ids.tolist() == backend.encode("the best of times").ids
    assert prompt.ids[0] == 1


def test_without_a_system_role_the_system_text_precedes_the_prompt() -> None:
    refusing = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{{ messages[0]['content'] | trim }}"
    )
    tokenizer = Tokenizer(byte_tokenizer(), ChatTemplate(refusing, {}))
    prompt = tokenizer.prompt("Hello", system="Be brief.")
    assert tokenizer.decode(prompt.ids) == "Be brief.\n\nHello"
    assert "does not accept this system prompt" in prompt.notices[0]
