"""A cache of prompt prefixes on the disk: keys and values prefilled once are read back, whatever
conversation or document they were for, instead of computed again.

A prefix is stored in pages of 128 tokens, each in one of `CacheFiles`. Its name is a hash of the
model, of its tokens and of all pages before it, so prompts that begin alike share pages. Pages
restore exactly what prefill computed, bit for bit. Blocks are texts computed alone, in files next
to them. Any problem costs no more than a prefill.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlxchat.cache.block import Block
from mlxchat.cache.build import run_lazily
from mlxchat.cache.layers import Cache, plain_refusal, recurrent_states, windows
from mlxchat.cache.ring import Entries
from mlxchat.cache.window import WindowCache
from mlxchat.engine.prefill import OnHeld
from mlxchat.models.model import Model
from mlxchat.platform import allow_open_files
from mlxchat.store import tensor_file
from mlxchat.store.snapshot import Background, made_by
from mlxchat.store.tensor_file import OLDER_S, CacheFiles, Tensors
from mlxchat.text.encoder import TokenIds

PAGE = 128  # tokens
# A shorter prompt is read faster than it is found.
MIN_TOKENS = 1_024

# Pages waiting to be written: bounds the memory that a slow disk can take up.
PAGES_IN_FLIGHT = 4

Arrays = dict[str, mx.array]


class PrefixCache:
    """The prefixes in `directory` that this model can use, limited to `limit_bytes` of files.

    For one thread at a time. Problems with the disk or its files raise nothing; `error` is the
    reason why the last page that failed was not stored. `notify` gets what a user should know.
    """

    def __init__(
        self,
        directory: Path,
        model: Model,
        limit_bytes: int,
        notify: Callable[[str], object] = lambda message: None,
    ) -> None:
        self.files = CacheFiles(directory, limit_bytes)
        self.error: OSError | None = None
        self._model = model
        self._notify = notify
        self.writer = Background(PAGES_IN_FLIGHT)
        # Known when a prompt is long enough.
        self._made_by: str | None = None

    def begin(self, cache: Cache, ids: TokenIds, window: int | None) -> tuple[int, OnHeld | None]:
        """Fill the empty cache with the known prefix of `ids: (T,)`; return its number of tokens,
        and a function, if any, to call with the ids of each step that is prefilled."""
        if len(ids) < MIN_TOKENS:
            return 0, None
        if reason := plain_refusal(cache):
            self._notify(f"the prompt is not cached: {reason}")
            return 0, None
        fill = self.fill if self._model.ranks.size == 1 else self._fill_together
        cached = fill(cache, ids, window)
        return cached, self.recorder(cache, ids, cached, window)

    def fill(self, cache: Cache, ids: np.ndarray, window: int | None) -> int:
        """Fill the empty cache with the longest stored prefix of `ids: (T,)`; return its length.

        Whole pages, at most T - 1 tokens and at most `window`, the cache's own (None: unbounded).
        If nothing is stored, returns 0 and leaves the cache unchanged. A model with recurrent
        states can only continue after a page that has them.
        """
        keys = self.page_keys(ids[: _reusable_tokens(cache, window, len(ids) - 1)])
        # Each page that is mapped keeps its file open, beside those of the rest of the process.
        allow_open_files(len(keys) + 200)
        pages: list[Tensors] = []
        for key in keys:
            page = self.files.read(key)
            if page is None:
                break
            pages.append(page)
        states = states_of(self.like).keys()
        while pages and not states <= pages[-1].keys():
            pages.pop()
        tokens = len(pages) * PAGE
        if pages:
            self.files.touch(keys[: len(pages)])
            loaded = self._joined(cache, pages)
            for i in used_layers(self.like):
                windows(cache)[i].fill(Entries(loaded[f"{i}.keys"], loaded[f"{i}.values"]), tokens)
            for i, state in enumerate(recurrent_states(cache)):
                state.cache = [loaded.get(f"r.{i}.{j}") for j in range(len(state.cache))]
        return tokens

    def _fill_together(self, cache: Cache, ids: np.ndarray, window: int | None) -> int:
        """Fill the cache with what all ranks have stored; return its tokens."""
        gather, filled = self._model.ranks.gather, cache.fork()
        keys = self.page_keys(ids[: _reusable_tokens(cache, window, len(ids) - 1)])
        common = min(gather(self._usable(keys) * PAGE))
        tokens = self.fill(filled, ids[: common + 1], window) if common else 0
        # A page that one rank failed to read is useless to the others.
        if min(gather(tokens == common)) == 0 or not common:
            return 0
        cache[:] = filled
        return common

    def recorder(
        self, cache: Cache, ids: np.ndarray, cached: int, window: int | None
    ) -> OnHeld | None:
        """A function for `prefill` to call with each step's ids, to store the pages of
        `ids: (T,)`; None if nothing can be stored.

        The cache has the first `cached` tokens, prefilled or filled, with none evicted or rewound.
        Nothing is stored beyond `window`, or after a token that is not in `ids`.
        """
        if plain_refusal(cache) is not None or not self.files.has_room():
            return None
        ids = ids[: _reusable_tokens(cache, window, len(ids))].astype(np.int32)
        keys = self.page_keys(ids)
        stored, now = self._usable(keys), time.time()
        self.files.touch(keys[:stored], now)
        recorder = Recorder(self, cache, ids, keys, stored, now, position=cached)
        # A page could not be found again after one that is not stored.
        can = cached // PAGE <= self.files.present(keys) and cached < len(keys) * PAGE
        return recorder if can and recorder.is_at(cached) else None

    def close(self) -> None:
        """Wait for all writes, and enforce the limit."""
        self.writer.wait()
        with suppress(OSError):
            self.files.prune(self.files.limit_bytes)
        if self.error is not None:
            self._notify(f"cannot write the prefix cache: {self.error.strerror or self.error}")

    def page_keys(self, ids: np.ndarray) -> list[str]:
        """The keys of the complete pages of `ids: (T,)`, in order."""
        self._made_by = self._made_by or made_by(self._model)
        keys: list[str] = []
        parent = ""
        for end in range(PAGE, len(ids) + 1, PAGE):
            parent = _key(f"{self._made_by}\n{parent}", ids[end - PAGE : end])
            keys.append(parent)
        return keys

    @cached_property
    def like(self) -> Cache:
        """What the model itself stores for one token: shapes and dtypes."""
        return run_lazily(self._model.network)

    def _usable(self, keys: Sequence[str]) -> int:
        """How many of the first pages are stored, to the last that the model can continue after."""
        count = self.files.present(keys)
        needed = states_of(self.like).keys()
        while needed and count and not needed <= (self.files.read(keys[count - 1]) or {}).keys():
            count -= 1
        return count

    def _joined(self, cache: Cache, pages: list[Tensors]) -> Arrays:
        """The arrays of all layers after these pages, each of which is freed once copied."""
        tokens = len(pages) * PAGE
        whole: Tensors = {}
        for i in used_layers(self.like):
            size = min(tokens, windows(cache)[i].max_size or tokens)
            for name in (f"{i}.keys", f"{i}.values"):
                bits = pages[0][name]
                whole[name] = np.zeros((*bits.shape[:2], size, *bits.shape[3:]), bits.dtype)
        states = {name: pages[-1][name] for name in states_of(self.like)}
        # Copied from the mapped files without the device, which waits only once, for all pages.
        while pages:
            page = pages.pop()
            for name, tensor in whole.items():
                _put(tensor, page[name], tokens - (len(pages) + 1) * PAGE)
        return tensor_file.loaded(whole | states)


@dataclass(slots=True)
class Recorder:
    """Cuts the steps of one prefill into pages, and writes those after the first `stored` ones.
    The cache has the `ids` up to the `position`."""

    prefixes: PrefixCache
    cache: Cache
    ids: np.ndarray
    keys: Sequence[str]
    stored: int
    now: float
    position: int = 0
    is_stopped: bool = False

    def __call__(self, step: np.ndarray) -> None:
        """Store the pages that the step completes, a few at a time."""
        begin, end = self.position, self.position + len(step)
        self.position = end
        last = len(self.keys) * PAGE
        if self.is_stopped or begin >= last:
            return
        same = np.array_equal(step[: len(self.ids) - begin], self.ids[begin:end])
        wanted = range(max(begin // PAGE, self.stored), min(end, last) // PAGE)
        # A narrow layer has lost a page's beginning if the steps are small.
        first = wanted[0] * PAGE if wanted else end
        whole = all(window.size() >= end - first for window in self._windows())
        if not (same and whole and self.is_at(end)):
            self.is_stopped = True
            return
        for n in range(0, len(wanted), PAGES_IN_FLIGHT):
            self._take(wanted[n : n + PAGES_IN_FLIGHT], end)

    def _windows(self) -> list[WindowCache]:
        return [windows(self.cache)[i] for i in used_layers(self.prefixes.like)]

    def is_at(self, tokens: int) -> bool:
        """Whether every layer has been given this many tokens, and none has been moved."""
        return all(window.total == window.offset == tokens for window in self._windows())

    def _take(self, places: Sequence[int], end: int) -> None:
        """Copy these pages, and the states if the last one ends here, in one evaluation."""
        copies: dict[tuple[int, str], mx.array] = {}
        for place in places:
            for i in used_layers(self.prefixes.like):
                keys, values = windows(self.cache)[i].entries.pair
                start = keys.shape[2] - (end - place * PAGE)
                # Copied explicitly: MLX copies a slice of a larger buffer even if it is contiguous.
                copies[place, f"{i}.keys"] = mx.contiguous(keys[..., start : start + PAGE, :])
                copies[place, f"{i}.values"] = mx.contiguous(values[..., start : start + PAGE, :])
        needed, states = states_of(self.prefixes.like).keys(), states_of(self.cache)
        if (places[-1] + 1) * PAGE == end and states.keys() == needed:
            # No copies of the states: a model replaces these arrays and never writes into them.
            copies |= {(places[-1], name): array for name, array in states.items()}
        held = tensor_file.hold(copies)
        for place in places:
            page = {name: held[of, name] for of, name in held if of == place}
            self.prefixes.writer.run(partial(self._write, place, page))

    def _write(self, place: int, page: Tensors) -> int:
        files = self.prefixes.files
        # A page could not be reached after one that another process deleted.
        if not self.is_stopped and (not place or files.present([self.keys[place - 1]])):
            try:
                return files.write(self.keys[place], page, self.now - place * OLDER_S)
            except OSError as error:
                self.prefixes.error = error
        self.is_stopped = True
        return 0


class DiskBlocks:
    """The blocks in `directory` that this model can use: keys and values of a text in one file,
    found by its model, its head and its tokens. Limited with the pages to `limit_bytes` of files.

    Stores nothing if the disk has too little room. Problems with the disk or its files raise
    nothing; `error` is the reason why the last block that failed was not stored.
    """

    def __init__(self, directory: Path | str, model: Model, limit_bytes: int) -> None:
        self._files = CacheFiles(Path(directory), limit_bytes)
        self._model = model
        self._made_by = made_by(model)
        self.error: OSError | None = None

    def load(self, head: TokenIds, ids: TokenIds) -> Block | None:
        """The block of these tokens, computed after this head; None if it is not stored."""
        key = self._key(head, ids)
        tensors = self._files.read(key)
        if tensors is None:
            return None
        self._files.touch([key])
        arrays = tensor_file.loaded(tensors)
        layers = tuple(
            Entries(arrays.get(f"{i}.keys"), arrays.get(f"{i}.values"))
            for i in range(len(windows(run_lazily(self._model.network))))
        )
        return Block(len(head), layers)

    def save(self, head: TokenIds, ids: TokenIds, block: Block) -> None:
        """Store the block, and enforce the limit."""
        if not self._files.has_room():
            self.error = OSError("the disk has less than 1 GB of free space")
            return
        arrays: dict[str, mx.array] = {}
        for i, entries in enumerate(block.layers):
            if entries.tokens:
                arrays[f"{i}.keys"], arrays[f"{i}.values"] = entries.pair
        try:
            self._files.write(self._key(head, ids), tensor_file.hold(arrays), time.time())
        except OSError as error:
            self.error = error

    def _key(self, head: TokenIds, ids: TokenIds) -> str:
        return _key(f"block\n{self._made_by}\n{len(head)}", np.concatenate([head, ids]))


def _key(made_by: str, ids: np.ndarray) -> str:
    digest = hashlib.blake2b(f"{made_by}\n".encode(), digest_size=20)
    digest.update(ids.astype("<i4").tobytes())
    return digest.hexdigest()


def used_layers(like: Cache) -> list[int]:
    """Indices of the windows that are used: some models have layers that they give no tokens."""
    return [i for i, window in enumerate(windows(like)) if window.keys is not None]


def states_of(cache: Cache) -> Arrays:
    """The recurrent states, by their names in a page."""
    return {
        f"r.{i}.{j}": array
        for i, state in enumerate(recurrent_states(cache))
        for j, array in enumerate(state.cache)
        if array is not None
    }


def _reusable_tokens(cache: Cache, window: int | None, tokens: int) -> int:
    """The number of first tokens whose stored form does not depend on the steps. After that, kept
    tokens or a layer have been moved, or the tokens that one could see depend on its step."""
    limits = [tokens] if window is None else [tokens, window]
    for each in windows(cache):
        if each.max_size is not None and each.keep:
            limits.append(each.max_size)
        if each.position_limit is not None:
            limits.append(each.position_limit - 1)
    return max(min(limits), 0)


def _put(array: np.ndarray, page: np.ndarray, after: int) -> None:
    """Copy a page into a layer's array so that `after` tokens fit after it. In a narrow layer, copy
    only the part within its window."""
    stop = array.shape[2] - after
    start = max(stop - PAGE, 0)
    if stop > 0:
        array[..., start:stop, :] = page[..., PAGE - (stop - start) :, :]
