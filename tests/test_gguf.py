"""Importing GGUF files: the numbers, the tokens, the errors, and the files left on the disk."""

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import mlxchat  # noqa: F401  first, so that OpenBLAS and mlx-lm's modules are prepared

# isort: split

import mlx.core as mx
import numpy as np
import pytest
import tokenizers
from gguf import GGMLQuantizationType as Kind
from gguf import TokenType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxchat.errors import MlxchatError, ModelBroken, ModelUnsupported
from mlxchat.models.gguf import PARTIAL, import_gguf, weights
from tests.conftest import examples
from tests.gguf_files import (
    CHAT_TEMPLATE,
    CONTROL,
    TinyGguf,
    logits_of,
    reference_logits,
    tiny_gguf,
)

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")


def silent(_: str) -> None:
    return


def read_config(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "config.json").read_text())


def dense_weights(directory: Path) -> dict[str, mx.array]:
    """The directory's weights in float32, dequantized as its configuration specifies."""
    stored = mx.load(str(directory / "model.safetensors"))
    assert isinstance(stored, dict)
    arrays = {
        name: array if array.dtype == mx.uint32 else array.astype(mx.float32)
        for name, array in stored.items()
    }
    quantization = read_config(directory).get("quantization", {})
    for name in [name for name in arrays if name.endswith(".scales")]:
        module = name.removesuffix(".scales")
        how = quantization.get(module, quantization)
        weight, scales, biases = (
            arrays.pop(f"{module}.{leaf}") for leaf in ("weight", "scales", "biases")
        )
        arrays[f"{module}.weight"] = mx.dequantize(
            weight, scales, biases, how["group_size"], how["bits"], how["mode"]
        )
    return arrays


def imported_logits(directory: Path, tokens: mx.array) -> np.ndarray:
    return logits_of(read_config(directory), dense_weights(directory), tokens)


def load_tokenizer(directory: Path) -> tokenizers.Tokenizer:
    """The directory's tokenizer, set to encode text without control tokens."""
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return tokenizer


def import_tiny(tiny: TinyGguf, tmp_path: Path) -> Path:
    return import_gguf(tiny.write(tmp_path / "tiny.gguf"), tmp_path / "models", silent)


# Numbers


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
    "kind",
    [Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q8_0],
    ids=lambda kind: kind.name,
)
def test_logits_match_the_dense_weights(arch: str, kind: Kind, tmp_path: Path):
    tiny = tiny_gguf(arch, kind)
    tokens = mx.array(np.random.default_rng(1).integers(0, 250, (1, 20)))
    logits = imported_logits(import_tiny(tiny, tmp_path), tokens)
    expected = reference_logits(tiny, tokens)
    np.testing.assert_allclose(logits, expected, atol=1e-4 * np.abs(expected).max())


def mixed_kinds(name: str) -> Kind:
    """A mix of kinds as in a Q4_K_M or smaller file, one for each module."""
    for part, kind in {
        "embed": Kind.Q6_K,
        "q_proj": Kind.Q4_K,
        "k_proj": Kind.Q5_K,
        "v_proj": Kind.Q6_K,
        "o_proj": Kind.Q2_K,
        "gate": Kind.Q3_K,
        "up": Kind.IQ4_XS,
    }.items():
        if part in name:
            return kind
    return Kind.Q5_0


def test_other_kinds_are_accurate_to_a_step_of_8_bits(tmp_path: Path):
    """Q4_K is not requantized: its only error is from rounding scales to float16."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 1}
    tiny = tiny_gguf("llama", mixed_kinds, **sizes)
    directory = import_tiny(tiny, tmp_path)
    for name, values in dense_weights(directory).items():
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


def test_a_tensor_larger_than_a_chunk_is_converted_like_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tiny = tiny_gguf("llama", Kind.Q4_0)
    whole = import_tiny(tiny, tmp_path)
    monkeypatch.setattr(weights, "CHUNK_VALUES", 200)  # a few rows
    pieces = import_gguf(tmp_path / "tiny.gguf", tmp_path / "again", silent)
    name = "model.safetensors"
    assert (whole / name).read_bytes() == (pieces / name).read_bytes()


# Configuration


LINEAR = {"rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 4.0}}
YARN = {"rope_type": "yarn", "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
CONFIGURED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *((arch, {}, {}) for arch in ARCHITECTURES),
    ("llama", LINEAR, {"llama.rope.scaling.factor": 4.0}),
    (
        "qwen3",
        {"rope_scaling": YARN},
        {
            "qwen3.rope.scaling.type": "yarn",
            "qwen3.rope.scaling.factor": 4.0,
            "qwen3.rope.scaling.original_context_length": 64,
        },
    ),
    (
        "gemma3",
        {"sliding_window_pattern": 3, "rope_local_base_freq": 20_000.0},
        {
            "gemma3.attention.sliding_window_pattern": [True, True, False, True, True, False],
            "gemma3.rope.freq_base_swa": 20_000.0,
        },
    ),
]


@pytest.mark.parametrize(("arch", "changes", "metadata"), CONFIGURED)
def test_the_original_configuration_is_recovered(
    arch: str, changes: dict[str, Any], metadata: dict[str, Any], tmp_path: Path
):
    tiny = tiny_gguf(arch, **changes)
    tiny.metadata |= metadata
    config = read_config(import_tiny(tiny, tmp_path))
    assert {key: config[key] for key in tiny.config} == tiny.config
    assert config["torch_dtype"] == "float32"
    assert config["mlxchat"] == str(tmp_path / "tiny.gguf")


def llama3_factors(factor: float, theta: float, head_dim: int) -> np.ndarray:
    """llama.cpp's loop, from its conversion/llama.py."""
    factors: list[float] = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * np.pi * theta ** (index / head_dim)
        if wavelength < 8192 / 4:
            factors.append(1)
        elif wavelength > 8192:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama_3_scaling_is_recovered_from_its_table(factor: float, tmp_path: Path):
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    tiny = tiny_gguf("llama", rope_scaling=scaling, rope_theta=500_000.0)
    tiny.tensors["rope_freqs.weight"] = llama3_factors(factor, 500_000.0, 16), Kind.F32
    directory = import_tiny(tiny, tmp_path)
    assert read_config(directory)["rope_scaling"] == scaling
    tokens = mx.array([[1, 2, 3, 4, 5]])
    expected = reference_logits(tiny, tokens)
    np.testing.assert_allclose(imported_logits(directory, tokens), expected, atol=1e-3)


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


def test_merges_cannot_turn_plain_text_into_a_control_token(tmp_path: Path):
    tiny = tiny_gguf("llama")
    tokens = tiny.metadata["tokenizer.ggml.tokens"]
    kinds = tiny.metadata["tokenizer.ggml.token_type"]
    kinds[tokens.index("hello")] = int(TokenType.CONTROL)
    tokenizer = load_tokenizer(import_tiny(tiny, tmp_path))
    assert tokenizer.encode("hello").tokens == ["hell", "o"]
    for text in CONTROL:
        assert all(kinds[index] != TokenType.CONTROL for index in tokenizer.encode(text).ids)
    assert tokenizer.encode("a<think>b").tokens == ["a", "<think>", "b"]


PIECES = {
    "smollm": "I|'ll| pay| |1|2|3|4|€| | now|\n|\n|OK",
    "gpt-2": "I|'ll| pay| 1234|€| | now|\n|\n|OK",
    "llama-bpe": "I|'ll| pay| |123|4|€| | now|\n\n|OK",
    "qwen2": "I|'ll| pay| |1|2|3|4|€| | now|\n\n|OK",
    "tekken": "I|'ll| pay| |1|2|3|4|€| | now|\n\n|OK",
}


@pytest.mark.parametrize("name", PIECES)
def test_text_is_split_as_in_training(name: str, tmp_path: Path):
    tiny = tiny_gguf("llama")
    tiny.metadata["tokenizer.ggml.pre"] = name
    tokenizer = load_tokenizer(import_tiny(tiny, tmp_path))
    text = "I'll pay 1234€  now\n\nOK"
    assert tokenizer.pre_tokenizer is not None
    assert tokenizer.decoder is not None
    split = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [tokenizer.decoder.decode([piece]) for piece, _ in split] == PIECES[name].split("|")


@pytest.mark.parametrize(
    ("name", "expected"), [("smollm", ["z", "q"]), ("llama-bpe", ["<|im_start|>", "zq"])]
)
def test_llama_3_uses_a_token_for_a_whole_word_before_any_merge(
    name: str, expected: list[str], tmp_path: Path
):
    tiny = tiny_gguf("llama")
    tokens = tiny.metadata["tokenizer.ggml.tokens"]
    tokens[tokens.index("hell")] = "zq"  # no merge leads to it
    tiny.metadata |= {"tokenizer.ggml.merges": ["h e"], "tokenizer.ggml.pre": name}
    assert load_tokenizer(import_tiny(tiny, tmp_path)).encode("zq").tokens == expected


def sentencepiece_tiny(arch: str, **training: Any) -> tuple[TinyGguf, Any]:
    """A tiny file with a freshly trained SentencePiece vocabulary, and that model."""
    import io

    import sentencepiece

    written = io.BytesIO()
    corpus = Path(__file__).with_name("test_gguf.py").read_text() * 2
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(corpus.split("\n")),
        model_writer=written,
        model_type="bpe",
        vocab_size=600,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
        **training,
    )
    user_defined = training.get("user_defined_symbols", [])
    pieces = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())

    def kind_of(index: int) -> TokenType:
        kinds = {
            TokenType.USER_DEFINED: pieces.IdToPiece(index) in user_defined,
            TokenType.BYTE: pieces.IsByte(index),
            TokenType.CONTROL: pieces.IsControl(index),
            TokenType.UNKNOWN: pieces.IsUnknown(index),
        }
        return next((kind for kind, holds in kinds.items() if holds), TokenType.NORMAL)

    tiny = tiny_gguf(arch, vocab_size=len(pieces))
    others = {k: value for k, value in tiny.metadata.items() if not k.startswith("tokenizer.")}
    tiny.metadata = others | {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [
            # llama.cpp writes user-defined tokens with plain spaces.
            piece.replace("▁", " ") if piece in user_defined else piece
            for piece in map(pieces.IdToPiece, range(len(pieces)))
        ],
        "tokenizer.ggml.scores": [pieces.GetScore(index) for index in range(len(pieces))],
        "tokenizer.ggml.token_type": [int(kind_of(index)) for index in range(len(pieces))],
    }
    return tiny, pieces


TRICKY = (
    "",
    " ",
    "  two spaces",
    "trailing  ",
    "tabs\tand\n\nnewlines\r\n",
    "naïve café, 東京 🦙🦙 \u200d‍",
    "def test(x: int) -> None:\n    return x  # 12345",
    "<s></s><unk><0x41> <|im_start|>",
    "a\u0301 e\u0301 \ufeff \x00 end",
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


def test_scores_cannot_turn_plain_text_into_a_control_token(tmp_path: Path):
    tiny, pieces = sentencepiece_tiny("llama")
    word = next(i for i in pieces.Encode("return return") if len(pieces.IdToPiece(i)) > 2)
    tiny.metadata["tokenizer.ggml.token_type"][word] = int(TokenType.CONTROL)
    tokenizer = load_tokenizer(import_tiny(tiny, tmp_path))
    assert word not in tokenizer.encode("return return").ids
    assert tokenizer.decode(tokenizer.encode("return return").ids) == "return return"


# Errors


def put(key: str, value: Any) -> Callable[[TinyGguf], object]:
    return lambda tiny: tiny.metadata.update({key: value})


def store(name: str, array: np.ndarray, kind: Kind = Kind.F32) -> Callable[[TinyGguf], object]:
    return lambda tiny: tiny.tensors.update({name: (array, kind)})


REFUSED: dict[str, Callable[[TinyGguf], object]] = {
    "architecture 'falcon'; supported: gemma3, llama, qwen2, qwen3": put(
        "general.architecture", "falcon"
    ),
    "expert_count 8": put("llama.expert_count", 8),
    "RoPE scaling 'longrope'": lambda tiny: tiny.metadata.update(
        {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 4.0}
    ),
    "not Llama 3's": store("rope_freqs.weight", np.arange(1, 9, dtype=np.float32)),
    "tensor 'blk.0.ffn_gate_inp.weight'": store(
        "blk.0.ffn_gate_inp.weight", np.zeros((4, 64), np.float32)
    ),
    "as F64": store("blk.0.attn_q.weight", np.zeros((64, 64)), Kind.F64),
    "pre-tokenizer 'viking'": put("tokenizer.ggml.pre", "viking"),
    "has no llama.context_length": lambda tiny: tiny.metadata.pop("llama.context_length"),
    "llama.attention.head_count_kv is not of the type int": put(
        "llama.attention.head_count_kv", [2, 1]
    ),
    "tensor 'blk.1.ffn_up.weight' is missing": lambda tiny: tiny.tensors.pop("blk.1.ffn_up.weight"),
    "'blk.1.ffn_up.weight' has shape (96, 32), not (96, 64)": store(
        "blk.1.ffn_up.weight", np.zeros((96, 32), np.float32)
    ),
    "'blk.1.attn_q.weight' contains infinite or NaN values": store(
        "blk.1.attn_q.weight", np.full((64, 68), 0x7E, np.uint8), Kind.Q8_0
    ),
    "for 4000000000 layers": put("llama.block_count", 4_000_000_000),
    "300 tokens but": put("tokenizer.ggml.tokens", [str(number) for number in range(300)]),
    "does not define": lambda tiny: tiny.metadata.update(
        {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 2**32 - 1}
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_converted_is_named_in_one_line(message: str, tmp_path: Path):
    tiny = tiny_gguf("llama")
    REFUSED[message](tiny)
    check_refused(tiny.write(tmp_path / "tiny.gguf"), message)


def check_refused(path: Path, message: str) -> None:
    with pytest.raises((ModelBroken, ModelUnsupported)) as refused:
        import_gguf(path, path.parent / "models", silent)
    assert message in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list(path.parent.glob("models/*")) == []


HEADS = {
    b"version https://git-lfs.github.com/spec/v1\n": "run git lfs pull in",
    b"GGUF" + struct.pack("<I", 1): "version 1",
    b"GGUF" + struct.pack(">I", 3): "big-endian",
    b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 8, 2**50): "a list of",
    b"GGUF" + struct.pack("<IQQQ1s", 3, 0, 1, 1, b"a") + struct.pack("<IQ", 9, 2) * 5000: "damaged",
}


@pytest.mark.parametrize("head", HEADS, ids=list(range(len(HEADS))))
def test_an_invalid_gguf_file_is_refused_in_one_line(head: bytes, tmp_path: Path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(head)
    check_refused(path, HEADS[head])


@pytest.fixture(scope="module")
def tiny_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A valid file of about 40 kB, a fifth of it header."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return tiny_gguf("llama", Kind.Q4_0, num_hidden_layers=1).write(path).read_bytes()


@settings(
    max_examples=examples(50),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(share=st.floats(0, 1, exclude_max=True), flipped=st.integers(1, 255))
def test_a_file_that_is_cut_is_refused_and_one_with_a_wrong_byte_at_most(
    share: float, flipped: int, tiny_bytes: bytes, tmp_path: Path
):
    path = tmp_path / "damaged.gguf"
    last_tensor_ends = len(tiny_bytes) - 31  # without the padding after it
    path.write_bytes(tiny_bytes[: int(share * last_tensor_ends)])
    with pytest.raises(ModelBroken):
        import_gguf(path, tmp_path / "out", silent)
    header_ends = tiny_bytes.index(b"output_norm.weight") + 60
    damaged = bytearray(tiny_bytes)
    damaged[int(share * header_ends)] ^= flipped
    path.write_bytes(damaged)
    with suppress(MlxchatError):
        import_gguf(path, tmp_path / "out", silent)


# On the disk


def assert_left_nothing(tmp_path: Path) -> None:
    assert {entry.name for entry in (tmp_path / "models").iterdir()} == set()


def test_a_file_is_converted_once_and_again_only_when_it_changes(tmp_path: Path):
    path = tiny_gguf("llama").write(tmp_path / "tiny.gguf")
    killed = tmp_path / "models" / f"{PARTIAL}other-123"
    killed.mkdir(parents=True)
    (killed / "config.json").touch()
    notices: list[str] = []
    first = import_gguf(path, tmp_path / "models", notices.append)
    assert not killed.exists()
    assert import_gguf(path, tmp_path / "models", notices.append) == first
    assert notices == [f"converting tiny.gguf once, into {first}"]
    os.utime(path, ns=(1, 1))
    assert import_gguf(path, tmp_path / "models", notices.append) != first
    assert len(notices) == 2


def importing(
    path: Path, models: Path, before: str = "", after: str = ""
) -> "subprocess.Popen[str]":
    """A process that imports the file and prints what it says."""
    program = (
        "import resource, sys, time; from pathlib import Path\n"
        "from mlxchat.errors import ModelError; from mlxchat.models.gguf import import_gguf\n"
        f"{before}\ntry: print(import_gguf(Path(sys.argv[1]), Path(sys.argv[2]), print))\n"
        f"except ModelError as error: print(error)\n{after}"
    )
    command = [sys.executable, "-c", program, path, models]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_converted_file_is_found_without_importing_anything_heavy(tmp_path: Path):
    directory = import_tiny(tiny_gguf("llama"), tmp_path)
    heavy = "print({'mlx.core', 'gguf', 'numpy', 'tokenizers'} & set(sys.modules))"
    found = importing(tmp_path / "tiny.gguf", tmp_path / "models", after=heavy)
    assert found.communicate()[0] == f"{directory}\nset()\n"


def test_two_processes_convert_a_file_once(tmp_path: Path):
    path = tiny_gguf("llama").write(tmp_path / "tiny.gguf")
    together = f"time.sleep(max(0, {time.time() + 1} - time.time()))"
    running = [importing(path, tmp_path / "models", before=together) for _ in range(3)]
    outputs = [process.communicate(timeout=100)[0].splitlines() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len({lines[-1] for lines in outputs}) == 1
    assert sum(line.startswith("converting") for lines in outputs for line in lines) == 1
    assert len(list((tmp_path / "models").iterdir())) == 1


def test_a_real_failed_write_is_reported_in_one_line(tmp_path: Path):
    path = tiny_gguf("llama").write(tmp_path / "tiny.gguf")
    full = "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))"
    _, line = importing(path, tmp_path / "models", before=full).communicate()[0].splitlines()
    assert line.startswith(f"cannot store a converted model in {tmp_path / 'models'}: ")
    assert_left_nothing(tmp_path)


def test_a_file_that_changes_during_conversion_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tiny_gguf("llama").write(tmp_path / "tiny.gguf")
    with pytest.raises(ModelBroken, match="changed while"):
        import_gguf(path, tmp_path / "models", lambda _: os.utime(path, ns=(1, 1)))
    assert_left_nothing(tmp_path)
