"""Every model that mlx-lm has: a bound that is real, finite logits, positions that never run out.

What cannot be bounded must be refused, and for the reason that is written down.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from mlxchat.cache import build, make_cache, positions_bounded
from mlxchat.cache.layers import recurrent_states, windows
from mlxchat.errors import CacheError, ModelUnsupported
from mlxchat.models.arrays import evaluate
from mlxchat.models.skeleton import build_skeleton
from scripts.families import (
    BEGIN,
    CONFIGS,
    END,
    METAL_ONLY,
    README,
    build_family,
    families_table,
    family_config,
    module_names,
)

WINDOW, KEEP, STEP = 24, 4, 16

REFUSED = {"afm7", "deepseek_v41", "gpt2", "gpt_bigcode"}

# Its module imports a package that is not among mlx-lm's requirements.
NOT_BUILT = {"olmo"}

# Models to which positions are more than a rotation of keys, so that they cannot be moved.
POSITIONS_RUN_ON = {"bailing_hybrid", "bailing_moe_linear", "iquestloopcoder"}

# Models whose attention sees the position itself, in the scale of their queries or in norms behind
# their ropes: moved back, they rightly answer as they would at that position.
ABSOLUTE = {"hunyuan", "hunyuan_v1_dense", "llama4", "ministral3", "mistral3", "mistral4"}

# Models of mlx-lm that answer differently for each step size: in the one, tokens see the future;
# the mask of the other is a token wider than its cache.
INEXACT = {"phi3small", "plamo3"}

BUILT = sorted(
    set(CONFIGS) - REFUSED - NOT_BUILT - (set() if mx.metal.is_available() else METAL_ONLY)
)


def test_every_module_of_mlx_lm_has_a_tiny_family() -> None:
    """A newer mlx-lm with another model fails here, until it has a configuration and a verdict."""
    assert set(module_names()) <= set(CONFIGS)


def run(model: nn.Module, cache: list[Any]) -> Iterator[mx.array]:
    """Prefill 3·W tokens in steps, then decode 1.5·W; yields each step's last logits."""
    edges = [*range(0, 3 * WINDOW, STEP), *range(3 * WINDOW, 9 * WINDOW // 2 + 1)]
    tokens = np.random.default_rng(0).integers(0, 256, edges[-1])
    for start, stop in pairwise(edges):
        found = model(mx.array(tokens[None, start:stop]), cache=cache)[0, -1].astype(mx.float32)
        mx.eval(found, [layer.state for layer in cache])
        yield found


def entries(window: Any) -> int:
    return 0 if window.keys is None else window.keys.shape[2]


@pytest.mark.parametrize("name", BUILT)
def test_the_bound_holds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "POSITION_LIMIT", 2 * WINDOW)
    model = build_family(name)
    cache = make_cache(model, WINDOW, KEEP)
    assert positions_bounded(cache) == (name not in POSITIONS_RUN_ON)
    constant_bytes = set()
    for step, found in enumerate(run(model, cache)):
        # Some models forbid tokens, with a logit of minus infinity.
        assert not mx.isnan(found).any()
        assert mx.isfinite(found).sum() > 100
        in_prefill = step < 3 * WINDOW // STEP + 1
        for window in windows(cache):
            assert window.max_size is not None
            assert window.max_size <= WINDOW
            assert entries(window) <= window.max_size + (STEP - 1 if in_prefill else 0)
            kept = window._originals.tokens
            assert kept <= KEEP
            stored = [x for x in (window.keys, window.values) if x is not None]
            entry_bytes = sum(x.nbytes // x.shape[2] for x in stored)
            assert window.nbytes <= (entries(window) + kept) * entry_bytes
            assert window.position_limit is None or window.offset < window.position_limit
        constant_bytes.add(sum(state.nbytes for state in recurrent_states(cache)))
    assert len(constant_bytes) == 1
    if name not in POSITIONS_RUN_ON:
        assert all(window.offset < 2 * WINDOW for window in windows(cache))


@pytest.mark.parametrize("name", sorted(set(BUILT) - POSITIONS_RUN_ON - ABSOLUTE - INEXACT))
def test_moved_back_often_or_never_the_logits_are_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_family(name)
    never = make_cache(model, WINDOW, KEEP)
    monkeypatch.setattr(build, "POSITION_LIMIT", 2 * WINDOW)
    often = make_cache(model, WINDOW, KEEP)
    for found, expected in zip(run(model, often), run(model, never), strict=True):
        np.testing.assert_allclose(np.array(found), np.array(expected), atol=2e-3)
    assert all(
        a.offset < b.offset for a, b in zip(windows(often), windows(never), strict=True) if b.total
    )


@pytest.mark.parametrize("name", sorted(set(BUILT) - INEXACT))
def test_an_unbounded_cache_is_mlx_lms_own(name: str) -> None:
    """Same logits as with the caches that the model makes for itself."""
    model = build_family(name)
    tokens = mx.array(np.random.default_rng(1).integers(0, 256, (1, 20)))
    own = build._native_cache(model)
    ours = make_cache(model)
    for step in (tokens[:, :11], tokens[:, 11:19], tokens[:, 19:]):
        np.testing.assert_allclose(
            np.array(model(step, cache=ours)[0, -1].astype(mx.float32)),
            np.array(model(step, cache=own)[0, -1].astype(mx.float32)),
            atol=1e-4,
        )


def evaluated_elsewhere(name: str) -> nn.Module:
    """A family as the chat gets it: made and evaluated in a thread of its own."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_built_and_evaluated, name).result()


def _built_and_evaluated(name: str) -> nn.Module:
    model = build_skeleton(family_config(name))
    evaluate(model)
    return model


@pytest.mark.parametrize("name", sorted(set(BUILT) | REFUSED))
def test_a_network_evaluated_in_one_thread_runs_in_another(name: str) -> None:
    """The chat crashed on every Llama 3.x: the frequencies of its rope are no parameter, so they
    stayed unevaluated in the thread that loaded the model."""
    model = evaluated_elsewhere(name)
    mx.eval(model(mx.array([[1, 2, 3]]), cache=make_cache(model)))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_bounded_is_refused_by_name(name: str) -> None:
    model = build_family(name)
    with pytest.raises(CacheError, match="cannot bound"):
        make_cache(model, WINDOW, KEEP)
    assert mx.isfinite(model(mx.array([[1, 2, 3]]), cache=make_cache(model))).all()


@pytest.mark.parametrize("name", sorted(NOT_BUILT))
def test_a_module_that_misses_its_package_says_so(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints to stdout, where the text belongs, and leaves with SystemExit."""
    with pytest.raises(ModelUnsupported, match="ai2-olmo"):
        build_family(name)
    assert capsys.readouterr().out == ""


def test_the_readmes_table_is_the_one_that_is_found() -> None:
    """Made again by `python -m scripts.families --write`."""
    text = README.read_text(encoding="utf-8")
    assert text.split(BEGIN)[1].split(END)[0].strip() == families_table()
