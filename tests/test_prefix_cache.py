"""Prefixes, blocks and shards on the disk: bit for bit, limited, and never another model's."""

import os
import resource
from collections.abc import Callable
from dataclasses import replace
from errno import ENOSPC
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx import nn

from mlxchat.cache.block import Block
from mlxchat.cache.build import make_cache, run_lazily
from mlxchat.cache.layers import Cache, recurrent_states, windows
from mlxchat.cache.ring import Entries
from mlxchat.chat.window import Ledger
from mlxchat.engine.prefill import prefill
from mlxchat.models.model import Alone, Model
from mlxchat.store import prefix_cache
from mlxchat.store.prefix_cache import DiskBlocks, PrefixCache
from mlxchat.store.snapshot import Background, ModelPrint, StateFile
from scripts.families import build_family
from tests import conversations
from tests.conftest import build_random_model, examples
from tests.failing_disk import FailingDisk

# Small, so that few tokens fill many; `test_product` tries all families with whole pages.
PAGE = 16
WINDOW, KEEP = 256, 4
# Plain attention; narrow layers of 8 tokens; recurrent states.
FAMILIES = ["qwen3", "gemma3_text", "qwen3_next"]
PLENTY = 1 << 30


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "PAGE", PAGE)


def make_model(network: nn.Module | None = None, dtype: mx.Dtype = mx.float32, **how: Any) -> Model:
    model = conversations.make_model(net=network or build_random_model())
    return replace(model, dtype=dtype, **how)


@pytest.fixture(scope="module")
def model() -> Model:
    return make_model()


Open = Callable[..., PrefixCache]


@pytest.fixture
def open_pages(tmp_path: Path) -> Open:
    """Opens the same directory each time, as another process would."""
    return lambda model, limit_bytes=PLENTY: PrefixCache(tmp_path / "prefixes", model, limit_bytes)


def text(tokens: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, tokens).astype(np.int32)


def new_cache(model: Model, window: int | None = WINDOW) -> Cache:
    return make_cache(model.network, window, KEEP if window is not None else 0)


class Run:
    """A prompt in a cache: how much was read back, and the model's predictions after it."""

    def __init__(
        self,
        model: Model,
        ids: np.ndarray,
        pages: PrefixCache | None = None,
        *,
        step: int | None = None,
        window: int | None = WINDOW,
    ) -> None:
        self.network = model.network
        self.cache = new_cache(model, window)
        self.last = ids[-1:]
        self.cached, record = 0, None
        if pages is not None:
            self.cached = pages.fill(self.cache, ids, window)
            record = pages.recorder(self.cache, ids, self.cached, window)
        step = step or prefix_cache.PAGE
        prefill(model.network, self.cache, ids[self.cached : -1], step_size=step, on_held=record)

    def logits(self, decoded: int = 6) -> np.ndarray:
        """Of the prompt's last token and of some decoded after it: (decoded, V)."""
        cache = self.cache.fork()
        tokens = [*self.last.tolist(), *range(decoded - 1)]
        rows = [self.network(mx.array([[token]]), cache=cache)[0, -1] for token in tokens]
        return np.array(mx.stack(rows).astype(mx.float32))


def record(model: Model, ids: np.ndarray, pages: PrefixCache, **options: Any) -> Run:
    """Run the prompt, and wait until its pages are written."""
    run = Run(model, ids, pages, **options)
    pages.writer.wait()
    return run


def files(pages: PrefixCache) -> set[Path]:
    return set(pages.files.directory.glob("*.safetensors"))


@pytest.fixture(scope="module", params=FAMILIES)
def kind(request: pytest.FixtureRequest) -> Model:
    return make_model(build_family(request.param))


# A prompt's pages, of two kinds, and its length; its window; a stored page to be lost or damaged.
prompts = st.tuples(
    st.lists(st.sampled_from([1, 2]), min_size=5, max_size=5),
    st.integers(1, 5 * PAGE),
    st.sampled_from([None, 3 * PAGE + 5]),
    st.none() | st.tuples(st.integers(0, 20), st.booleans()),
)


@given(st.lists(prompts, max_size=3))
@settings(max_examples=examples(4))
def test_a_prompt_is_filled_with_every_page_that_an_earlier_one_left_to_the_bit(
    kind: Model, asked: list[tuple[list[int], int, int | None, tuple[int, bool] | None]]
) -> None:
    """Whole pages within the window, never the last token. A damaged page is written again."""
    stored: dict[bytes, Path] = {}
    damaged: set[bytes] = set()
    with TemporaryDirectory() as directory:
        for seeds, length, window, harm in asked:
            ids = np.concatenate([text(PAGE, seed) for seed in seeds])[:length]
            reusable = min(length - 1, window or length)
            beginnings = [ids[:end].tobytes() for end in range(PAGE, reusable + 1, PAGE)]
            if harm is not None and stored:
                harmed = list(stored)[harm[0] % len(stored)]
                damaged.add(harmed)
                os.truncate(stored[harmed], 50)
                if harm[1]:
                    stored.pop(harmed).unlink()
            pages = PrefixCache(Path(directory) / "prefixes", kind, PLENTY)
            run = Run(kind, ids, pages, window=window)
            pages.close()
            sound = stored.keys() - damaged
            assert run.cached == PAGE * len([*takewhile(sound.__contains__, beginnings)])
            plain = Run(kind, ids, window=window)
            # Beyond the window, too: the kept tokens' positions and originals are the same.
            for then in (0, 90)[: 1 if window is None else 2]:
                for each in (run, plain):
                    prefill(kind.network, each.cache, text(then, 5), step_size=PAGE)
                np.testing.assert_array_equal(run.logits(), plain.logits())
            keys = pages.page_keys(ids)[: len(beginnings)]
            stored |= zip(beginnings, map(pages.files.path_of, keys), strict=True)
            damaged -= set(beginnings)
            assert files(pages) == set(stored.values())


@pytest.mark.parametrize(("recorded_by", "read_by"), [(PAGE, 5), (5, 2 * PAGE), (2 * PAGE, 5)])
def test_with_other_steps_the_result_is_the_same_up_to_rounding(
    kind: Model, recorded_by: int, read_by: int, open_pages: Open
) -> None:
    ids = text(3 * PAGE + 7)
    plain = Run(kind, ids, step=read_by).logits()
    pages = open_pages(kind)
    record(kind, ids, pages, step=recorded_by)
    again = Run(kind, ids, pages, step=read_by)
    if recurrent_states(again.cache):
        # Only a step that ended at a page's end left a state to continue from.
        assert again.cached == {PAGE: 3 * PAGE, 5: 0, 2 * PAGE: 2 * PAGE}[recorded_by]
    elif any((each.max_size or PAGE) < PAGE for each in windows(again.cache)):
        # Its narrow layers, of 8 tokens, have lost a page's beginning after smaller steps.
        assert again.cached == {PAGE: 3 * PAGE, 5: 0, 2 * PAGE: 3 * PAGE}[recorded_by]
    else:
        assert again.cached == 3 * PAGE
    np.testing.assert_allclose(again.logits(), plain, atol=1e-4)
    # What the steps did not leave is added by later ones that do.
    record(kind, ids, pages)
    assert len(files(pages)) == 3
    assert Run(kind, ids, pages).cached == 3 * PAGE


def test_a_page_of_other_tokens_than_announced_is_not_kept(model: Model, open_pages: Open) -> None:
    ids, other, pages = text(4 * PAGE), text(2 * PAGE, 2), open_pages(model)
    other[:PAGE] = ids[:PAGE]
    cache = new_cache(model)
    held = pages.recorder(cache, ids, 0, WINDOW)
    prefill(model.network, cache, other, step_size=PAGE, on_held=held)
    pages.writer.wait()
    assert len(files(pages)) == 1


def test_another_model_or_dtype_of_that_name_finds_nothing(model: Model, open_pages: Open) -> None:
    ids = text(2 * PAGE + 1)
    record(model, ids, open_pages(model))
    half = build_random_model()
    half.set_dtype(mx.float16)
    same = make_model(model.network, config={"a": 1})
    for other in (make_model(build_random_model(seed=1)), make_model(half, mx.float16), same):
        assert Run(other, ids, open_pages(other)).cached == 0
    assert Run(model, ids, open_pages(model)).cached == 2 * PAGE


def test_a_long_prompt_has_more_pages_than_a_process_may_have_open_files(
    model: Model, open_pages: Open
) -> None:
    """macOS begins with 256: the other pages counted as missing."""
    ids = text(40 * PAGE + 1)
    record(model, ids, open_pages(model), window=None)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/dev/fd").iterdir()]) + 20, limits[1]))
    try:
        assert Run(model, ids, open_pages(model), window=None).cached == 40 * PAGE
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_full_disk_stops_only_the_recording(model: Model, open_pages: Open) -> None:
    ids, pages = text(5 * PAGE + 1), open_pages(model)
    with FailingDisk(pages.files.directory, ["replace"]).used() as disk:
        disk.failing = range(2, 9)
        np.testing.assert_array_equal(record(model, ids, pages).logits(), Run(model, ids).logits())
    assert pages.error is not None
    assert (pages.error.errno, disk.calls, len(files(pages))) == (ENOSPC, ["replace"] * 3, 2)
    assert Run(model, ids, open_pages(model)).cached == 2 * PAGE


def test_files_stay_within_the_limit_and_the_beginning_of_the_latest_prompt_is_kept(
    model: Model, open_pages: Open
) -> None:
    record(model, text(PAGE + 1), open_pages(model))
    limit = int(open_pages(model).files.size_bytes() * 4.5)
    for seed, pages_of_prompt, kept in ((2, 3, [3]), (3, 3, [3]), (4, 7, [2, 3, 4])):
        ids = text(pages_of_prompt * PAGE + 1, seed)
        pages = open_pages(model, limit)
        record(model, ids, pages)
        pages.close()
        assert pages.files.size_bytes() <= limit
        assert Run(model, ids, pages).cached // PAGE in kept


def test_no_more_than_a_few_pages_wait_for_a_slow_disk() -> None:
    writer, disk = Background(3), Event()
    writing = [Thread(target=writer.run, args=(lambda: int(disk.wait()),)) for _ in range(4)]
    for each in writing:
        each.start()
        each.join(0.05)
    assert [each.is_alive() for each in writing] == [False] * 3 + [True]
    disk.set()
    writing[3].join()
    writer.wait()
    assert not writer.busy


def test_a_block_is_found_after_its_own_head_only_and_stays_while_it_is_used(
    model: Model, tmp_path: Path
) -> None:
    ids, layers = text(12), len(windows(run_lazily(model.network)))
    blocks = DiskBlocks(f"{tmp_path}/blocks", model, PLENTY)

    def save(head: int) -> None:
        keys = mx.full((1, 2, 12 - head, 8), float(head))
        blocks.save(ids[:head], ids[head:], Block(head, (Entries(keys, -keys),) * layers))

    def found() -> list[Any]:
        loaded = [blocks.load(ids[:head], ids[head:]) for head in (3, 4, 5)]
        return [(each.position, each.layers[0].pair[0].max().item()) for each in loaded if each]

    save(3)
    size_bytes = sum(path.stat().st_size for path in (tmp_path / "blocks").iterdir())
    blocks = DiskBlocks(tmp_path / "blocks", model, 2 * size_bytes)
    save(4)
    assert found() == [(3, 3), (4, 4)]
    assert blocks.load(ids[:3], ids[3:]) is not None
    save(5)
    assert found() == [(3, 3), (5, 5)]


class OfTwo(Alone):
    """The first of two ranks, the other of which does as well."""

    size = 2

    def failed(self, job: Callable[[], object]) -> list[int]:
        job()
        return []


def test_a_snapshot_of_several_ranks_that_cannot_be_written_leaves_the_last(tmp_path: Path) -> None:
    """Each rank has its shard of it in a file of its own, which belongs to one snapshot only."""
    model = make_model(ranks=OfTwo())
    printed, state = ModelPrint(model).of(WINDOW, KEEP, None), StateFile(tmp_path / "state")
    with FailingDisk(Path("/"), ["replace"]).used() as disk:
        # Each time, the shard is renamed before the file that lists it.
        disk.failing = [3]
        for tokens in (5, 9):
            cache, ledger = new_cache(model), Ledger(WINDOW, KEEP)
            prefill(model.network, cache, text(tokens), step_size=PAGE, on_held=ledger.add)
            state.save(model, cache, ledger, printed, {})
            state.background.wait()
    restored = StateFile(state.path).restore(model, new_cache(model), printed)
    assert restored is not None
    assert (len(restored.ledger), windows(restored.cache)[0].total) == (5, 5)
