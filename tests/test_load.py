"""From a directory to a model: with any form of weights, or refused in one clear line."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxchat import platform
from mlxchat.errors import ModelError, ModelUnsupported
from mlxchat.models.load import load_directory
from mlxchat.models.model import Model, automatic_window, check_window
from mlxchat.models.precision import dequantize, in_dtype
from mlxchat.models.skeleton import MODULE_OF_TYPE, build_skeleton, named_parameters, read_config
from mlxchat.models.tokenizer_files import load_tokenizer
from scripts.families import build_family, write_family
from scripts.tiny_model import tiny_config
from tests.conftest import examples

TOKENS = mx.array([[72, 101, 108, 108, 111]])


def load(directory: Path, dtype: str = "auto") -> Model:
    return load_directory(directory, "tiny", dtype=dtype, notify=lambda _: None)


def logits(model: Model) -> np.ndarray:
    return np.array(model.network(TOKENS).astype(mx.float32))


def test_on_a_cpu_auto_is_float32_if_it_fits_and_else_as_stored_with_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_family(tmp_path / "m", "llama", "4-bit")
    monkeypatch.setattr(platform, "on_gpu", lambda: False)
    assert load(directory).dtype == mx.float32
    stored_bytes = (directory / "model.safetensors").stat().st_size
    monkeypatch.setattr(platform, "free_memory_bytes", lambda: stored_bytes + 1000)
    notices: list[str] = []
    model = load_directory(directory, "tiny", dtype="auto", notify=notices.append)
    assert any("scales" in name for name, _ in named_parameters(model.network))
    assert "stored dtype" in notices[0]
    monkeypatch.setattr(platform, "free_memory_bytes", lambda: 1000)
    for dtype in ("auto", "float16"):
        with pytest.raises(ModelError, match="choose a smaller or more heavily quantized model"):
            load(directory, dtype)


@settings(max_examples=examples(10))
@given(
    bits=st.sampled_from([2, 3, 4, 5, 6, 8]),
    group_size=st.sampled_from([32, 64]),
    rows=st.integers(1, 5),
    experts=st.sampled_from([(), (3,)]),
    dtype=st.sampled_from([mx.float16, mx.float32]),
)
def test_dequantizing_gives_scale_times_value_plus_bias_exactly(
    bits: int, group_size: int, rows: int, experts: tuple[int, ...], dtype: mx.Dtype
) -> None:
    weight = mx.random.normal((*experts, rows, 2 * group_size)).astype(dtype)
    packed, scales, biases = mx.quantize(weight, group_size=group_size, bits=bits)
    packing = {"group_size": group_size, "bits": bits, "mode": "affine"}
    found = np.array(dequantize(packed, scales, biases, packing))
    # Unpack each value's bits from the words, one by one.
    words = np.array(packed).astype("<u4").view(np.uint8)
    stream = np.unpackbits(words, axis=-1, bitorder="little")
    values = stream.reshape(*stream.shape[:-1], -1, bits) @ (1 << np.arange(bits))
    groups = values.reshape(*scales.shape, group_size)
    expected = np.array(scales.astype(mx.float32))[..., None] * groups.astype(np.float32)
    expected = expected + np.array(biases.astype(mx.float32))[..., None]
    np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=1e-6, atol=1e-6)


def edit_json(path: Path, **changes: Any) -> None:
    value = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: v for key, v in value.items() if v is not None}))


WEIGHTS = "model.safetensors"
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 134515008\n"


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda directory: edit_json(directory / "config.json", **changes)


def one_of_two_files(directory: Path) -> None:
    arrays: Any = mx.load(str(directory / WEIGHTS))
    arrays.pop("model.norm.weight")
    mx.save_safetensors(str(directory / "model-1.safetensors"), arrays)
    (directory / WEIGHTS).unlink()
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


DAMAGE: dict[str, Callable[[Path], object]] = {
    r"has no config\.json": lambda d: (d / "config.json").unlink(),
    "names no model_type": config(model_type=None),
    "does not support the model type 'unheard_of'": config(model_type="unheard_of"),
    r"needs its own Python code \('evil.py'\)": config(model_file="evil.py"),
    "does not describe a llama model: .*hidden_size": config(hidden_size=None),
    r"the weights in .* do not match its config\.json": config(intermediate_size=96),
    r"has no weights: model\*\.safetensors is missing": lambda d: (d / WEIGHTS).unlink(),
    "is damaged; download it again: .*incomplete": lambda d: os.truncate(d / WEIGHTS, 50_000),
    "is damaged; download it again: Invalid": lambda d: (d / WEIGHTS).write_bytes(b"no" * 50),
    "run git lfs pull in": lambda d: (d / WEIGHTS).write_bytes(LFS_POINTER),
    r"has no tokenizer: tokenizer\.json": lambda d: (d / "tokenizer.json").unlink(),
    r"model-2\.safetensors is missing: the download is incomplete": one_of_two_files,
}


@pytest.mark.parametrize("complaint", DAMAGE)
def test_a_damaged_directory_is_refused(complaint: str, tiny_model: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(tiny_model, tmp_path / "damaged"))
    DAMAGE[complaint](directory)
    with pytest.raises(ModelError, match=complaint) as error:
        load(directory)
    assert "\n" not in str(error.value)


def test_experts_that_a_cpu_cannot_run_are_refused_unless_packed_or_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--dtype stored` used to end in a traceback from MLX, after the weights had been read."""
    gather_mm: Any = mx.gather_mm

    def gather_mm_of_a_cpu(a: mx.array, *others: Any, **options: Any) -> mx.array:
        if a.dtype != mx.float32:
            raise RuntimeError("[GatherMM::eval] Currently only supports float32.")
        return gather_mm(a, *others, **options)

    monkeypatch.setattr(mx, "gather_mm", gather_mm_of_a_cpu)
    loose = write_family(tmp_path / "loose", "qwen3_moe", "bfloat16")
    message = "^MLX cannot run this model's experts in bfloat16 on a CPU: load them as float32"
    with pytest.raises(ModelUnsupported, match=message):
        load(loose, "stored")
    packed = write_family(tmp_path / "packed", "qwen3_moe", "4-bit")
    assert np.isfinite(logits(load(loose, "float32"))).all()
    assert np.isfinite(logits(load(packed, "stored"))).all()


def test_the_automatic_window_is_the_context_or_as_much_as_fits(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(tiny_model)
    token_bytes = 2 * 2 * 2 * 8 * 4
    assert automatic_window(model, print) == 4096
    monkeypatch.setattr(platform, "free_memory_bytes", lambda: int(1100 * token_bytes / 0.7))
    assert automatic_window(model, print) == 1024
    monkeypatch.setattr(platform, "free_memory_bytes", lambda: 100 * token_bytes)
    with pytest.raises(ModelError, match="memory for only 70 tokens"):
        automatic_window(model, print)
    with pytest.raises(ModelError, match="101 tokens"):
        check_window(model, 101, print)
    check_window(model, 100, print)


def test_what_a_model_keeps_precise_is_not_cast() -> None:
    network = build_family("deepseek_v3")
    arrays = dict(named_parameters(network))
    precise = {name for name in arrays if "e_score_correction_bias" in name}
    cast = in_dtype(network, arrays, mx.float16)
    assert {name for name, each in cast.items() if each.dtype != mx.float16} == precise != set()


def test_every_token_that_a_file_calls_the_end_ends_turns(tiny_model: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(tiny_model, tmp_path / "m"))
    config(eos_token_id=65, text_config={"eos_token_id": [66, 67]})(directory)
    (directory / "generation_config.json").write_text('{"eos_token_id": [68]}')
    edit_json(directory / "tokenizer_config.json", eos_token="<|endoftext|>")
    tokenizer = load_tokenizer(directory, read_config(directory))
    # The template writes <|im_end|> after an answer.
    ends = [*range(65, 69), *map(tokenizer._backend.token_to_id, ("<|endoftext|>", "<|im_end|>"))]
    assert tokenizer.eos_ids == {*ends}


def test_renamed_types_match_mlx_lm() -> None:
    """The table is copied because importing mlx-lm's takes a second; this notices a change."""
    from mlx_lm.utils import MODEL_REMAPPING

    assert MODULE_OF_TYPE == MODEL_REMAPPING


def test_a_skeleton_takes_no_memory() -> None:
    mx.clear_cache()
    before = mx.get_active_memory()
    network = build_skeleton(tiny_config(layers=4, width=4096, vocabulary=100_000))
    assert len(named_parameters(network)) > 30
    assert mx.get_active_memory() - before < 1_000_000
