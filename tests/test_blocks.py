"""Blocks: read once, then joined at any position."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from mlxchat.cache.block import Block
from mlxchat.cache.build import make_cache, make_joinable
from mlxchat.cache.layers import Cache, windows
from mlxchat.engine.prefill import BlockReader, join_refusal, prefill
from mlxchat.text.tokens import Prompt
from scripts.families import build_family
from scripts.tiny_model import tiny_config
from tests.conftest import build_random_model

HEAD, LENGTHS = 5, (70, 97, 64)
# Standard rope, per-layer bases with sliding windows, MLA, sinks; `test_product` tries all.
FAMILIES = ["llama", "gemma3_text", "deepseek_v3", "gpt_oss"]


class Kept:
    """An in-memory store that counts."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[bytes, bytes], Block] = {}
        self.hits = self.misses = 0

    def load(self, head: np.ndarray, ids: np.ndarray) -> Block | None:
        block = self.blocks.get((head.tobytes(), ids.tobytes()))
        self.hits += block is not None
        self.misses += block is None
        return block

    def save(self, head: np.ndarray, ids: np.ndarray, block: Block) -> None:
        self.blocks[head.tobytes(), ids.tobytes()] = block


def build(family: str) -> nn.Module:
    return build_random_model() if family == "llama" else build_family(family)


def ids_of(tokens: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, tokens).astype(np.int32)


TEXTS = [ids_of(length, seed) for seed, length in enumerate(LENGTHS)]


def prompt_of(order: Sequence[int], between: int = 0, question: int = 9) -> Prompt:
    """A head, the texts in this order, separated by other tokens, and a question."""
    pieces = [ids_of(HEAD, 100)]
    blocks: list[tuple[int, int]] = []
    for number in order:
        start = sum(len(piece) for piece in pieces)
        blocks.append((start, start + len(TEXTS[number])))
        pieces += [TEXTS[number], ids_of(between, 200)]
    return Prompt(np.concatenate([*pieces, ids_of(question, 300)]), (), HEAD, tuple(blocks))


def read(
    network: nn.Module,
    prompt: Prompt,
    kept: Kept | None = None,
    *,
    window: int | None = None,
    step: int = 32,
) -> tuple[Cache, BlockReader]:
    cache = make_cache(network, window, 4 if window else 0)
    reader = BlockReader(prompt, kept or Kept())
    done = reader(network, cache, prompt.ids, step_size=step)
    assert done == len(prompt.ids)
    return cache, reader


def plain(network: nn.Module, prompt: Prompt, step: int = 32) -> Cache:
    cache = make_cache(network)
    prefill(network, cache, prompt.ids, step_size=step)
    return cache


def logits(network: nn.Module, cache: Cache) -> np.ndarray:
    tokens = [7, 8, 9]
    rows = [network(mx.array([[token]]), cache=cache)[0, -1] for token in tokens]
    return np.array(mx.stack(rows).astype(mx.float32))


def assert_same(a: np.ndarray, b: np.ndarray, tolerance: float = 1e-4) -> None:
    assert np.abs(a - b).max() <= tolerance * max(np.abs(b).max(), 1)


def first_layer(cache: Cache) -> list[np.ndarray]:
    window = windows(cache)[0]
    keys, values, _ = window.entries
    assert keys is not None
    assert values is not None
    return [np.array(keys), np.array(values)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("window", [None, 256])
def test_joined_keys_are_at_their_exact_positions(family: str, window: int | None) -> None:
    """The first layer's keys do not depend on earlier tokens, so only their positions can be wrong.

    Keys joined without a shift fail here.
    """
    network = build(family)
    prompt = prompt_of([2, 0, 1], between=3)
    joined, _ = read(network, prompt, window=window)
    for ours, theirs in zip(first_layer(joined), first_layer(plain(network, prompt)), strict=True):
        tokens = min(ours.shape[2], theirs.shape[2])
        assert_same(ours[:, :, -tokens:], theirs[:, :, -tokens:])
    offsets = {window.offset for window in windows(joined) if window.total}
    assert offsets == {len(prompt.ids)}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_block_right_after_the_head_is_exact(family: str) -> None:
    network = build(family)
    prompt = prompt_of([1])
    joined, _ = read(network, prompt)
    assert_same(logits(network, joined), logits(network, plain(network, prompt)))


def test_joined_blocks_are_exact_with_a_single_layer() -> None:
    """A single layer's keys and values do not depend on other tokens, so the result is exact: the
    question must see every block at its exact position, as after an ordinary prefill."""
    network = build_random_model(tiny_config(layers=1))
    prompt = prompt_of([2, 0, 1], between=3)
    joined, _ = read(network, prompt)
    assert_same(logits(network, joined), logits(network, plain(network, prompt)))


class Counting:
    """A network that counts the tokens it is run on, by step size."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.tokens = 0

    def __call__(self, tokens: mx.array, cache: Cache) -> mx.array:
        self.tokens += tokens.shape[1]
        return self.network(tokens, cache=cache)


def tokens_computed(network: nn.Module, prompt: Prompt, kept: Kept) -> int:
    counting: Any = Counting(network)
    cache = make_cache(network)
    make_joinable(network, cache)
    BlockReader(prompt, kept)(counting, cache, prompt.ids, step_size=32)
    return counting.tokens


def test_a_known_block_is_not_computed_again() -> None:
    network, kept = build("llama"), Kept()
    tokens_computed(network, prompt_of([0, 1, 2]), kept)
    again = tokens_computed(network, prompt_of([2, 0, 1]), kept)
    assert again == HEAD + 9
    assert kept.hits == 3


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_stored_block_gives_the_same_cache_as_a_new_one(family: str) -> None:
    network, kept = build(family), Kept()
    prompt = prompt_of([1, 0, 2], between=2)
    first = logits(network, read(network, prompt, kept)[0])
    again = logits(network, read(network, prompt, kept)[0])
    assert np.array_equal(first, again)


def test_only_parts_marked_by_the_caller_are_blocks() -> None:
    """Text that happens to equal a stored block is not a hit, and a block may occur twice."""
    network, kept = build("llama"), Kept()
    read(network, prompt_of([0]), kept=kept)
    unmarked = prompt_of([0])
    cache, reader = read(network, Prompt(unmarked.ids, (), HEAD), kept=kept)
    assert reader.reused_tokens == 0
    assert_same(logits(network, cache), logits(network, plain(network, unmarked)))
    twice = prompt_of([0, 0])
    _, reader = read(network, twice, kept)
    assert reader.reused_tokens == 2 * LENGTHS[0]


def test_another_head_makes_another_block() -> None:
    network, kept = build("llama"), Kept()
    prompt = prompt_of([0])
    read(network, prompt, kept=kept)
    other = Prompt(np.concatenate([prompt.ids[:1] + 1, prompt.ids[1:]]), (), HEAD, prompt.blocks)
    _, reader = read(network, other, kept=kept)
    assert reader.reused_tokens == 0


@pytest.mark.parametrize("family", ["gemma3_text", "gpt_oss"])
def test_a_narrow_window_holds_no_more_than_in_prefill(family: str) -> None:
    network, step = build(family), 16
    native = min(w.max_size for w in windows(make_cache(network)) if w.max_size is not None)
    assert native < min(LENGTHS), "the test needs blocks longer than the window"
    largest: list[int] = []

    class Watched(Kept):
        def load(self, head: np.ndarray, ids: np.ndarray) -> Block | None:
            largest.append(max(w.size() for w in windows(cache) if w.max_size == native))
            return super().load(head, ids)

    cache = make_cache(network)
    prompt = prompt_of([0, 1, 2])
    BlockReader(prompt, Watched())(network, cache, prompt.ids, step_size=step)
    assert max(largest) <= native + step - 1


def test_progress_reaches_the_total_and_never_goes_back() -> None:
    network = build("llama")
    prompt = prompt_of([0, 1], between=3)
    reports: list[tuple[int, int]] = []
    held: list[np.ndarray] = []
    cache = make_cache(network)
    BlockReader(prompt, Kept())(
        network,
        cache,
        prompt.ids,
        step_size=32,
        on_progress=lambda done, total: reports.append((done, total)),
        on_held=held.append,
    )
    assert reports[-1] == (len(prompt.ids), len(prompt.ids))
    assert np.array_equal(np.concatenate(held), prompt.ids)
    dones = [done for done, _ in reports]
    assert dones == sorted(dones)


@pytest.mark.parametrize("asks", range(8))
def test_reading_stops_on_request(asks: int) -> None:
    """The cache then holds some number of the prompt's first tokens."""
    network = build("llama")
    prompt = prompt_of([0, 1])
    left = iter([False] * asks)
    cache = make_cache(network)
    done = BlockReader(prompt, Kept())(
        network, cache, prompt.ids, step_size=32, should_stop=lambda: next(left, True)
    )
    assert done < len(prompt.ids)
    assert windows(cache)[0].total == done


def test_a_prompt_larger_than_the_window_is_refused() -> None:
    network = build("llama")
    cache = make_cache(network, 128, 4)
    assert join_refusal(cache, 128, 128) is None
    refusal = "the prompt (129 tokens) is larger than the window (128)"
    assert join_refusal(cache, 129, 128) == refusal
