"""The tests' tiny models, in every form that users run."""

from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mlxchat.models.load import load_directory
from scripts import metal
from scripts.families import write_family
from scripts.forms import FORMS


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "deepseek_v3", "rwkv7", "afm7"])
def test_a_family_is_loaded_in_the_form_it_was_saved_in(
    name: str, form: str, tmp_path: Path
) -> None:
    """Some families leave weights unquantized, need more bits for some, or cannot pack a layer."""
    directory = write_family(tmp_path / "model", name, form)
    written = mx.load(str(directory / "model.safetensors"))
    assert isinstance(written, dict)

    # A CPU runs unquantized experts only in float32.
    with metal.imitated():
        model = load_directory(directory, name, dtype="stored", notify=print)

    loaded = dict(tree_flatten(model.network.parameters()))
    assert loaded.keys() == written.keys()
    assert all(mx.array_equal(loaded[path], array) for path, array in written.items())
    assert {path: array.dtype for path, array in loaded.items()} == {
        path: array.dtype for path, array in written.items()
    }
    expected = {"float32": mx.float32, "float16": mx.float16}.get(form, mx.bfloat16)
    assert model.dtype == expected
    assert (mx.uint32 in {array.dtype for array in loaded.values()}) == form.endswith("bit")
