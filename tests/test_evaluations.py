"""Data to be saved is evaluated immediately, in the thread that made it.

On Metal, each `np.array` of a lazy array waits for the GPU, and a lazy array can only be evaluated
by its own thread.
"""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlxchat.cache.build import make_cache
from mlxchat.chat.window import Ledger
from mlxchat.store import snapshot
from mlxchat.store.prefix_cache import PAGE, PAGES_IN_FLIGHT, PrefixCache
from mlxchat.store.snapshot import ModelPrint
from scripts.families import build_family
from tests.test_prefix_cache import PLENTY, make_model, text

TOKENS = PAGES_IN_FLIGHT * PAGE


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `mx.eval` is called with. No numpy array is made of a lazy array."""
    evaluate, make, seen, known = mx.eval, np.array, list[Any](), set[int]()

    def noting(*trees: Any) -> None:
        seen.append(trees)
        evaluate(*trees)
        known.update(id(array) for _, array in tree_flatten(list(trees)))

    def array(value: Any, *given: Any, **how: Any) -> np.ndarray:
        assert not isinstance(value, mx.array) or id(value) in known
        return make(value, *given, **how)

    monkeypatch.setattr(mx, "eval", noting)
    monkeypatch.setattr(np, "array", array)
    return seen


@pytest.mark.parametrize("family", ["gemma3_text", "qwen3_next"])
def test_snapshots_and_pages_are_each_taken_and_read_in_one_evaluation(
    family: str, evaluations: list[Any], tmp_path: Path
) -> None:
    """Evaluating each array alone took dozens of waits for the GPU after each turn."""
    model = make_model(build_family(family))
    printed = ModelPrint(model).of(2 * TOKENS, 4, None)
    pages = PrefixCache(tmp_path / "prefixes", model, PLENTY)
    cache, ids = make_cache(model.network, 2 * TOKENS), text(TOKENS)
    record = pages.recorder(cache, ids, 0, 2 * TOKENS)
    assert record is not None
    model.network(mx.array(ids)[None], cache=cache)
    evaluations.clear()
    record(ids)
    assert len(evaluations) == 1
    model.network(mx.array(ids[:9])[None], cache=cache)
    snapshot.take(cache, Ledger(2 * TOKENS, 4, np.concatenate([ids, ids[:9]])), printed, {})
    assert len(evaluations) == 2
    pages.close()
    opened = PrefixCache(pages.files.directory, model, PLENTY)
    again = make_cache(model.network, 2 * TOKENS)
    assert opened.like
    assert opened.page_keys(ids)
    evaluations.clear()
    assert opened.fill(again, np.concatenate([ids, ids[:1]]), 2 * TOKENS) == TOKENS
    assert len(evaluations) == 1
    opened.close()
