"""Models that must not be loaded in float16, which overflows where bfloat16 does not."""

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
from mlxchat.models.weights import arrays_of, weight_files
from scripts import metal
from scripts.families import family_config
from scripts.tiny_model import write_tiny_model
from tests.gguf_files import TinyGguf, tiny_gguf


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


@pytest.mark.parametrize("kind", [Kind.F16, Kind.Q4_0], ids=lambda kind: kind.name)
def test_a_gemma_from_gguf_is_never_loaded_in_float16(kind: Kind, tmp_path: Path) -> None:
    directory = imported(tiny_gguf("gemma3", kind), tmp_path)
    assert read_config(directory)["torch_dtype"] == "bfloat16"
    model, notices = load(directory)
    assert floating_dtypes(model.network) == {mx.bfloat16}
    assert model.dtype == mx.bfloat16
    assert notices == []


def test_a_gemma_with_large_embeddings_writes_numbers(tmp_path: Path) -> None:
    """Converted to float16, Gemma answered with noise whatever its quantization: its embeddings,
    scaled by the square root of their width, exceed 65,504."""

    def embeddings_in_float16(name: str) -> Kind:
        return Kind.F16 if "embed" in name else Kind.Q8_0

    tiny = scaled(tiny_gguf("gemma3", embeddings_in_float16), "token_embd", 1e4)
    model, notices = load(imported(tiny, tmp_path))
    assert notices == []
    assert mx.all(mx.isfinite(logits(model))).item()


def test_a_file_with_bfloat16_tensors_counts_as_trained_in_it(tmp_path: Path) -> None:
    def embeddings_as_trained(name: str) -> Kind:
        return Kind.BF16 if "embed" in name else Kind.Q8_0

    model, _ = load(imported(tiny_gguf("llama", embeddings_as_trained), tmp_path))
    assert floating_dtypes(model.network) == {mx.bfloat16}


def test_other_models_keep_the_precision_of_their_float16_scales(tmp_path: Path) -> None:
    """Norms are float32 in the file, and used to make all activations float32."""
    model, notices = load(imported(tiny_gguf("llama", Kind.Q8_0), tmp_path))
    assert floating_dtypes(model.network) == {mx.float16}
    assert logits(model).dtype == model.dtype == mx.float16
    assert notices == []


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


def stored_in_float16(directory: Path, config: dict[str, Any]) -> Path:
    write_tiny_model(directory, config=config)
    file = str(directory / "model.safetensors")
    arrays: Any = mx.load(file)
    mx.eval(arrays)
    mx.save_safetensors(file, {name: a.astype(mx.float16) for name, a in arrays.items()})
    return directory


@pytest.mark.parametrize("name", ["gemma3", "gemma4", "recurrent_gemma"])
def test_gemmas_stored_in_float16_are_loaded_in_bfloat16(name: str, tmp_path: Path) -> None:
    directory = stored_in_float16(tmp_path / name, family_config(name))
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


def write_tied_model(directory: Path, name: str) -> Path:
    """The family's tiny model, without a head in its file."""
    config = family_config(name)
    write_tiny_model(directory, config=config)
    file = str(directory / "model.safetensors")
    arrays: Any = mx.load(file)
    mx.eval(arrays)
    arrays = {name: array for name, array in arrays.items() if "lm_head" not in name}
    mx.save_safetensors(file, arrays, {"format": "mlx"})
    return directory


def stored_parameters(directory: Path) -> int:
    arrays: Any = mx.load(str(directory / "model.safetensors"))
    return sum(array.size for array in arrays.values())


@pytest.mark.parametrize("name", HEADS)
def test_a_head_missing_from_the_files_is_not_counted(name: str, tmp_path: Path) -> None:
    directory = write_tied_model(tmp_path / "tied", name)
    assert describe(name, directory).parameters == stored_parameters(directory)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("dtype", ["stored", "float16"])
def test_a_tied_head_is_in_memory_once(name: str, dtype: str, tmp_path: Path) -> None:
    """Converting minicpm to another dtype made its head a separate array."""
    directory = write_tied_model(tmp_path / "tied", name)
    network = load_directory(directory, name, dtype=dtype, notify=print).network
    size = 4 if dtype == "stored" else 2
    assert held_bytes(network) == size * stored_parameters(directory)
    assert network(mx.array([[1, 2, 3]])).shape[-1] == family_config(name)["vocab_size"]


def test_a_separate_head_is_counted(tmp_path: Path) -> None:
    for name in ("llama", "gemma3_text", "minicpm"):
        directory = write_tiny_model(tmp_path / name, config=family_config(name))
        config = read_config(directory)
        network = build_skeleton(config)
        arrays = arrays_of(network, config, directory, weight_files(directory))
        assert parameter_count(network, arrays) == stored_parameters(directory)
