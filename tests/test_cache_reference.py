"""Any sequence of operations, on families of every kind, compared with a plain reference."""

from functools import cache as remembered

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx import nn

from mlxchat.cache import build
from mlxchat.cache.build import make_cache
from mlxchat.cache.layers import Cache, replaced, tokens_held, windows
from scripts.families import build_family
from tests.conftest import examples
from tests.reference import (
    NO_ROTATION,
    Rotation,
    evict_both,
    logits,
    reference_cache,
    references,
    restored,
    rewind_both,
    step_both,
)

pytestmark = pytest.mark.usefixtures("as_on_metal")

# The rotation of each window of a family, taken from its paper rather than its module.
ROTATIONS: dict[str, list[Rotation]] = {
    "llama": [Rotation(8, 500_000.0)] * 4,
    "stablelm": [Rotation(4)] * 4,
    "gpt_oss": [Rotation(8, 150_000.0)] * 4,
    "gemma3_text": [Rotation(8)] * 3 + [Rotation(8, 1_000_000.0)],
    "cohere2": [Rotation(8, 50_000.0, traditional=True)] * 3 + [NO_ROTATION],
    "smollm3": [Rotation(8, 5_000_000.0)] * 3 + [NO_ROTATION],
    "deepseek_v3": [Rotation(8, traditional=True, in_values=True)] * 4,
    "minicpm3": [Rotation(8, start=8)] * 4,
    "lfm2": [Rotation(8, 1_000_000.0)] * 2,
    "qwen3_next": [Rotation(4, 10_000_000.0)],
    "falcon_h1": [Rotation(8, 100_000_000_000.0)] * 4,
}


@remembered
def family(name: str) -> nn.Module:
    return build_family(name, rope_scaling={} if name == "minicpm3" else None)


operation = st.one_of(
    st.tuples(st.just("feed"), st.integers(1, 24)),
    st.tuples(st.just("decode"), st.integers(1, 12)),
    st.tuples(st.just("decode"), st.integers(60, 70)),
    st.tuples(st.just("rewind"), st.integers(1, 14)),
    st.tuples(st.just("evict"), st.integers(1, 5)),
    st.tuples(st.just("restore"), st.integers(0, 3)),
    st.tuples(st.just("fork"), st.integers(1, 3)),
)

Operations = list[tuple[str, int]]


def check(name: str, size: tuple[int, int], operations: Operations, limit: int, seed: int) -> None:
    """Compare the logits of every step with those of the reference."""
    model = family(name)
    window, keep = size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "POSITION_LIMIT", limit)
        cache = make_cache(model, window, keep)
    reference = reference_cache(model, window, keep, ROTATIONS[name])
    rng = np.random.default_rng(seed)
    for operation_name, n in operations:
        held = tokens_held(cache)
        is_settled = all(w.max_size and w.size() <= w.max_size for w in windows(cache))
        if operation_name in ("rewind", "evict") and not is_settled:
            # A prefill step still holds what the reference has evicted: more is rightly visible.
            continue
        if operation_name == "rewind":
            rewind_both(cache, references(reference), min(n, held))
        elif operation_name == "evict":
            start = min(keep + n, held)
            if start >= max(window.keep for window in windows(cache)):
                evict_both(cache, references(reference), start, min(start + n, held))
        elif operation_name in ("restore", "fork"):
            # Whatever becomes of one, the other does not change.
            other = cache
            is_fork = operation_name == "fork"
            cache = cache.fork() if is_fork else Cache(replaced(x, restored) for x in cache)
            for _ in range(n):
                logits(model, other, [7])
        else:
            tokens = rng.integers(0, 256, n).tolist()
            for step in [tokens] if operation_name == "feed" else [[token] for token in tokens]:
                step_both(model, cache, reference, step)


@pytest.mark.parametrize("name", sorted(ROTATIONS))
@settings(max_examples=examples(2))
@given(
    size=st.integers(2, 16).flatmap(lambda w: st.tuples(st.just(w), st.integers(0, w - 1))),
    operations=st.lists(operation, min_size=1, max_size=7),
    limit=st.sampled_from([64, 128, 2_048]),
    seed=st.integers(0, 1000),
)
def test_any_sequence_of_operations_gives_the_logits_of_the_reference(
    name: str, size: tuple[int, int], operations: Operations, limit: int, seed: int
) -> None:
    check(name, size, operations, limit, seed)


@pytest.mark.parametrize(
    ("size", "operations"),
    [
        # Steps that end right before, at and after the end of the window, and wider ones, in which
        # mlx-lm's rotating cache hides the kept tokens.
        *(
            ((16, keep), [(kind, n), ("decode", 6)] * 2)
            for keep in (0, 9)
            for kind, n in (("decode", 15), ("feed", 15), ("feed", 16), ("feed", 17), ("feed", 48))
        ),
        # The originals of rewound kept tokens used to replace those fed in their place.
        ((6, 4), [("decode", 40), ("rewind", 4), ("decode", 60)]),
        # After a pinned turn was released, the turns before it appeared twice.
        (
            (64, 4),
            [
                *(("feed", 40), ("evict", 16), ("feed", 3), ("evict", 4), ("feed", 3)),
                *(("evict", 10), ("decode", 30), ("evict", 1), ("restore", 2), ("decode", 60)),
            ],
        ),
        # A rewind of everything held.
        ((8, 2), [("decode", 20), ("rewind", 8), ("feed", 6), ("decode", 20)]),
        # A rewind after the ring has wrapped, and after the keys have moved back.
        ((12, 3), [("feed", 12), ("decode", 5), ("rewind", 3), ("decode", 80), ("rewind", 11)]),
    ],
    ids=str,
)
def test_so_do_sequences_that_went_wrong(size: tuple[int, int], operations: Operations) -> None:
    check("llama", size, [*operations, ("decode", 3)], 64 if size[0] < 32 else 128, 0)
