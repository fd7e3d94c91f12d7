"""Data to be saved is evaluated immediately, in the thread that made it.

On Metal, each `np.array` of a lazy array waits for the GPU, and a lazy array can only be evaluated
by its own thread.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxchat.cache.build import make_cache
from mlxchat.cache.layers import Cache, windows
from mlxchat.chat.window import Ledger
from mlxchat.engine.prefill import prefill
from mlxchat.models.model import Model
from mlxchat.store import snapshot, tensor_file
from mlxchat.store.prefix_cache import PAGE, PAGES_IN_FLIGHT, PrefixCache, Recorder
from mlxchat.store.snapshot import ModelPrint
from scripts.families import build_family
from tests.test_prefix_cache import PLENTY, make_model, text

FAMILIES = ["qwen3", "gemma3_text", "qwen3_next"]
TOKENS = PAGES_IN_FLIGHT * PAGE


class Evaluations:
    """Counts calls of `mx.eval`, and checks that only evaluated arrays are passed to numpy."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._known: dict[int, mx.array] = {}
        self._eval, self._array = mx.eval, np.array
        monkeypatch.setattr(mx, "eval", self.eval)
        monkeypatch.setattr(np, "array", self.array)

    def eval(self, *trees: Any) -> None:
        self.count += 1
        self._eval(*trees)
        self._note(trees)

    def array(self, value: Any, *given: Any, **how: Any) -> np.ndarray:
        if isinstance(value, mx.array):
            assert id(value) in self._known, "an array is evaluated by itself"
        return self._array(value, *given, **how)

    def _note(self, value: Any) -> None:
        if isinstance(value, mx.array):
            self._known[id(value)] = value
        elif isinstance(value, list | tuple):
            for each in value:
                self._note(each)


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Model:
    return make_model(build_family(request.param))


@pytest.fixture
def pages(model: Model, tmp_path: Path) -> Iterator[PrefixCache]:
    opened = PrefixCache(tmp_path / "prefixes", model, PLENTY)
    yield opened
    opened.close()


def lazily_filled(model: Model, tokens: int) -> Cache:
    """A cache with tokens that have not been evaluated."""
    cache = make_cache(model.network, 2 * TOKENS)
    model.network(mx.array(text(tokens))[None], cache=cache)
    return cache


def test_a_snapshot_is_taken_in_one_evaluation(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluating each array alone took dozens of waits for the GPU after each turn."""
    printed = ModelPrint(model).of(2 * TOKENS, 4, None)
    cache = lazily_filled(model, 100)
    evaluations = Evaluations(monkeypatch)
    snapshot.take(cache, Ledger(2 * TOKENS, 4, text(100)), printed, {})
    assert evaluations.count == 1


def test_a_fingerprint_of_a_large_model_is_made_in_batches(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sampling copies a transposed weight: all at once would copy the whole model."""
    before = snapshot._weights(model)
    monkeypatch.setattr(snapshot, "SAMPLED_BYTES", 10_000)
    evaluations = Evaluations(monkeypatch)
    assert snapshot._weights(model) == before
    assert evaluations.count > 1


def test_the_pages_of_a_step_are_held_in_one_evaluation(
    model: Model, pages: PrefixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_cache(model.network, 2 * TOKENS)
    ids = text(TOKENS)
    record = pages.recorder(cache, ids, 0, 2 * TOKENS)
    assert record is not None
    model.network(mx.array(ids)[None], cache=cache)
    evaluations = Evaluations(monkeypatch)
    record(ids)
    assert evaluations.count == 1


def test_all_pages_of_a_prefix_are_read_back_in_one_evaluation(
    model: Model, pages: PrefixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_cache(model.network, 2 * TOKENS)
    ids = text(TOKENS)
    record = pages.recorder(cache, ids, 0, 2 * TOKENS)
    assert record is not None
    prefill(model.network, cache, ids, step_size=TOKENS, on_held=record)
    pages.close()
    opened = PrefixCache(pages.files.directory, model, PLENTY)
    again = make_cache(model.network, 2 * TOKENS)
    assert opened.like
    assert opened.page_keys(ids)
    evaluations = Evaluations(monkeypatch)
    assert opened.fill(again, np.concatenate([ids, ids[:1]]), 2 * TOKENS) == TOKENS
    assert evaluations.count == 1
    opened.close()


def test_pending_pages_do_not_keep_the_cache_in_memory() -> None:
    """A slice of one head's keys is contiguous, so that hold() alone would not copy it."""
    model = make_model(build_family("gemma3_text"))
    cache = make_cache(model.network)
    ids = text(PAGE)
    prefill(model.network, cache, ids, step_size=PAGE)
    for window in windows(cache):
        assert window.keys is not None
        room = mx.zeros((1, 1, 100_000, window.keys.shape[3]))
        window.keys = window.values = mx.concatenate([room, room, window.keys], axis=2)
        window._ring.size = window._ring.next = window.keys.shape[2]
    mx.eval([window.keys for window in windows(cache)])
    pages = PrefixCache(Path("unused"), model, 0)
    recorder = Recorder(pages, cache, ids, keys=["key"], stored=0, now=0)
    before = mx.get_active_memory()
    held = tensor_file.hold(recorder._entries(PAGE))
    for window in windows(cache):
        window.keys = window.values = None
    assert before - mx.get_active_memory() > 4 * 200_000 * 8 * 4 * 0.9
    assert held["0.keys"].shape == (1, 1, PAGE, 8)
