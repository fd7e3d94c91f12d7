"""Every model in mlx-lm: none is missing, all are unchanged without a window, some are refused.

`test_product` checks windows, positions and everything saved, in every form and in a thread.
"""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlxchat import platform
from mlxchat.cache import build, powers
from mlxchat.cache.build import make_cache
from mlxchat.errors import CacheError
from mlxchat.models.load import load_directory
from scripts import metal
from scripts.families import (
    CONFIGS,
    METAL_ONLY,
    build_family,
    judge_family,
    listed_verdicts,
    module_names,
    write_family,
)
from tests.product import FAMILIES, INEXACT, NOT_BUILT, TWELVE
from tests.reference import logits, random_tokens

REFUSED = {"afm7", "deepseek_v41", "gpt2", "gpt_bigcode"}


def test_every_module_of_mlx_lm_has_a_tiny_family() -> None:
    """A newer mlx-lm with a new model fails here until it gets a configuration and a verdict."""
    assert set(module_names()) <= set(CONFIGS)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in TWELVE else pytest.mark.slow)
        for name in sorted(set(FAMILIES) - REFUSED - INEXACT)
    ],
)
def test_an_unbounded_cache_equals_mlx_lms_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "exp_is_slow", lambda: True)
    monkeypatch.setattr(powers, "_are_faster", True)
    monkeypatch.setattr(powers, "MIN_SCORES", 0)
    model = build_family(name)
    powers.install_powers(model)
    tokens = random_tokens(20)
    own, ours = build._native_cache(model), make_cache(model)
    for step in (tokens[:11], tokens[11:19], tokens[19:]):
        found = logits(model, ours, step)[-1]
        with powers.mlx_lms_own():
            expected = logits(model, own, step)[-1]
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_an_unboundable_family_is_refused_by_name(name: str) -> None:
    model = build_family(name)
    with pytest.raises(CacheError, match="cannot bound"):
        make_cache(model, 24, 4)
    assert mx.isfinite(model(mx.array([[1, 2, 3]]), cache=make_cache(model))).all()


def test_the_manuals_table_lists_every_family_once() -> None:
    """Update it with `python -m scripts.families --write`; test_product checks its rows."""
    assert sorted(listed_verdicts()) == sorted(CONFIGS)
    for name in METAL_ONLY | NOT_BUILT:
        assert judge_family(name) == listed_verdicts()[name]


# Besides the twelve, one that cannot pack a layer, and one that leaves weights unquantized.
@pytest.mark.parametrize(("name", "form"), [*TWELVE.items(), ("afm7", "4-bit"), ("rwkv7", "8-bit")])
def test_a_family_is_loaded_in_the_form_it_was_saved(name: str, form: str, tmp_path: Path) -> None:
    """Some families leave weights unquantized, need more bits for some, or cannot pack a layer."""
    directory = write_family(tmp_path / "model", name, form)
    written = mx.load(str(directory / "model.safetensors"))
    assert isinstance(written, dict)

    # A CPU runs unquantized experts only in float32.
    with metal.imitated():
        model = load_directory(directory, name, dtype="stored", notify=print)

    loaded = dict(tree_flatten(model.network.parameters()))
    assert all(mx.array_equal(loaded[path], array) for path, array in written.items())
    dtypes = {path: array.dtype for path, array in written.items()}
    assert {path: array.dtype for path, array in loaded.items()} == dtypes
    assert model.dtype == {"float32": mx.float32, "float16": mx.float16}.get(form, mx.bfloat16)
    assert (mx.uint32 in {array.dtype for array in loaded.values()}) == form.endswith("bit")
