"""Models that must not be loaded in float16, which overflows where bfloat16 does not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from mlx import nn
from mlx.utils import tree_flatten

from mlxchat.models.describe import describe
from mlxchat.models.gguf import import_gguf
from mlxchat.models.load import load_directory
from mlxchat.models.model import Model
from mlxchat.models.precision import hold_in_bfloat16
from mlxchat.models.skeleton import build_skeleton, held_bytes, parameter_count, read_config
from mlxchat.models.weights import arrays_of, load_arrays
from scripts import metal
from scripts.families import family_config
from scripts.tiny_model import write_tiny_model
from tests.gguf_files import KindOf, TinyGguf, tiny_gguf

Arrays = dict[str, mx.array]


def load(directory: Path, dtype: str = "stored") -> tuple[Model, list[str]]:
    notices: list[str] = []
    model = load_directory(directory, "tiny", dtype=dtype, notify=notices.append)
    return model, notices


def imported(tiny: TinyGguf, tmp_path: Path) -> Path:
    return import_gguf(tiny.write(tmp_path / "tiny.gguf"), tmp_path / "models", lambda _: None)


def scaled(tiny: TinyGguf, part: str, factor: float) -> TinyGguf:
    """The same file with larger values in the unpacked tensors of that name."""
    for name, (stored, kind) in tiny.tensors.items():
        if part in name:
            assert kind is Kind.F16
            tiny.tensors[name] = (stored.astype(np.float32) * factor).astype(np.float16), kind
    return tiny


def logits(model: Model) -> mx.array:
    return model.network(mx.array([[1, 2, 3]]))


def floating_dtypes(network: nn.Module) -> set[mx.Dtype]:
    parameters: Any = tree_flatten(network.parameters())
    return {each.dtype for _, each in parameters if mx.issubdtype(each.dtype, mx.floating)}


def embeddings_as(kind: Kind) -> KindOf:
    return lambda name: kind if "embed" in name else Kind.Q8_0


@pytest.mark.parametrize(
    ("arch", "kind", "dtype"),
    [
        # Gemma is never loaded in float16, and a file with bfloat16 counts as trained in it.
        ("gemma3", Kind.F16, mx.bfloat16),
        ("gemma3", Kind.Q4_0, mx.bfloat16),
        ("llama", embeddings_as(Kind.BF16), mx.bfloat16),
        # Others keep the precision of their float16 scales: norms, which are float32 in the file,
        # used to make all activations float32.
        ("llama", Kind.Q8_0, mx.float16),
    ],
)
def test_the_dtype_of_a_gguf_file(
    arch: str, kind: Kind | KindOf, dtype: mx.Dtype, tmp_path: Path
) -> None:
    model, notices = load(imported(tiny_gguf(arch, kind), tmp_path))
    assert floating_dtypes(model.network) == {dtype}
    assert logits(model).dtype == model.dtype == dtype
    assert notices == []


def test_a_gemma_with_large_embeddings_writes_numbers(tmp_path: Path) -> None:
    """Converted to float16, Gemma answered with noise whatever its quantization: its embeddings,
    scaled by the square root of their width, exceed 65,504."""

    tiny = scaled(tiny_gguf("gemma3", embeddings_as(Kind.F16)), "token_embd", 1e4)
    model, notices = load(imported(tiny, tmp_path))
    assert notices == []
    assert mx.all(mx.isfinite(logits(model))).item()


def test_a_model_that_overflows_is_loaded_in_bfloat16_with_a_notice(tmp_path: Path) -> None:
    """Some models give no hint beforehand, but one cheap token shows it."""
    tiny = scaled(scaled(tiny_gguf("llama", Kind.F16), "ffn_up", 1e3), "ffn_down", 1e3)
    directory = imported(tiny, tmp_path)
    model, notices = load(directory)
    assert notices == ["tiny overflows in float16: using bfloat16"]
    assert floating_dtypes(model.network) == {mx.bfloat16}
    assert mx.all(mx.isfinite(logits(model))).item()
    # An explicit float16 is respected, with a warning.
    model, notices = load(directory, "float16")
    assert notices == [
        "tiny overflows in float16, so its output will be noise: choose another dtype"
    ]
    assert model.dtype == mx.float16


def stored_as(directory: Path, family: str, change: Callable[[Arrays], Arrays]) -> Path:
    """The family's tiny model with its arrays changed."""
    write_tiny_model(directory, config=family_config(family))
    file = str(directory / "model.safetensors")
    arrays: Any = mx.load(file)
    mx.eval(arrays)
    mx.save_safetensors(file, change(arrays), {"format": "mlx"})
    return directory


def in_float16(arrays: Arrays) -> Arrays:
    return {name: array.astype(mx.float16) for name, array in arrays.items()}


def without_head(arrays: Arrays) -> Arrays:
    return {name: array for name, array in arrays.items() if "lm_head" not in name}


@pytest.mark.parametrize("name", ["gemma3", "gemma4", "recurrent_gemma"])
def test_gemmas_stored_in_float16_are_loaded_in_bfloat16(name: str, tmp_path: Path) -> None:
    directory = stored_as(tmp_path / name, name, in_float16)
    # A CPU runs unquantized experts, as in gemma4, only in float32.
    with metal.imitated():
        model, _ = load(directory)
    assert mx.float16 not in floating_dtypes(model.network)
    assert model.dtype == mx.bfloat16


def test_shared_parameters_stay_shared_in_bfloat16() -> None:
    network = nn.Module()
    network.one = network.other = mx.ones((4, 4), mx.float16)
    hold_in_bfloat16(network)
    assert network.one is network.other
    assert network.one.dtype == mx.bfloat16


# Output heads tied to the embedding: counted once, and in memory once

# The families whose module always has a head but whose files may have none: three then drop theirs,
# minicpm fills it with the embedding.
HEADS = ("gemma3", "gemma3_text", "recurrent_gemma", "minicpm")


def stored_parameters(directory: Path) -> int:
    arrays: Any = mx.load(str(directory / "model.safetensors"))
    return sum(array.size for array in arrays.values())


@pytest.mark.parametrize("name", HEADS)
def test_a_head_missing_from_the_files_is_not_counted(name: str, tmp_path: Path) -> None:
    directory = stored_as(tmp_path / "tied", name, without_head)
    assert describe(name, directory).parameters == stored_parameters(directory)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("dtype", ["stored", "float16"])
def test_a_tied_head_is_in_memory_once(name: str, dtype: str, tmp_path: Path) -> None:
    """Converting minicpm to another dtype made its head a separate array."""
    directory = stored_as(tmp_path / "tied", name, without_head)
    network = load_directory(directory, name, dtype=dtype, notify=print).network
    size = 4 if dtype == "stored" else 2
    assert held_bytes(network) == size * stored_parameters(directory)
    assert network(mx.array([[1, 2, 3]])).shape[-1] == family_config(name)["vocab_size"]


def test_a_separate_head_is_counted(tmp_path: Path) -> None:
    for name in ("llama", "gemma3_text", "minicpm"):
        directory = write_tiny_model(tmp_path / name, config=family_config(name))
        config = read_config(directory)
        network = build_skeleton(config)
        arrays = arrays_of(network, config, directory, load_arrays(directory))
        assert parameter_count(network, arrays) == stored_parameters(directory)
