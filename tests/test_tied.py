"""Output heads tied to the embedding: counted once, and in memory once."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxchat.models.describe import describe
from mlxchat.models.load import load_directory
from mlxchat.models.skeleton import build_skeleton, held_bytes, parameter_count, read_config
from mlxchat.models.weights import arrays_of, weight_files
from scripts.families import family_config
from scripts.tiny_model import write_tiny_model

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
