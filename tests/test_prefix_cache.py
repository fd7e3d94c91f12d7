"""Prefixes read back from the disk: bit for bit, shared, limited, and never another model's."""

import errno
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlxchat  # noqa: F401  first, as in the tests' own process: this is imported by others

# isort: split

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_lm.models.cache import ArraysCache, QuantizedKVCache

from mlxchat.cache import Cache, make_cache
from mlxchat.cache.layers import recurrent_states, windows
from mlxchat.engine.generate import Generation
from mlxchat.engine.loops import prefill
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings
from mlxchat.store import tensor_file
from mlxchat.store.cache_files import ends_of
from mlxchat.store.page_recorder import PAGES_IN_FLIGHT, Recorder
from mlxchat.store.prefix_cache import PAGE, PrefixCache
from mlxchat.text.template import ChatTemplate
from mlxchat.text.tokens import Tokenizer
from scripts.families import build_family
from scripts.tiny_model import CHAT_TEMPLATE, byte_tokenizer
from tests.conftest import build_random_model

WINDOW, KEEP = 2_048, 4
FAMILIES = ["llama", "gemma3_text", "deepseek_v3", "qwen3_next", "gpt_oss", "mamba2"]
PLENTY = 1 << 30


def build(family: str) -> nn.Module:
    return build_random_model() if family == "llama" else build_family(family)


def make_model(network: nn.Module | None = None, dtype: mx.Dtype = mx.float32) -> Model:
    tokenizer = Tokenizer(byte_tokenizer(), ChatTemplate(CHAT_TEMPLATE, {}), (258,))
    return Model("tiny", network or build_random_model(), tokenizer, dtype, 4096, {})


@pytest.fixture(scope="module")
def model() -> Model:
    return make_model()


Open = Callable[..., PrefixCache]


@pytest.fixture
def open_pages(tmp_path: Path) -> Iterator[Open]:
    """Opens the same directory each time, as another process would."""
    opened: list[PrefixCache] = []

    def open_(model: Model, limit_bytes: int = PLENTY) -> PrefixCache:
        opened.append(PrefixCache(tmp_path / "prefixes", model, limit_bytes))
        return opened[-1]

    yield open_
    for pages in opened:
        pages.close()


def text(tokens: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, tokens).astype(np.int32)


def text_like(ids: np.ndarray, tokens: int, then: int, seed: int = 2) -> np.ndarray:
    """The first tokens of `ids`, followed by `then` others."""
    return np.concatenate([ids[:tokens], (text(then, seed) + 1 + ids[tokens]) % 256])


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
        step: int = PAGE,
        window: int | None = WINDOW,
    ) -> None:
        self.network = model.network
        self.cache = new_cache(model, window)
        self.last = ids[-1:]
        self.cached, record = 0, None
        if pages is not None:
            self.cached = pages.fill(self.cache, ids, window)
            record = pages.recorder(self.cache, ids, self.cached, window)
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
    pages._writer.wait()
    return run


def files(pages: PrefixCache) -> set[Path]:
    return set(pages.files.directory.glob("*.safetensors"))


def page_file(pages: PrefixCache, ids: np.ndarray, place: int) -> Path:
    return pages.files.path_of(pages.page_keys(ids)[place])


# Exactness


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("window", [WINDOW, None])
def test_with_the_same_steps_the_result_is_identical(
    family: str, window: int | None, open_pages: Open
) -> None:
    model, ids = make_model(build(family)), text(3 * PAGE + 50)
    plain = Run(model, ids, window=window).logits()
    recorded = record(model, ids, open_pages(model), window=window)
    assert recorded.cached == 0
    np.testing.assert_array_equal(recorded.logits(), plain)
    again = Run(model, ids, open_pages(model), window=window)
    assert again.cached == 3 * PAGE
    np.testing.assert_array_equal(again.logits(), plain)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_next"])
@pytest.mark.parametrize(("recorded_by", "read_by"), [(PAGE, 50), (50, 2 * PAGE), (2 * PAGE, 50)])
def test_with_other_steps_the_result_is_the_same_up_to_rounding(
    family: str, recorded_by: int, read_by: int, open_pages: Open
) -> None:
    model, ids = make_model(build(family)), text(3 * PAGE + 50)
    plain = Run(model, ids, step=read_by).logits()
    pages = open_pages(model)
    record(model, ids, pages, step=recorded_by)
    again = Run(model, ids, pages, step=read_by)
    if recurrent_states(again.cache):
        # Only a step that ended at a page's end left a state to continue from.
        assert again.cached == {PAGE: 3 * PAGE, 50: 0, 2 * PAGE: 2 * PAGE}[recorded_by]
    elif family == "gemma3_text":
        # Its narrow layers, of 8 tokens, have lost a page's beginning after smaller steps.
        assert again.cached == {PAGE: 3 * PAGE, 50: 0, 2 * PAGE: 3 * PAGE}[recorded_by]
    else:
        assert again.cached == 3 * PAGE
    np.testing.assert_allclose(again.logits(), plain, atol=1e-4)


def test_a_restored_cache_continues_beyond_the_window_like_a_prefilled_one(
    open_pages: Open,
) -> None:
    """The kept tokens' positions and originals, too, are what a prefill would leave."""
    model, ids = make_model(build("gemma3_text")), text(2 * PAGE + 1)
    record(model, ids, open_pages(model), window=300)
    runs = [Run(model, ids, pages, window=300) for pages in (None, open_pages(model))]
    assert [run.cached for run in runs] == [0, 2 * PAGE]
    more = text(300, 5)
    for run in runs:
        prefill(run.network, run.cache, more, step_size=64)
    np.testing.assert_array_equal(runs[0].logits(60), runs[1].logits(60))


def test_windows_of_different_sizes_share_pages(open_pages: Open) -> None:
    model, ids = make_model(build("gemma3_text")), text(4 * PAGE + 5)
    record(model, ids, open_pages(model), window=None)
    for window, cached in ((3 * PAGE, 3 * PAGE), (PAGE + 44, PAGE), (PAGE - 56, 0)):
        again = Run(model, ids, open_pages(model), window=window)
        assert again.cached == cached
        plain = Run(model, ids, window=window)
        np.testing.assert_array_equal(again.logits(), plain.logits())


def test_the_last_token_is_never_read_back(model: Model, open_pages: Open) -> None:
    ids = text(2 * PAGE)
    pages = open_pages(model)
    record(model, ids, pages)
    # The last token is decoded, and no step of the prefill has completed its page.
    assert len(files(pages)) == 1
    again = Run(model, ids, pages)
    assert again.cached == PAGE
    np.testing.assert_array_equal(again.logits(), Run(model, ids).logits())
    assert Run(model, ids[: PAGE + 1], pages).cached == PAGE
    assert Run(model, ids[:PAGE], pages).cached == 0
    assert Run(model, ids[:1], pages).cached == 0


def test_a_generation_from_stored_pages_has_the_same_output(model: Model, open_pages: Open) -> None:
    """The recorder is given decoded tokens too, and stores the page that the prompt's last one
    completes."""
    ids = text(2 * PAGE)
    said = []
    for _ in range(2):
        pages = open_pages(model)
        cache = new_cache(model)
        cached = pages.fill(cache, ids, WINDOW)
        generation = Generation(
            model,
            ids,
            cache,
            settings=GenerationSettings(max_tokens=300, ignore_eos=True),
            prefill_step_size=PAGE,
            cached_tokens=cached,
            on_held=pages.recorder(cache, ids, cached, WINDOW),
        )
        said.append((cached, [token.id for token in generation]))
        pages.close()
    assert said[0][0] == 0
    assert said[1] == (PAGE, said[0][1])
    pages = open_pages(model)
    assert len(files(pages)) == 2
    longer = Run(model, text_like(np.append(ids, 7), 2 * PAGE, 50), pages)
    assert longer.cached == 2 * PAGE


# Sharing


def test_prompts_with_the_same_beginning_store_it_once(model: Model, open_pages: Open) -> None:
    ids = text(5 * PAGE + 10)
    other = text_like(ids, 3 * PAGE, 2 * PAGE + 10)
    pages = open_pages(model)
    record(model, ids, pages)
    run = record(model, other, pages)
    assert run.cached == 3 * PAGE
    assert len(files(pages)) == 7
    np.testing.assert_array_equal(run.logits(), Run(model, other).logits())
    ends = ends_of(pages.files.entries())
    assert [(each.model, each.tokens) for each in ends] == [("tiny", 5 * PAGE)] * 2
    # The same tokens after another beginning are another page.
    start = text(2 * PAGE, 9)
    record(model, start, pages)
    assert Run(model, np.append(start[:PAGE], ids[PAGE:]), pages).cached == PAGE


def test_stored_pages_are_not_written_again(
    model: Model, open_pages: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = text(3 * PAGE + 1)
    pages = open_pages(model)
    record(model, ids, pages)
    (before,) = ends_of(pages.files.entries())

    def refuse(*_: Any) -> int:
        raise AssertionError("it is written again")

    monkeypatch.setattr(tensor_file, "write", refuse)
    # Once read back, and once prefilled without looking it up.
    record(model, ids, pages)
    cache = new_cache(model)
    prefill(model.network, cache, ids, step_size=64, on_held=pages.recorder(cache, ids, 0, WINDOW))
    pages._writer.wait()
    (after,) = ends_of(pages.files.entries())
    assert after.used > before.used


def test_states_are_added_when_a_later_step_ends_at_a_pages_end(open_pages: Open) -> None:
    model, ids = make_model(build("qwen3_next")), text(3 * PAGE + 50)
    pages = open_pages(model)
    record(model, ids, pages, step=100)
    assert Run(model, ids, pages, step=PAGE).cached == 0
    pages._writer.wait()
    assert len(files(pages)) == 3
    assert Run(model, ids, pages).cached == 3 * PAGE


def test_a_turn_that_starts_within_a_page_stores_that_page_too(
    model: Model, open_pages: Open
) -> None:
    ids = text(4 * PAGE)
    pages = open_pages(model)
    cache = new_cache(model)
    for begin, end in ((0, 150), (150, 350), (350, 500)):
        held = pages.recorder(cache, ids[:end], begin, WINDOW)
        prefill(model.network, cache, ids[begin:end], step_size=PAGE, on_held=held)
        pages._writer.wait()
    assert len(files(pages)) == 3
    again = Run(model, ids, pages)
    assert again.cached == 3 * PAGE
    np.testing.assert_allclose(again.logits(), Run(model, ids).logits(), atol=1e-4)


def test_pages_that_could_not_be_found_or_trusted_are_not_stored(
    model: Model, open_pages: Open
) -> None:
    ids = text(4 * PAGE)
    pages = open_pages(model)
    cache = new_cache(model)
    prefill(model.network, cache, ids[: 2 * PAGE], step_size=PAGE)
    # The earlier pages are not stored.
    assert pages.recorder(cache, ids, 2 * PAGE, WINDOW) is None
    # The cache does not contain the tokens it was said to.
    assert pages.recorder(cache, ids, 0, WINDOW) is None
    # The tokens are not those announced.
    cache = new_cache(model)
    held = pages.recorder(cache, ids, 0, WINDOW)
    other = text_like(ids, PAGE, 2 * PAGE)
    prefill(model.network, cache, other, step_size=PAGE, on_held=held)
    pages._writer.wait()
    assert len(files(pages)) == 1
    # The cache does not contain as many tokens as it was said to.
    held = pages.recorder(new_cache(model), other, 0, WINDOW)
    assert held is not None
    held(other[: 2 * PAGE])
    pages._writer.wait()
    assert len(files(pages)) == 1
    # The cache has been used before: its positions are not the text's.
    for window in windows(cache):
        window.trim(window.size())
        window.offset = 1
    assert pages.fill(cache, ids, WINDOW) == 0


# Another model's pages


def test_another_model_or_dtype_of_the_same_name_finds_nothing(
    model: Model, open_pages: Open
) -> None:
    ids = text(2 * PAGE + 1)
    record(model, ids, open_pages(model))
    half = build_random_model()
    half.set_dtype(mx.float16)
    others = [
        make_model(build_random_model(seed=1)),
        make_model(half, mx.float16),
        Model("tiny", model.network, model.tokenizer, mx.float32, 4096, {}, {"a": 1}),
    ]
    for other in others:
        assert Run(other, ids, open_pages(other)).cached == 0
    assert Run(model, ids, open_pages(model)).cached == 2 * PAGE


def test_a_page_file_swapped_for_another_does_not_match(model: Model, open_pages: Open) -> None:
    ids, other = text(2 * PAGE + 1), text(2 * PAGE + 1, 2)
    pages = open_pages(model)
    record(model, ids, pages)
    record(model, other, pages)
    page_file(pages, other, 0).replace(page_file(pages, ids, 0))
    assert Run(model, ids, pages).cached == 0


# Damage


@pytest.mark.parametrize("kind", ["changed", "cut off", "empty", "missing"])
def test_a_damaged_page_is_deleted_and_written_again(
    kind: str, model: Model, open_pages: Open
) -> None:
    ids = text(4 * PAGE + 1)
    pages = open_pages(model)
    plain = record(model, ids, pages).logits()
    path = page_file(pages, ids, 2)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    if kind == "changed":
        path.write_bytes(data)
    elif kind == "missing":
        path.unlink()
    else:
        os.truncate(path, 0 if kind == "empty" else len(data) - 1)
    cache = new_cache(model)
    assert pages.fill(cache, ids, WINDOW) == 2 * PAGE
    assert not path.exists()
    np.testing.assert_array_equal(record(model, ids, pages).logits(), plain)
    assert len(files(pages)) == 4
    again = Run(model, ids, pages)
    assert again.cached == 4 * PAGE
    np.testing.assert_array_equal(again.logits(), plain)


def test_an_unusable_directory_only_costs_the_prefill(model: Model, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ids = text(PAGE + 1)
    pages = PrefixCache(tmp_path / "file", model, PLENTY)
    run = Run(model, ids, pages)
    pages.close()
    assert run.cached == 0
    assert isinstance(pages.error, OSError)
    np.testing.assert_array_equal(run.logits(), Run(model, ids).logits())


def test_a_full_disk_stops_only_the_recording(
    model: Model, open_pages: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = text(5 * PAGE + 1)
    plain = Run(model, ids).logits()
    write, calls = tensor_file.write_atomically, []

    def full(path: Path, *arguments: Any, **how: Any) -> None:
        calls.append(path)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, *arguments, **how)

    monkeypatch.setattr(tensor_file, "write_atomically", full)
    pages = open_pages(model)
    run = record(model, ids, pages)
    np.testing.assert_array_equal(run.logits(), plain)
    assert pages.error is not None
    assert pages.error.errno == errno.ENOSPC
    assert len(calls) == 3
    assert len(files(pages)) == 2
    monkeypatch.undo()
    again = Run(model, ids, open_pages(model))
    assert again.cached == 2 * PAGE
    np.testing.assert_array_equal(again.logits(), plain)


# Limits


def test_files_stay_within_the_limit_and_the_latest_prompt_is_kept(
    model: Model, open_pages: Open
) -> None:
    record(model, text(PAGE + 1), open_pages(model))
    page_bytes = open_pages(model).files.size_bytes()
    limit = int(page_bytes * 4.5)
    for seed in range(2, 6):
        ids = text(3 * PAGE + 1, seed)
        pages = open_pages(model, limit)
        record(model, ids, pages)
        assert pages.files.size_bytes() <= limit
        assert Run(model, ids, pages).cached == 3 * PAGE
    # A prompt larger than the limit leaves its beginning.
    ids = text(7 * PAGE + 1, 9)
    pages = open_pages(model, limit)
    record(model, ids, pages)
    assert pages.files.size_bytes() <= limit
    assert 2 * PAGE <= record(model, ids, pages).cached <= 4 * PAGE
    pages = open_pages(model, 0)
    pages.close()
    assert files(pages) == set()


def test_only_a_few_pages_wait_for_a_slow_disk(
    model: Model, open_pages: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, waiting = open_pages(model), []
    write = pages.files.write

    def slowly(*arguments: Any) -> None:
        time.sleep(0.02)
        waiting.append(sum(not each.done() for each in pages._writer._writes))
        write(*arguments)

    monkeypatch.setattr(pages.files, "write", slowly)
    record(model, text(12 * PAGE), pages, step=6 * PAGE, window=None)
    assert len(waiting) == 11
    assert max(waiting) <= PAGES_IN_FLIGHT + 1


def test_pending_pages_do_not_keep_the_cache_in_memory() -> None:
    """A slice of one head's keys is contiguous, so that hold() alone would not copy it."""
    model = make_model(build("gemma3_text"))
    cache = new_cache(model, None)
    ids = text(PAGE)
    prefill(model.network, cache, ids, step_size=PAGE)
    for window in windows(cache):
        assert window.keys is not None
        room = mx.zeros((1, 1, 100_000, window.keys.shape[3]))
        window.keys = window.values = mx.concatenate([room, room, window.keys], axis=2)
        window._ring.size = window._ring.next = window.keys.shape[2]
    mx.eval([window.keys for window in windows(cache)])
    pages = PrefixCache(Path("unused"), model, 0)
    recorder = Recorder(
        pages._writer, pages.like, cache, ids, keys=["key"], done=[], label="", now=0
    )
    before = mx.get_active_memory()
    held = tensor_file.hold(recorder._entries(PAGE))
    for window in windows(cache):
        window.keys = window.values = None
    assert before - mx.get_active_memory() > 4 * 200_000 * 8 * 4 * 0.9
    assert held["0.keys"].shape == (1, 1, PAGE, 8)


# Which caches


def test_a_cache_that_cannot_be_stored_is_left_alone_with_a_reason(
    model: Model, open_pages: Open
) -> None:
    chunked = make_model(build_family("llama4"))
    padded = ArraysCache(2, left_padding=[3])
    pages = open_pages(model)
    assert pages.refusal(new_cache(model)) is None
    assert pages.refusal(new_cache(chunked)) == "this model attends within chunks"
    assert pages.refusal(Cache([padded])) == "its prompts are padded"
    assert pages.refusal(Cache([QuantizedKVCache()])) == ("this model uses a QuantizedKVCache")
    run = Run(chunked, text(PAGE + 1), open_pages(chunked))
    assert run.cached == 0
    assert not pages.files.directory.exists()


# Several processes


def run_prompts(directory: Path, limit_bytes: int, seeds: list[int]) -> None:
    """Runs in another process: prompts, some of them used by both processes, in little space."""
    model = make_model()
    for seed in seeds:
        pages = PrefixCache(directory, model, limit_bytes)
        ids = text_like(text(2_000, 1), PAGE * (seed % 3), 3 * PAGE, seed)
        plain = Run(model, ids)
        for _ in range(2):
            # Where the other process has just pruned, other steps are computed, and rounded.
            run = Run(model, ids, pages)
            np.testing.assert_allclose(run.logits(1), plain.logits(1), atol=1e-5)
        pages.close()
        assert pages.error is None, pages.error


def test_processes_can_fill_and_prune_concurrently(
    model: Model, open_pages: Open, tmp_path: Path
) -> None:
    record(model, text(PAGE + 1), open_pages(model))
    limit = open_pages(model).files.size_bytes() * 6
    context = multiprocessing.get_context("spawn")
    arguments = [(tmp_path / "prefixes", limit, [*range(n, n + 8)]) for n in (0, 2)]
    processes = [context.Process(target=run_prompts, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    pages = open_pages(model, limit)
    assert pages.files.size_bytes() <= limit
