"""The product of mlx-lm's families, forms of weights and ways in, on tiny random models. Each way
in matches the plain computation, within a tolerance for the form, or is refused with a reason. Half
precision is computed as on Metal."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import mlxchat  # noqa: F401  first, to prepare OpenBLAS and mlx-lm's modules

# isort: split

import mlx.core as mx
import numpy as np
import pytest

from mlxchat.cache import build, powers
from mlxchat.cache.block import Block
from mlxchat.cache.build import make_cache, make_joinable
from mlxchat.cache.layers import (
    Cache,
    ChunkCache,
    most_together,
    plain_refusal,
    recurrent_states,
    tokens_held,
    windows,
)
from mlxchat.cache.positions import KeyShift
from mlxchat.cache.side_by_side import RowsCache, find_support
from mlxchat.chat.window import Ledger
from mlxchat.engine.batch import prefill_together
from mlxchat.engine.prefill import BlockReader, prefill
from mlxchat.errors import CacheError
from mlxchat.models.model import Model
from mlxchat.store import snapshot
from mlxchat.store.prefix_cache import PAGE, PrefixCache
from mlxchat.store.snapshot import ModelPrint
from mlxchat.text.tokens import Prompt
from scripts import metal
from scripts.families import CONFIGS, METAL_ONLY, Verdict, judge
from tests.product_answers import compare_answers
from tests.product_case import KEEP, STEP, WINDOW, Case, Refused
from tests.reference import (
    ReferenceCache,
    draft,
    evict_both,
    reference_cache,
    references,
    rewind_both,
)
from tests.reference import random_tokens as tokens

# Tokens between the kept ones and the evicted turn: a pinned turn.
FRONT = 3

# Its module needs a package that mlx-lm does not install.
NOT_BUILT = {"olmo"}

# The families of `make test`, each of another kind, and their forms; `make test-all` has all.
TWELVE = {
    "llama": "float16",  # plain
    "qwen3_moe": "8-bit",  # experts
    "deepseek_v3": "8-bit",  # latent attention
    "gpt_oss": "4-bit",  # attention sinks, and sliding windows between the others
    "gemma3_text": "bfloat16",  # sliding windows and a rope of their own
    "gemma3n": "float32",  # layers that share keys, one mask and one offset
    "llama4": "float32",  # attention within chunks
    "phi3small": "float32",  # a window that stays in order
    "falcon_h1": "float32",  # attention beside a recurrent state
    "rwkv7": "float32",  # a recurrent state alone
    "iquestloopcoder": "float32",  # keys that cannot be moved
    "gpt2": "float16",  # learned positions: refused a window
}

FAMILIES = sorted(set(CONFIGS) - NOT_BUILT - (set() if mx.metal.is_available() else METAL_ONLY))

# Models whose attention depends on absolute positions, through the scale of their queries or norms
# after their ropes: once moved back, they rightly answer as at that position.
ABSOLUTE = {"hunyuan", "hunyuan_v1_dense", "llama4", "ministral3", "mistral3", "mistral4"}

# mlx-lm models whose answers depend on the step size: one attends to groups of slots, one lets
# tokens see the future, and one has a mask one token wider than its cache.
INEXACT = {"minimax_m3_vl", "phi3small", "plamo3"}

# A window slightly larger than a page, so that a prefix of one page can be reused.
LONG, ROOMY = PAGE + 30, 512
HEAD, BLOCK = 5, 40


class InFloat32:
    """A shift for the reference, without rounding of its own."""

    def __init__(self, shift: KeyShift | None) -> None:
        self.shift = shift
        self.in_values = shift is not None and shift.in_values

    def __call__(self, keys: mx.array, distance: int) -> mx.array:
        if self.shift is None:
            return keys
        return self.shift(keys.astype(mx.float32), distance).astype(keys.dtype)


class Pair:
    """Our cache and the plain reference, fed one token at a time."""

    def __init__(self, case: Case, way: str) -> None:
        self.case, self.way = case, way
        self.ours = case.cache()
        self.chunked = any(isinstance(window, ChunkCache) for window in windows(self.ours))
        rotations: Any = [InFloat32(window.shift) for window in windows(self.ours)]
        network = case.model.network
        self.plain = reference_cache(network, WINDOW, KEEP, rotations)
        if self.chunked:
            # Compared within the range of mlx-lm's own cache; tests/test_chunk.py covers the rest.
            self.plain = build._native_cache(network)
        self.fed = 0
        self.recurrent_bytes: set[int] = set()

    def references(self) -> list[tuple[Any, ReferenceCache]]:
        if self.chunked:
            return []
        return list(zip(windows(self.ours), references(self.plain), strict=True))

    def feed(self, ids: Sequence[int], step: int) -> None:
        """Feed both the tokens, ours in steps, and compare the last logits."""
        if self.case.family in INEXACT:
            step = 1
        for start in range(0, len(ids), step):
            part = ids[start : start + step]
            found = self.case.logits(self.ours, part)
            self.fed += len(part)
            self.check_bounds(len(part))
            for window, plain in self.references():
                plain.anchor = window._anchor + plain.offset + len(part) - window.offset
            if self.chunked and self.fed > WINDOW:
                assert not np.isnan(found).any()
                continue
            rows = [self.case.logits(self.plain, [token]) for token in part]
            self.case.compare(self.way, found, rows[-1])

    def check_bounds(self, step: int) -> None:
        """Check the promised bounds of storage and positions in every layer."""
        for window in windows(self.ours):
            assert window.max_size is not None
            assert window.max_size <= WINDOW
            assert window.size() <= window.max_size + step - 1
            stored = [array for array in (window.keys, window.values) if array is not None]
            capacity = max((array.shape[2] for array in stored), default=0)
            assert capacity <= window.max_size + step - 1
            assert window._originals.tokens <= KEEP + FRONT
            assert window.position_limit is None or window.offset < window.position_limit
        self.recurrent_bytes.add(sum(state.nbytes for state in recurrent_states(self.ours)))
        assert len(self.recurrent_bytes) == 1


def read_and_decode(case: Case) -> None:
    """Prefill past the window in steps, then decode past it again."""
    pair = Pair(case, "prefill")
    pair.feed(tokens(2 * STEP), STEP)
    pair.way = "decode"
    pair.feed(tokens(WINDOW - 4, seed=1), 1)
    pair.way = "rewind"
    rewind_both(pair.ours, references(pair.plain), 5)
    pair.feed(tokens(4, seed=2), 2)
    # Until single tokens fill the ring, a prefill step holds more than the reference.
    pair.feed(tokens(2, seed=6), 1)
    evict_turn(pair)


def evict_turn(pair: Pair) -> None:
    pair.way = "evict"
    held = tokens_held(pair.ours)
    if not held:
        raise Refused("recurrent layers cannot evict single tokens")
    start = min(KEEP + FRONT, held // 2)
    try:
        evict_both(pair.ours, references(pair.plain), start, min(start + 6, held - 1))
    except CacheError as error:
        raise Refused(str(error)) from error
    pair.feed(tokens(4, seed=3), 4)
    pair.feed(tokens(4, seed=4), 1)


def snapshot_and_restore(case: Case) -> None:
    """Save a wrapped window, and restore it to the bit with a newly loaded model."""
    cache = case.cache()
    ledger = Ledger(WINDOW, KEEP)
    for step in (tokens(STEP), tokens(STEP, seed=1), *([token] for token in tokens(9, seed=2))):
        case.logits(cache, step)
        ledger.add(np.array(step, np.int32))
    path = case.directory / "snapshot"
    snapshot.take(cache, ledger, _print(case.model), {})(path)
    other = Case.__new__(Case)
    other.model = case.load()
    empty = make_cache(other.model.network, WINDOW, KEEP)
    restored = snapshot.restore(path, empty, _print(other.model))
    assert np.array_equal(restored.ledger.ids, ledger.ids)
    for token in tokens(8, seed=3):
        case.compare("snapshot", other.logits(restored.cache, [token]), case.logits(cache, [token]))


def _print(model: Model) -> Any:
    return ModelPrint(model).of(WINDOW, KEEP, None)


def known_prefix(case: Case) -> None:
    """Read a prompt twice: the second time its prefix comes from disk, to the bit."""
    first = _read_prompt(case, known=0)
    again = _read_prompt(case, known=PAGE)
    for token in tokens(4, seed=5):
        case.compare("prefix", case.logits(again, [token]), case.logits(first, [token]))


def _read_prompt(case: Case, known: int) -> list[Any]:
    ids = np.array(tokens(LONG), np.int32)
    cache = case.cache(ROOMY)
    pages = PrefixCache(case.directory / "pages", case.model, 1 << 30)
    if reason := plain_refusal(cache):
        raise Refused(reason)
    cached = pages.fill(cache, ids, ROOMY)
    assert cached == known
    record = pages.recorder(cache, ids, cached, ROOMY)
    prefill(case.model.network, cache, ids[cached:], step_size=PAGE, on_held=record)
    pages.close()
    assert pages.error is None
    return cache


class KeptBlocks:
    """An in-memory store."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[bytes, bytes], Block] = {}

    def load(self, head: np.ndarray, ids: np.ndarray) -> Block | None:
        return self.blocks.get((head.tobytes(), ids.tobytes()))

    def save(self, head: np.ndarray, ids: np.ndarray, block: Block) -> None:
        self.blocks[head.tobytes(), ids.tobytes()] = block


def joined_block(case: Case) -> None:
    """Join a block, read after the head alone, after another one. The first layer's entries, which
    do not depend on other tokens, equal those of an ordinary prefill."""
    cache = case.cache(ROOMY)
    try:
        make_joinable(case.model.network, cache)
    except CacheError as error:
        raise Refused(str(error)) from error
    ids = np.array(tokens(HEAD + 2 * BLOCK + 1), np.int32)
    spans = ((HEAD, HEAD + BLOCK), (HEAD + BLOCK, HEAD + 2 * BLOCK))
    reader = BlockReader(Prompt(ids, (), HEAD, spans), KeptBlocks())
    assert reader(case.model.network, cache, ids, step_size=STEP) == len(ids)
    plain = case.cache(ROOMY)
    prefill(case.model.network, plain, ids, step_size=STEP)
    for found, expected in zip(_first_layer(cache), _first_layer(plain), strict=True):
        held = min(found.shape[2], expected.shape[2])
        case.compare("block", found[:, :, -held:], expected[:, :, -held:])


def _first_layer(cache: Cache) -> list[np.ndarray]:
    keys, values, _ = next(window for window in windows(cache) if window.total).entries
    assert keys is not None
    assert values is not None
    return [np.array(array.astype(mx.float32)) for array in (keys, values)]


# Tokens drafted at a time, and how many of them are right.
# A single one is drafted only to measure its cost.
DRAFTS = ((2, 1), (1, 1), (16, 5), (5, 5), (9, 1), (16, 16), (3, 2), (16, 15), (7, 4))


def drafted_tokens(case: Case) -> None:
    """Draft tokens, right and wrong ones, while the window fills, wraps and moves."""
    cache, plain = case.cache(), case.cache()
    for each in (cache, plain):
        case.logits(each, tokens(STEP, seed=1))
        case.logits(each, tokens(1, seed=2))
    if not cache.draft_room:
        raise Refused("its cache cannot take back drafted tokens")
    network, text = case.model.network, tokens(2 * WINDOW, seed=3)
    plan = cycle(DRAFTS)
    while text:
        rows, right = next(plan)
        rows = min(rows, cache.draft_room, len(text))
        right = min(right, rows)
        wrong = [255 - id_ for id_ in text[right:rows]]
        if rows:
            found = draft(network, cache, [*text[:right], *wrong], right)
        else:
            right, found = 1, [case.logits(cache, text[:1])]
        for row, id_ in zip(found, text[:right], strict=True):
            case.compare("draft", row, case.logits(plain, [id_]))
        text = text[right:]


# Lengths of rows that are decoded together, the longest of which fills its window after some steps.
ROWS_STEPS = 6
ROWS = (1, 5, WINDOW - ROWS_STEPS)


def rows_side_by_side(case: Case) -> None:
    """Decode unequal rows together, let one make room, and move one that fills its window."""
    network = case.model.network
    reason, shares = find_support(network, case.cache, WINDOW)
    if reason is not None:
        raise Refused(reason)
    rows = RowsCache(network, case.cache(), WINDOW)
    alone: dict[int, Cache] = {}

    def join(length: int, seed: int) -> None:
        cache = case.cache()
        case.logits(cache, tokens(length, seed))
        alone[rows.add(cache)] = cache

    for seed, length in enumerate(ROWS):
        join(length, seed)
    for cache, together, row, length in read_together(case, case.cache(), shares=False):
        alone[rows.add(together, row, length)] = cache
    if shares:
        start = case.cache()
        for cache, together, row, length in read_together(case, start, shares=True):
            alone[rows.add(together, row, length, start)] = cache
    for step in range(ROWS_STEPS):
        if step == 4:
            rows.leave(1)
            join(3, seed=4)
        ids = tokens(rows.seats, seed=10 + step)
        rows.begin_step()
        found = network(mx.array(ids)[:, None], cache=rows)[:, -1].astype(mx.float32)
        for seat, cache in alone.items():
            case.compare("rows", np.array(found[seat]), case.logits(cache, [ids[seat]]))
    longest = ROWS.index(max(ROWS))
    moved = case.cache()
    rows.move_to(moved, longest)
    for id_ in tokens(WINDOW // 2, seed=5):
        case.compare("rows", case.logits(moved, [id_]), case.logits(alone[longest], [id_]))


def read_together(
    case: Case, shared: Cache, *, shares: bool
) -> Iterator[tuple[Cache, Cache, int, int]]:
    """Two prompts of different lengths after the same beginning, for which `shared` is empty: each
    in a cache of its own, and its row and length in one that both were read into."""
    case.logits(shared, tokens(2, seed=6))
    texts = [np.array(tokens(length, seed=7), np.int32) for length in (1, 4)]
    most = most_together(shared)
    if most is not None and 2 + max(map(len, texts)) > most:
        return
    read = prefill_together(case.model.network, shared, texts, shares=shares)
    for ids, (together, row) in zip(texts, read, strict=True):
        own = shared.fork()
        case.logits(own, ids.tolist())
        yield own, together, row, 2 + len(ids)


def constrained_answer(case: Case) -> None:
    """Answer under constraints while the window wraps, or without one if it cannot be bounded."""

    def new_cache() -> Cache:
        try:
            return case.cache()
        except Refused:
            return make_cache(case.model.network)

    case.errors["answer"] = compare_answers(case.model, new_cache)


WAYS: dict[str, Callable[[Case], None]] = {
    "window": read_and_decode,
    "draft": drafted_tokens,
    "snapshot": snapshot_and_restore,
    "prefix": known_prefix,
    "block": joined_block,
    "rows": rows_side_by_side,
    "answer": constrained_answer,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of each way in: its errors, step by step, or the reason it is refused."""

    verdict: Verdict
    dtype: str
    errors: dict[str, list[float]]
    refused: dict[str, str]


@contextmanager
def computing(family: str, form: str) -> Iterator[None]:
    """Compute as a GPU would in the forms meant for one, and move keys often."""
    backend = nullcontext() if form == "float32" else metal.imitated()
    with backend, pytest.MonkeyPatch.context() as patch:
        # So that few tokens use them, too.
        patch.setattr(powers, "MIN_SCORES", 0)
        if family not in ABSOLUTE:
            patch.setattr(build, "POSITION_LIMIT", 2 * WINDOW)
        yield


# The ways in that one test tries.
GROUPS = (("window",), ("draft",), ("snapshot", "prefix", "block"), ("rows",), ("answer",))


def try_ways(family: str, form: str, ways: Sequence[str], directory: Path) -> Outcome:
    """Load the family in this form and try these ways in."""
    refused: dict[str, str] = {}
    case = Case(family, form, directory)
    for way in ways:
        try:
            WAYS[way](case)
        except Refused as error:
            refused[way] = str(error)
    verdict = judge(case.model.network, case.cache_or_error)
    return Outcome(verdict, str(case.model.dtype).removeprefix("mlx.core."), case.errors, refused)


# The maximum error of a step. In half precision, the cache and the reference round moved keys at
# different times, which tiny random models amplify, and rounding may select another expert or other
# tokens to attend to in some steps. So only the best quarter of the steps counts.
TOLERANCES = {"float32": 3e-5, "float16": 0.05, "bfloat16": 0.2}

# What is read back is the same to the bit; what is joined is rounded at most once.
EXACT = {"snapshot": 0.0, "prefix": 0.0, "block": 5e-3}

# The maximum difference of a token's probability in float32.
PROBABILITY = 1e-4


def agrees(dtype: str, way: str, errors: Sequence[float]) -> bool:
    """Whether the result matches the plain computation."""
    if way in EXACT:
        return max(errors) <= EXACT[way]
    if way == "answer":
        # In half precision, rounding may change a token, and with it the rest of a valid answer.
        return dtype != "float32" or max(errors) <= PROBABILITY
    judged = max(errors) if dtype == "float32" else float(np.quantile(errors, 0.25))
    return judged <= TOLERANCES[dtype]
