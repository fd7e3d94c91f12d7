"""Models that must not be loaded in float16, which overflows where bfloat16 does not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from gguf import GGMLQuantizationType as Kind
from mlx import nn
from mlx.utils import tree_flatten

from mlxchat.models.describe import describe
from mlxchat.models.gguf import import_gguf
from mlxchat.models.load import load_directory
from mlxchat.models.model import Model
from mlxchat.models.skeleton import held_bytes
from scripts import metal
from scripts.families import family_config, write_family
from tests.gguf_files import KindOf, tiny_gguf


def load(directory: Path, dtype: str = "stored") -> tuple[Model, list[str]]:
    notices: list[str] = []
    return load_directory(directory, "tiny", dtype=dtype, notify=notices.append), notices


def logits(model: Model) -> mx.array:
    return model.network(mx.array([[1, 2, 3]]))


def floating_dtypes(network: nn.Module) -> set[mx.Dtype]:
    parameters: Any = tree_flatten(network.parameters())
    return {each.dtype for _, each in parameters if mx.issubdtype(each.dtype, mx.floating)}


@pytest.mark.parametrize(
    ("arch", "kind", "dtype"),
    [
        # Gemma is never loaded in float16, and a file with bfloat16 counts as trained in it.
        ("gemma3", Kind.F16, mx.bfloat16),
        ("gemma3", Kind.Q4_0, mx.bfloat16),
        ("llama", lambda name: Kind.BF16 if "embed" in name else Kind.Q8_0, mx.bfloat16),
        # Others keep their float16 scales' precision: norms, float32, made all activations float32.
        ("llama", Kind.Q8_0, mx.float16),
    ],
)
def test_the_dtype_of_gguf(arch: str, kind: Kind | KindOf, dtype: mx.Dtype, tmp_path: Path) -> None:
    file = tiny_gguf(arch, kind).write(tmp_path / "tiny.gguf")
    model, notices = load(import_gguf(file, tmp_path / "models", lambda _: None))
    assert floating_dtypes(model.network) == {dtype}
    assert logits(model).dtype == model.dtype == dtype
    assert notices == []


def change(directory: Path, change: Callable[[str, mx.array], mx.array | None]) -> int:
    """Change the arrays of a model, or leave them out; returns the number of parameters left."""
    file = str(directory / "model.safetensors")
    arrays: Any = mx.load(file)
    mx.eval(arrays)
    found = {name: change(name, array) for name, array in arrays.items()}
    kept = {name: array for name, array in found.items() if array is not None}
    mx.save_safetensors(file, kept, {"format": "mlx"})
    return sum(array.size for array in kept.values())


def test_a_model_that_overflows_is_loaded_in_bfloat16_with_a_notice(tmp_path: Path) -> None:
    """Some models give no hint beforehand, but one cheap token shows it."""
    directory = write_family(tmp_path / "model", "llama", "float16")
    change(directory, lambda name, array: array * 1e4 if "proj" in name else array)
    model, notices = load(directory)
    assert notices == ["tiny overflows in float16: using bfloat16"]
    assert floating_dtypes(model.network) == {mx.bfloat16}
    assert mx.all(mx.isfinite(logits(model))).item()
    # An explicit float16 is respected, with a warning.
    model, notes = load(directory, "float16")
    assert notes == ["tiny overflows in float16, so its output will be noise: choose another dtype"]
    assert model.dtype == mx.float16


@pytest.mark.parametrize("name", ["gemma4", "recurrent_gemma"])
def test_gemmas_stored_in_float16_are_loaded_in_bfloat16(name: str, tmp_path: Path) -> None:
    # A CPU runs unquantized experts, as in gemma4, only in float32.
    with metal.imitated():
        model, _ = load(write_family(tmp_path / "model", name, "float16"))
    assert mx.float16 not in floating_dtypes(model.network)
    assert model.dtype == mx.bfloat16


# Output heads tied to the embedding: counted once, and in memory once


# Families whose module has a head but whose files may lack it: minicpm's is the embedding then.
@pytest.mark.parametrize("name", ["gemma3", "gemma3_text", "recurrent_gemma", "minicpm"])
def test_a_tied_head_is_counted_and_in_memory_once(name: str, tmp_path: Path) -> None:
    """Converting minicpm to another dtype made its head a separate array."""
    directory = write_family(tmp_path / "tied", name)
    parameters = change(directory, lambda name, array: None if "lm_head" in name else array)
    assert describe(name, directory).parameters == parameters
    for dtype, size in (("stored", 4), ("float16", 2)):
        network = load_directory(directory, name, dtype=dtype, notify=print).network
        assert held_bytes(network) == size * parameters
    assert network(mx.array([[1, 2, 3]])).shape[-1] == family_config(name)["vocab_size"]
