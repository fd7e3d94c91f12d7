"""Drafted tokens: accepted ones are as if decoded one by one, rejected ones leave no trace.

A model decodes the same tokens twice: one at a time, and several at a time with wrong guesses after
them. Both must give the same logits for each token, and leave the same cache. `test_product` drafts
with every family, in every form.
"""

from typing import Any

import mlx.core as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx import nn

from mlxchat.cache import Cache, make_cache, tokens_held
from mlxchat.cache.layers import windows
from mlxchat.cache.ring import DRAFT_SLOTS
from tests.conftest import build_random_model
from tests.reference import draft, random_tokens, step

MODEL = build_random_model()
VOCABULARY = 256


def check_same_state(cache: Cache, plain: Cache, tolerance: float) -> None:
    for ours, theirs in zip(windows(cache), windows(plain), strict=True):
        assert ours.placement == theirs.placement
        for mine, other in zip(ours.entries, theirs.entries, strict=True):
            assert (mine is None) == (other is None)
            if mine is not None and other is not None:
                np.testing.assert_allclose(
                    np.array(mine.astype(mx.float32)),
                    np.array(other.astype(mx.float32)),
                    atol=tolerance,
                )


def decode_both(
    network: nn.Module,
    caches: tuple[Cache, Cache],
    ids: list[int],
    plan: Any,
    tolerance: float = 2e-4,
) -> int:
    """Decode `ids` both ways; `plan` yields the tokens to draft and how many of them are right.
    Returns the number of tokens accepted from drafts."""
    cache, plain = caches
    done = drafted = 0
    while done < len(ids):
        rows, right = next(plan)
        rows = min(rows, cache.draft_room, len(ids) - done)
        if rows < 2:
            logits, right = step(network, cache, ids[done : done + 1]), 1
        else:
            right = max(min(right, rows), 1)
            wrong = [(id_ + 1) % VOCABULARY for id_ in ids[done + right : done + rows]]
            logits = draft(network, cache, [*ids[done : done + right], *wrong], right)
            drafted += right
        expected = np.concatenate([step(network, plain, [id_]) for id_ in ids[done : done + right]])
        np.testing.assert_allclose(logits, expected, atol=tolerance, rtol=1e-3)
        done += right
    return drafted


@settings(deadline=None)
@given(
    window=st.integers(6, 40),
    keep=st.sampled_from([0, 4]),
    prompt=st.integers(1, 60),
    plan=st.lists(st.tuples(st.integers(2, DRAFT_SLOTS), st.integers(1, DRAFT_SLOTS)), min_size=1),
)
def test_accepted_tokens_are_as_if_decoded_one_by_one(
    window: int, keep: int, prompt: int, plan: list[tuple[int, int]]
) -> None:
    caches = make_cache(MODEL, window, keep), make_cache(MODEL, window, keep)
    for cache in caches:
        step(MODEL, cache, random_tokens(prompt))
    cycle = iter(plan * 200)
    decode_both(MODEL, caches, random_tokens(200, seed=1), cycle)
    check_same_state(*caches, tolerance=1e-4)
    assert tokens_held(caches[0]) == window
    assert all(w.keys is not None and w.keys.shape[2] <= window + 16 for w in windows(caches[0]))
