"""Importing GGUF files: the numbers, the tokens, the errors, and the files left on the disk."""

import io
import json
import os
import resource
import struct
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import Any

import mlxchat  # noqa: F401  first, so that OpenBLAS and mlx-lm's modules are prepared

# isort: split

import mlx.core as mx
import numpy as np
import pytest
import sentencepiece
import tokenizers
from gguf import GGMLQuantizationType as Kind
from gguf import TokenType
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxchat.errors import MlxchatError, ModelBroken, ModelError, ModelUnsupported
from mlxchat.models.gguf import PARTIAL, WAITING, import_gguf, weights
from mlxchat.models.load import load_directory
from mlxchat.models.skeleton import build_skeleton, named_parameters, read_config
from tests.conftest import examples
from tests.gguf_files import CHAT_TEMPLATE, CONTROL, TinyGguf, reference_logits, tiny_gguf

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")


def load(directory: Path) -> Any:
    """The network, its weights dequantized to float32."""
    return load_directory(directory, "tiny", dtype="float32", notify=print).network


def load_tokenizer(directory: Path) -> tokenizers.Tokenizer:
    """The directory's tokenizer, set to encode text without control tokens."""
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return tokenizer


def import_tiny(tiny: TinyGguf, tmp_path: Path) -> Path:
    return import_gguf(tiny.write(tmp_path / "tiny.gguf"), tmp_path / "models", print)


# Numbers


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
    "kind",
    [Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q8_0],
    ids=lambda kind: kind.name,
)
def test_logits_match_the_dense_weights(
    arch: str, kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(weights, "CHUNK_VALUES", 200)  # a few rows
    tiny = tiny_gguf(arch, kind)
    tokens = mx.array(np.random.default_rng(1).integers(0, 250, (1, 20)))
    logits = np.array(load(import_tiny(tiny, tmp_path))(tokens))
    expected = reference_logits(tiny, tokens)
    np.testing.assert_allclose(logits, expected, atol=1e-4 * np.abs(expected).max())


def mixed_kinds(name: str) -> Kind:
    """A mix of kinds as in a Q4_K_M file, one for each module."""
    kinds = {"embed": Kind.Q6_K, "q_proj": Kind.Q4_K, "k_proj": Kind.Q5_K, "v_proj": Kind.Q6_K}
    return next((kind for part, kind in kinds.items() if part in name), Kind.Q5_0)


def test_other_kinds_are_accurate_to_a_step_of_8_bits(tmp_path: Path):
    """Q4_K is not requantized: its only error is from rounding scales to float16."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 1}
    tiny = tiny_gguf("llama", mixed_kinds, **sizes)
    directory = import_tiny(tiny, tmp_path)
    for name, values in named_parameters(load(directory)):
        if values.ndim == 1:
            continue
        expected = tiny.weights[name].reshape(-1, 32)
        error = np.abs(np.array(values).reshape(-1, 32) - expected).max(axis=1)
        largest = np.abs(expected).max(axis=1)
        step = np.ptp(expected, axis=1) / (1024 if mixed_kinds(name) == Kind.Q4_K else 127)
        assert (error <= step + largest / 1024).all(), (name, mixed_kinds(name).name)
    quantization = read_config(directory)["quantization"]
    assert quantization["bits"] == 8
    assert quantization["model.layers.0.self_attn.q_proj"]["bits"] == 4
    assert "model.layers.0.self_attn.v_proj" not in quantization


# Configuration


LINEAR = {"rope_type": "linear", "type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
WINDOWS = {"sliding_window_pattern": 3, "rope_local_base_freq": 20_000.0}
CONFIGURED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *((arch, {}, {}) for arch in ARCHITECTURES),
    ("llama", {"rope_scaling": LINEAR}, {"rope.scaling.factor": 4.0}),
    (
        *("qwen3", {"rope_scaling": YARN}),
        {f"rope.scaling.{k}": YARN[k] for k in ("type", "factor")}
        | {"rope.scaling.original_context_length": 64},
    ),
    (
        *("gemma3", WINDOWS),
        {"attention.sliding_window_pattern": [True, True, False] * 2, "rope.freq_base_swa": 2e4},
    ),
]


@pytest.mark.parametrize(("arch", "changes", "metadata"), CONFIGURED)
def test_the_original_configuration_is_recovered(
    arch: str, changes: dict[str, Any], metadata: dict[str, Any], tmp_path: Path
):
    tiny = tiny_gguf(arch, **changes)
    tiny.metadata |= {f"{arch}.{key}": value for key, value in metadata.items()}
    config = read_config(import_tiny(tiny, tmp_path))
    assert {key: config[key] for key in tiny.config} == tiny.config
    assert config["torch_dtype"] == "float32"
    assert config["mlxchat"] == str(tmp_path / "tiny.gguf")


def test_llama_3_scaling_is_recovered_from_its_table(tmp_path: Path):
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    tiny = tiny_gguf("llama", rope_scaling=scaling, rope_theta=500_000.0)
    network: Any = build_skeleton(tiny.config)
    rope = network.layers[0].self_attn.rope
    unscaled = np.float32(500_000) ** (np.arange(0, 16, 2).astype(np.float32) / 16)
    tiny.tensors["rope_freqs.weight"] = (np.array(rope._freqs) / unscaled).round(5), Kind.F32
    assert read_config(import_tiny(tiny, tmp_path))["rope_scaling"] == scaling


# Tokens


def test_token_ids_sampling_and_the_template_are_carried_over(tmp_path: Path):
    """A GGUF file's own recommendation was dropped, and a chat with it was greedy."""
    tiny = tiny_gguf("qwen2")
    tokens = tiny.metadata["tokenizer.ggml.tokens"]
    tiny.metadata |= {
        "tokenizer.ggml.eot_token_id": tokens.index("<|im_start|>"),
        "general.sampling.temp": 1.0,
        "general.sampling.top_p": 0.95,
        "general.sampling.min_p": "low",
    }
    directory = import_tiny(tiny, tmp_path)
    begin, end, text = (tokens.index(f"<|{x}|>") for x in ("im_start", "im_end", "endoftext"))
    generation = json.loads((directory / "generation_config.json").read_text())
    ids = {"bos_token_id": begin, "eos_token_id": [end, begin, text]}
    assert generation == ids | {"temperature": 1.0, "top_p": 0.95}
    config = json.loads((directory / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    assert config["add_bos_token"] is False
    assert config["chat_template"] == CHAT_TEMPLATE


PIECES = {
    "smollm": "I|'ll| pay| |1|2|3|4|€| | now|\n|\n|OK",
    "gpt-2": "I|'ll| pay| 1234|€| | now|\n|\n|OK",
    "llama-bpe": "I|'ll| pay| |123|4|€| | now|\n\n|OK",
    "qwen2": "I|'ll| pay| |1|2|3|4|€| | now|\n\n|OK",
    "tekken": "I|'ll| pay| |1|2|3|4|€| | now|\n\n|OK",
}


@pytest.mark.parametrize("name", PIECES)
def test_text_is_split_as_in_training(name: str, tmp_path: Path):
    """And a word that is a token becomes it before any merge, like Llama 3's: none leads to it."""
    tiny = tiny_gguf("llama")
    tokens = tiny.metadata["tokenizer.ggml.tokens"]
    tokens[tokens.index("hell")] = "zq"
    tiny.metadata |= {"tokenizer.ggml.merges": ["h e"], "tokenizer.ggml.pre": name}
    tokenizer = load_tokenizer(import_tiny(tiny, tmp_path))
    assert tokenizer.pre_tokenizer is not None
    assert tokenizer.decoder is not None
    split = tokenizer.pre_tokenizer.pre_tokenize_str("I'll pay 1234€  now\n\nOK")
    assert [tokenizer.decoder.decode([piece]) for piece, _ in split] == PIECES[name].split("|")
    expected = ["<|im_start|>", "zq"] if name in ("llama-bpe", "tekken") else ["z", "q"]
    assert tokenizer.encode("zq").tokens == expected


def sentencepiece_tiny(arch: str, **training: Any) -> tuple[TinyGguf, Any]:
    """A tiny file with a freshly trained SentencePiece vocabulary, and that model."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(Path(__file__).read_text().split("\n") * 2),
        model_writer=written,
        model_type="bpe",
        vocab_size=600,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
        **training,
    )
    pieces: Any = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    ids = range(len(pieces))
    user_defined = training.get("user_defined_symbols", [])
    tokens = [pieces.IdToPiece(index) for index in ids]
    kinds = {
        **{index: TokenType.USER_DEFINED for index in ids if tokens[index] in user_defined},
        **{index: TokenType.BYTE for index in ids if pieces.IsByte(index)},
        **{index: TokenType.CONTROL for index in ids if pieces.IsControl(index)},
        pieces.unk_id(): TokenType.UNKNOWN,
    }
    tiny = tiny_gguf(arch, vocab_size=len(pieces))
    others = {k: value for k, value in tiny.metadata.items() if not k.startswith("tokenizer.")}
    tiny.metadata = others | {
        "tokenizer.ggml.model": "llama",
        # llama.cpp writes user-defined tokens with plain spaces.
        "tokenizer.ggml.tokens": [
            each.replace("▁", " ") if each in user_defined else each for each in tokens
        ],
        "tokenizer.ggml.scores": [pieces.GetScore(index) for index in ids],
        "tokenizer.ggml.token_type": [int(kinds.get(each, TokenType.NORMAL)) for each in ids],
    }
    return tiny, pieces


TRICKY = (
    *("  two spaces  ", "tabs\tand\n\nnewlines\r\n", "naïve café, 東京 🦙🦙 \u200d‍"),
    *("<s></s><unk><0x41> <|im_start|>", "a\u0301 e\u0301 \ufeff \x00 end"),
)


@pytest.mark.parametrize("prefixed", [True, False])
def test_tokens_match_sentencepiece(prefixed: bool, tmp_path: Path):
    training: dict[str, Any] = {"add_dummy_prefix": prefixed}
    if not prefixed:  # as in Gemma, which has tokens for runs of spaces and newlines
        training["user_defined_symbols"] = ["▁▁", "▁▁▁▁", "\n\n"]
    tiny, pieces = sentencepiece_tiny("llama" if prefixed else "gemma3", **training)
    if not prefixed:
        tiny.metadata["tokenizer.ggml.add_space_prefix"] = False
    tokenizer = load_tokenizer(import_tiny(tiny, tmp_path))

    @settings(max_examples=examples(60))
    @given(st.one_of(st.sampled_from(TRICKY), st.text(), st.text("aest \n<>_(x", max_size=40)))
    def check(text: str) -> None:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        assert encoding.ids == pieces.Encode(text), encoding.tokens
        if "▁" not in text:
            assert tokenizer.decode(encoding.ids, skip_special_tokens=False) == text

    check()
    assert tokenizer.encode("test").ids[0] == pieces.bos_id()


def test_neither_merges_nor_scores_turn_plain_text_into_a_control_token(tmp_path: Path):
    tiny = tiny_gguf("llama")
    tokens = tiny.metadata["tokenizer.ggml.tokens"]
    kinds = tiny.metadata["tokenizer.ggml.token_type"]
    kinds[tokens.index("hello")] = int(TokenType.CONTROL)
    tokenizer = load_tokenizer(import_tiny(tiny, tmp_path))
    assert tokenizer.encode("hello").tokens == ["hell", "o"]
    for text in CONTROL:
        assert all(kinds[index] != TokenType.CONTROL for index in tokenizer.encode(text).ids)
    assert tokenizer.encode("a<think>b").tokens == ["a", "<think>", "b"]

    tiny, pieces = sentencepiece_tiny("llama")
    word = next(i for i in pieces.Encode("return return") if len(pieces.IdToPiece(i)) > 2)
    tiny.metadata["tokenizer.ggml.token_type"][word] = int(TokenType.CONTROL)
    tokenizer = load_tokenizer(import_tiny(tiny, tmp_path))
    assert word not in tokenizer.encode("return return").ids
    assert tokenizer.decode(tokenizer.encode("return return").ids) == "return return"


# Errors


def put(metadata: dict[str, Any]) -> Callable[[TinyGguf], object]:
    return lambda tiny: tiny.metadata.update(metadata)


def store(name: str, array: np.ndarray, kind: Kind = Kind.F32) -> Callable[[TinyGguf], object]:
    return lambda tiny: tiny.tensors.update({f"{name}.weight": (array, kind)})


REFUSED: dict[str, Callable[[TinyGguf], object]] = {
    "architecture 'falcon'; supported: gemma3, llama, qwen2, qwen3": put(
        {"general.architecture": "falcon"}
    ),
    "expert_count 8": put({"llama.expert_count": 8}),
    "RoPE scaling 'longrope'": put(
        {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 4.0}
    ),
    "not Llama 3's": store("rope_freqs", np.arange(1, 9, dtype=np.float32)),
    "tensor 'blk.0.ffn_gate_inp.weight'": store("blk.0.ffn_gate_inp", np.zeros((4, 64), "f4")),
    "pre-tokenizer 'viking'": put({"tokenizer.ggml.pre": "viking"}),
    "tensor 'blk.1.ffn_up.weight' is missing": lambda tiny: tiny.tensors.pop("blk.1.ffn_up.weight"),
    "'blk.1.ffn_up.weight' has shape (96, 32)": store("blk.1.ffn_up", np.zeros((96, 32), "f4")),
    "'blk.1.attn_q.weight' contains infinite or NaN values": store(
        "blk.1.attn_q", np.full((64, 68), 0x7E, np.uint8), Kind.Q8_0
    ),
}

BAD_FILES = {
    "run git lfs pull in": b"version https://git-lfs.github.com/spec/v1\n",
    "big-endian": b"GGUF" + struct.pack(">I", 3),
    "a list of": b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 8, 2**50),
}


@pytest.mark.parametrize("message", [*REFUSED, *BAD_FILES])
def test_what_cannot_be_converted_is_named_in_one_line(message: str, tmp_path: Path):
    path, models = tmp_path / "tiny.gguf", tmp_path / "models"
    if message in BAD_FILES:
        path.write_bytes(BAD_FILES[message])
    else:
        tiny = tiny_gguf("llama")
        REFUSED[message](tiny)
        tiny.write(path)
    with pytest.raises((ModelBroken, ModelUnsupported)) as refused:
        import_gguf(path, models, print)
    assert message in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list(models.glob("*")) == []


def test_a_file_that_is_cut_is_refused_and_one_with_a_wrong_byte_at_most(tmp_path: Path):
    path = tmp_path / "tiny.gguf"  # of about 40 kB, a fifth of it header
    whole = tiny_gguf("llama", Kind.Q4_0, num_hidden_layers=1).write(path).read_bytes()
    header_ends = whole.index(b"output_norm.weight") + 60
    last_tensor_ends = len(whole) - 31  # without the padding after it

    @settings(max_examples=examples(50))
    @given(st.floats(0, 1, exclude_max=True), st.integers(1, 255))
    def check(share: float, flipped: int) -> None:
        path.write_bytes(whole[: int(share * last_tensor_ends)])
        with pytest.raises(ModelBroken):
            import_gguf(path, tmp_path / "out", print)
        damaged = bytearray(whole)
        damaged[int(share * header_ends)] ^= flipped
        path.write_bytes(damaged)
        with suppress(MlxchatError):
            import_gguf(path, tmp_path / "out", print)

    check()


# On the disk


def test_a_file_is_converted_once_and_again_only_when_it_changes(tmp_path: Path):
    """And another process that needs it meanwhile waits for it, and says so."""
    path, models = tiny_gguf("llama").write(tmp_path / "tiny.gguf"), tmp_path / "models"
    killed = models / f"{PARTIAL}other-123"
    killed.mkdir(parents=True)
    (killed / "config.json").touch()
    notices, waited, others = list[str](), Queue[str](), list[Future[Path]]()

    def on_notice(text: str) -> None:
        notices.append(text)
        others.append(pool.submit(import_gguf, path, models, waited.put))
        assert waited.get(timeout=60) == WAITING

    with ThreadPoolExecutor() as pool:
        first = import_gguf(path, models, on_notice)
    assert (others[0].result(), waited.empty()) == (first, True)
    assert list(models.iterdir()) == [first]
    assert import_gguf(path, models, notices.append) == first
    assert notices == [f"converting tiny.gguf once, into {first}"]
    os.utime(path, ns=(1, 1))
    assert import_gguf(path, models, notices.append) != first
    assert len(notices) == 2


def test_a_failed_write_or_a_file_that_changes_meanwhile_leaves_nothing(tmp_path: Path):
    path, models = tiny_gguf("llama").write(tmp_path / "tiny.gguf"), tmp_path / "models"
    with pytest.raises(ModelBroken, match="changed while"):
        import_gguf(path, models, lambda _: os.utime(path, ns=(1, 1)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(ModelError, match=r"^cannot store a converted model in [^\n]*$"):
            import_gguf(path, models, print)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(models.iterdir()) == []
