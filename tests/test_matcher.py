"""The state of one constrained answer, on vocabularies of several kinds."""

import json
import random
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.constrained import MAX_FORCED, Matcher, Vocabulary, apply_mask
from mlxchat.errors import ConstraintError, ModelUnsupported
from mlxchat.models.tokenizer_files import load_tokenizer
from mlxchat.text.tokens import Tokenizer
from scripts.tiny_model import byte_tokenizer
from tests.constrained import Walker
from tests.test_tokens import llama_decoder

PERSON = Constraint.from_schema("name, age int")


def byte_level(merges: tuple[tuple[str, str], ...] = (), ends: tuple[str, ...] = ()) -> Tokenizer:
    """Bytes, and the merges of some."""
    backend = byte_tokenizer()
    vocabulary = backend.get_vocab(with_added_tokens=False)
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    merged = tokenizers.Tokenizer(models.BPE(vocabulary, list(merges)))
    merged.pre_tokenizer, merged.decoder = backend.pre_tokenizer, backend.decoder
    special = ["<|endoftext|>", "<|im_end|>"]
    merged.add_special_tokens([AddedToken(text, special=True) for text in special])
    merged.add_tokens([AddedToken("<think>", special=False), AddedToken("</think>", special=False)])
    ids = [merged.token_to_id(text) for text in ends]
    return Tokenizer(merged, None, [id_ for id_ in ids if id_ is not None])


@pytest.fixture
def tokenizer() -> Tokenizer:
    return byte_level(ends=("<|im_end|>",))


@pytest.fixture
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer)


def allowed(matcher: Matcher) -> set[int]:
    return set(np.flatnonzero(matcher.mask()).tolist())


def feed(matcher: Matcher, text: str) -> Matcher:
    for byte in text.encode():
        matcher.accept(byte)
    return matcher


def test_the_mask_allows_what_may_come_next(vocabulary: Vocabulary) -> None:
    matcher = Matcher(vocabulary, Constraint.from_regex("ab?"))
    (end,) = vocabulary.ends
    assert matcher.mask().dtype == bool
    assert matcher.mask().shape == (vocabulary.size,)
    assert allowed(matcher) == {ord("a")}
    assert not matcher.may_end
    matcher.accept(ord("a"))
    assert allowed(matcher) == {ord("b"), end}
    assert (matcher.may_end, matcher.is_complete) == (True, False)
    matcher.accept(ord("b"))
    assert allowed(matcher) == {end}
    assert (matcher.may_end, matcher.is_complete) == (True, True)
    matcher.accept(end)
    assert matcher.is_complete


def test_a_token_that_is_not_allowed_raises_and_keeps_raising(vocabulary: Vocabulary) -> None:
    """llguidance's mask allows the end once a token has failed, as if the answer were complete."""
    matcher = Matcher(vocabulary, PERSON)
    with pytest.raises(ConstraintError, match="--schema: "):
        matcher.accept(ord("x"))
    for act in (
        matcher.mask,
        matcher.forced,
        lambda: matcher.accepts([1]),
        lambda: matcher.accept(1),
    ):
        with pytest.raises(ConstraintError):
            act()
    assert not matcher.may_end
    assert not matcher.is_complete


def test_a_constraint_that_becomes_too_complex_raises(vocabulary: Vocabulary) -> None:
    """llguidance's mask would allow only the end."""
    wide = Constraint.from_regex("(.*a.{600}|.*b.{599}c.{400}){2,9}")
    matcher = Matcher(vocabulary, wide)
    rng = random.Random(0)

    def write() -> None:
        for _ in range(20_000):
            assert len(allowed(matcher)) > 1
            matcher.accept(ord(rng.choice("abc")))

    with pytest.raises(ConstraintError, match="--regex: too large or too complex to enforce"):
        write()


def test_forced_tokens_spell_what_the_text_must_be(
    tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    matcher = Matcher(vocabulary, PERSON)
    assert tokenizer.decode(matcher.forced()) == '{"name": "'
    feed(matcher, '{"name": "Ada"')
    assert tokenizer.decode(matcher.forced()) == ', "age": '
    feed(matcher, ', "age": 3')
    assert matcher.forced() == []
    feed(matcher, "}")
    assert matcher.forced() == []
    assert len(Matcher(vocabulary, Constraint.from_regex("x{500}")).forced()) == MAX_FORCED
    assert Matcher(vocabulary, Constraint.from_regex("x{500}")).forced(3) == [ord("x")] * 3


@pytest.mark.model
def test_forced_tokens_are_accepted_in_every_state(walker: Walker) -> None:
    """A last token that may also begin a longer one is not forced."""
    rng = random.Random(3)
    schema = {
        "type": "object",
        "properties": {
            "kind": {"enum": ["alpha", "alphabet", "beta"]},
            "list": {"type": "array", "items": {"const": "same"}, "minItems": 2, "maxItems": 3},
            "text": {"type": "string", "pattern": "^https://[a-z]{2,5}$"},
        },
        "required": ["kind", "list", "text"],
    }
    constraint = Constraint.from_schema(schema)
    drafted = 0
    for _ in range(20):
        answer = walker.answer(constraint, rng)
        json.loads(answer)
        matcher = Matcher(walker.vocabulary, constraint)
        ids = walker.tokenizer.encode(answer, begins=False).tolist()
        for number, id_ in enumerate(ids):
            forced = matcher.forced()
            drafted += len(forced)
            assert matcher.accepts(forced) == len(forced)
            text = Matcher(walker.vocabulary, constraint)
            for before in ids[:number]:
                text.accept(before)
            for each in forced:
                # No other first byte is possible.
                beginnings = {walker.bytes[other][:1] for other in allowed(text)}
                assert beginnings == {walker.bytes[each][:1]}
                text.accept(each)
            matcher.accept(id_)
        assert matcher.is_complete
    assert drafted > 100


@pytest.fixture
def walker(embedded_model: Path) -> Walker:
    config = json.loads((embedded_model / "config.json").read_text())
    return Walker(load_tokenizer(embedded_model, config))


def test_control_tokens_and_markers_are_never_text() -> None:
    """The text of `<think>` is allowed in a string, but not as the token that opens a thought."""
    backend = byte_tokenizer()
    vocabulary = Vocabulary(Tokenizer(backend, None, [258]))
    matcher = Matcher(vocabulary, Constraint.from_regex("(?s).*"))
    named = {backend.token_to_id(text) for text in ("<|im_start|>", "<think>", "</think>")}
    assert not allowed(matcher) & named
    assert matcher.accepts(list(b"<think><|im_start|>")) == 19


def test_a_model_without_an_end_token_still_has_complete_answers() -> None:
    """llguidance adds an end token after the last one, which no network produces."""
    vocabulary = Vocabulary(byte_level())
    assert vocabulary.ends == ()
    matcher = feed(Matcher(vocabulary, Constraint.from_choices(["a", "ab"])), "a")
    assert (matcher.may_end, matcher.is_complete) == (True, False)
    assert allowed(matcher) == {ord("b")}
    feed(matcher, "b")
    assert matcher.is_complete
    assert allowed(matcher) == set()


def test_half_a_character_cannot_end_an_answer(vocabulary: Vocabulary) -> None:
    matcher = Matcher(vocabulary, Constraint.from_regex("[é😀]*"))
    for byte in "😀é".encode()[:-1]:
        matcher.accept(byte)
        assert matcher.may_end == (byte == "😀".encode()[-1])
    assert allowed(matcher) == {"é".encode()[-1]}


def sentencepiece(decoder: Any, tokens: tuple[str, ...] = ()) -> tokenizers.Tokenizer:
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *tokens]
    vocabulary = {text: number for number, text in enumerate(texts)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True)
    )
    backend.decoder = decoder
    backend.add_special_tokens([AddedToken(text, special=True) for text in texts[:3]])
    return backend


@pytest.mark.parametrize("decoder", [llama_decoder(), decoders.Metaspace()])
def test_the_tokens_of_sentencepiece(decoder: Any) -> None:
    tokens = ("▁", "▁a", "a", "▁▁", "é", "▁é")
    backend = sentencepiece(decoder, tokens)
    found = Tokenizer(backend, None, [2]).token_bytes()
    assert found[:3] == [b"<unk>", b"<s>", b"</s>"]
    assert found[-6:] == [b" ", b" a", b"a", b"  ", "é".encode(), " é".encode()]
    has_bytes = not isinstance(decoder, decoders.Metaspace)
    assert found[3 + 0xE9] == (b"\xe9" if has_bytes else b"<0xE9>")


def test_a_vocabulary_of_another_kind_is_refused_by_name() -> None:
    backend = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}))
    for decoder, name in ((decoders.WordPiece(), "WordPiece"), (None, "none")):
        backend.decoder = decoder  # type: ignore
        with pytest.raises(ModelUnsupported, match=rf"unknown decoder \({name}\)"):
            Vocabulary(Tokenizer(backend))


def masked(logits: list[float], mask: list[bool]) -> list[Any]:
    return np.array(apply_mask(mx.array([logits]), np.array(mask)))[0].tolist()


def test_a_mask_leaves_allowed_logits_and_removes_the_rest_even_if_invalid() -> None:
    row = masked([0.0, 1.0, 2.0, 3.0], [True, False, True])
    assert row == [0.0, -np.inf, 2.0, -np.inf]
    assert masked([np.nan, np.inf, 1.0], [False, False, True, True]) == [-np.inf, -np.inf, 1.0]


@pytest.mark.parametrize("text", ["ﬁne ﬁne ﬁne", "＜|im_end|＞", "Å Å"])
def test_forced_text_that_the_tokenizer_normalizes_is_not_drafted_wrongly(text: str) -> None:
    """Its tokens spell other text, which llguidance must not be led to believe."""
    backend = byte_tokenizer()
    backend.normalizer = normalizers.NFKC()
    vocabulary = Vocabulary(Tokenizer(backend, None, [258]))
    matcher = Matcher(vocabulary, Constraint.from_choices([text]))
    forced = matcher.forced()
    assert matcher.accepts(forced) == len(forced)
    assert not set(forced) & {256, 257, 258}
    feed(matcher, text)
    assert matcher.is_complete
