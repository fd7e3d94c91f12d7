"""Blocks: read once, then joined at any position; `test_product` tries all families."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from mlx import nn

from mlxchat.cache.build import make_cache
from mlxchat.cache.layers import Cache, windows
from mlxchat.engine.prefill import BlockReader, join_refusal, prefill
from mlxchat.text.tokens import Prompt
from scripts.families import build_family
from scripts.tiny_model import tiny_config
from tests.conftest import build_random_model
from tests.product import KeptBlocks
from tests.reference import logits
from tests.test_prefix_cache import text as ids_of

HEAD, LENGTHS = 5, (70, 97, 64)
LLAMA = build_random_model()

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


def read(net: nn.Module, prompt: Prompt, kept: KeptBlocks, **how: Any) -> tuple[Cache, BlockReader]:
    cache, reader = make_cache(net), BlockReader(prompt, kept)
    assert reader(net, cache, prompt.ids, step_size=32, **how) == len(prompt.ids)
    return cache, reader


def plain(network: nn.Module, prompt: Prompt) -> Cache:
    cache = make_cache(network)
    prefill(network, cache, prompt.ids, step_size=32)
    return cache


def decoded(network: nn.Module, cache: Cache) -> np.ndarray:
    return np.concatenate([logits(network, cache, [token]) for token in (7, 8, 9)])


def assert_same(network: nn.Module, cache: Cache, other: Cache) -> None:
    a, b = decoded(network, cache), decoded(network, other)
    assert np.abs(a - b).max() <= 1e-4 * max(np.abs(b).max(), 1)


def test_joined_blocks_are_exact_with_a_single_layer() -> None:
    """A single layer's keys and values do not depend on other tokens, so the result is exact: the
    question must see every block at its exact position, as after an ordinary prefill."""
    network = build_random_model(tiny_config(layers=1))
    prompt = prompt_of([2, 0, 1], between=3)
    joined, _ = read(network, prompt, KeptBlocks())
    assert_same(network, joined, plain(network, prompt))


def test_a_stored_block_gives_the_same_cache_as_a_new_one_and_is_not_computed_again() -> None:
    network, kept = build_family("gemma3_text"), KeptBlocks()
    prompt = prompt_of([1, 0, 2], between=2)
    cache, reader = read(network, prompt, kept)
    assert reader.reused_tokens == 0
    again, reader = read(network, prompt, kept)
    assert reader.reused_tokens == sum(LENGTHS)
    assert np.array_equal(decoded(network, again), decoded(network, cache))


def test_only_parts_marked_by_the_caller_are_blocks_and_after_another_head_others() -> None:
    """Text that happens to equal a stored block is not a hit, and a block may occur twice."""
    network, kept = LLAMA, KeptBlocks()
    read(network, prompt_of([0]), kept)
    unmarked = prompt_of([0])
    cache, reader = read(network, Prompt(unmarked.ids, (), HEAD), kept)
    assert reader.reused_tokens == 0
    assert_same(network, cache, plain(network, unmarked))
    ids = np.concatenate([unmarked.ids[:1] + 1, unmarked.ids[1:]])
    _, reader = read(network, Prompt(ids, (), HEAD, unmarked.blocks), kept)
    assert reader.reused_tokens == 0
    _, reader = read(network, prompt_of([0, 0]), kept)
    assert reader.reused_tokens == 2 * LENGTHS[0]


def test_a_narrow_window_holds_no_more_than_in_prefill() -> None:
    network = build_family("gemma3_text")
    cache, prompt = make_cache(network), prompt_of([0, 1, 2])
    narrow = [(window, window.max_size) for window in windows(cache) if window.max_size]
    assert max(size for _, size in narrow) < min(LENGTHS), "needs blocks longer than the window"

    def check(_: np.ndarray) -> None:
        assert all(window.size() <= size + 16 - 1 for window, size in narrow)

    BlockReader(prompt, KeptBlocks())(network, cache, prompt.ids, step_size=16, on_held=check)


def test_progress_reaches_the_total_and_never_goes_back() -> None:
    prompt = prompt_of([0, 1], between=3)
    seen: list[tuple[int, ...]] = []
    held: list[np.ndarray] = []
    read(LLAMA, prompt, KeptBlocks(), on_progress=lambda *at: seen.append(at), on_held=held.append)
    assert seen[-1] == (len(prompt.ids), len(prompt.ids))
    assert np.array_equal(np.concatenate(held), prompt.ids)
    dones = [done for done, _ in seen]
    assert dones == sorted(dones)


@pytest.mark.parametrize("asks", [0, 1, 3, 6])
def test_reading_stops_on_request(asks: int) -> None:
    prompt, cache, left = prompt_of([0, 1]), make_cache(LLAMA), iter([False] * asks)
    done = BlockReader(prompt, KeptBlocks())(
        LLAMA, cache, prompt.ids, step_size=32, should_stop=lambda: next(left, True)
    )
    assert done < len(prompt.ids)
    assert windows(cache)[0].total == done


def test_a_prompt_larger_than_the_window_is_refused() -> None:
    cache = make_cache(LLAMA, 128, 4)
    assert join_refusal(cache, 128, 128) is None
    refusal = "the prompt (129 tokens) is larger than the window (128)"
    assert join_refusal(cache, 129, 128) == refusal
