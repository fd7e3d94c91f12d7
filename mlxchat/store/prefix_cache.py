"""Keys and values of prompts' beginnings, on the disk: a prefix that was prefilled once, for
whatever conversation or document, is read back instead of being computed again.

A prefix is cut into pages of 128 tokens; which there are is `prefix_index`'s business. What is read
back is what a prefill left, to the bit: a page is trusted only where the model, the shapes and all
tokens up to its end are the very same. Whatever goes wrong costs the time of a prefill, no more.

Source: the prefix caches of vLLM and SGLang, see `prefix_index`; here they outlive the process.
"""

import shutil
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlxchat.cache import Cache, ChunkCache, WindowCache, run_lazily
from mlxchat.cache.layers import leaves, recurrent_states, windows
from mlxchat.cache.placement import Entries, Placement
from mlxchat.engine.loops import OnHeld
from mlxchat.errors import SnapshotBroken
from mlxchat.models.model import Model
from mlxchat.store import tensor_file
from mlxchat.store.fingerprint import made_by
from mlxchat.store.prefix_index import ROOT, Page, PrefixIndex, page_keys
from mlxchat.store.tensor_file import NAME_OF_TYPE, Tensor

PAGE = 128  # tokens

# Pages that may wait to be written: what a slow disk can make memory hold, beside the cache.
PAGES_IN_FLIGHT = 4

Arrays = dict[str, mx.array]
Tensors = dict[str, Tensor]


class PrefixCache:
    """The prefixes in `directory` that this model can use, kept to `limit_bytes` of files.

    For one thread at a time. Nothing here raises for what is on the disk, or for a disk that is
    full: `error` is why the last page that was not stored was not.
    """

    def __init__(self, directory: Path, model: Model, limit_bytes: int) -> None:
        self.index = PrefixIndex(directory)
        self._model = model
        self._print = made_by(model)
        self.limit_bytes = limit_bytes
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pages")
        self._writes: deque[Future[None]] = deque()
        self.error: OSError | None = None

    def refusal(self, cache: Cache) -> str | None:
        """Why the beginning of such a cache cannot be stored; None if it can."""
        for leaf in leaves(cache):
            if isinstance(leaf, ChunkCache):
                return "this model attends within chunks"
            if type(leaf) is not WindowCache and not recurrent_states([leaf]):
                return f"this model keeps its past in a {type(leaf).__name__}"
        states = recurrent_states(cache)
        if any(state.left_padding is not None or state.lengths is not None for state in states):
            return "its prompts are padded"
        return None

    def fill(
        self,
        cache: Cache,
        ids: np.ndarray,
        window: int | None,
    ) -> int:
        """Put the longest stored prefix of `ids: (T,)` into the empty cache; return its tokens.

        Whole pages, at most T - 1 tokens and at most `window`, the cache's own (None: unbounded);
        0 where nothing is stored, and then the cache is as it was. Only behind a page that holds
        the recurrent states can a model that has any go on.
        """
        keys = self._keys_to_fill(cache, ids, window)
        with suppress(OSError):
            while chain := self._fillable_chain(keys):
                loaded = self._load(cache, ids, chain)
                if loaded is not None:
                    self._restore(cache, loaded, len(chain) * PAGE)
                    self._touch(page.key for page in chain)
                    return len(chain) * PAGE
        return 0

    def known(self, cache: Cache, ids: np.ndarray, window: int | None) -> int:
        """How many tokens `fill` will put in, where all that is stored can be read."""
        with suppress(OSError):
            return len(self._fillable_chain(self._keys_to_fill(cache, ids, window))) * PAGE
        return 0

    def recorder(
        self, cache: Cache, ids: np.ndarray, cached: int, window: int | None
    ) -> OnHeld | None:
        """What `prefill` is to call with each step's ids, to store the pages of `ids: (T,)`; None
        if nothing can be stored.

        The cache holds the first `cached` tokens, as prefilled or filled: nothing was evicted or
        rewound. Beyond `window`, and once the tokens are others than `ids`, nothing is stored.
        """
        if self.refusal(cache) is not None:
            return None
        ids = ids[: _most_tokens(cache, window, len(ids))].astype(np.int32)
        keys = page_keys(self._print, ids, PAGE)
        try:
            stored = self.index.chain(keys)
        except OSError as error:
            self.fail(error)
            return None
        self._touch(page.key for page in stored)
        recorder = _Recorder(self, cache, ids, keys, stored)
        return recorder if recorder.begin(cached) else None

    def close(self) -> None:
        """Wait for the writes, keep to the limit, and let go of the files."""
        self._wait_until_waiting(0)
        self._writer.shutdown()
        with suppress(OSError):
            self.index.prune(self.limit_bytes)
        self.index.close()

    # Reading

    @cached_property
    def like(self) -> Cache:
        """What the model itself stores behind one token: shapes and dtypes."""
        return run_lazily(self._model.shard)

    @property
    def used_layers(self) -> list[int]:
        """Which windows hold anything: a model may have layers that it gives no tokens."""
        return [i for i, window in enumerate(windows(self.like)) if window.keys is not None]

    def _keys_to_fill(self, cache: Cache, ids: np.ndarray, window: int | None) -> list[str]:
        """Of the pages that could be put into the cache; none where it is not empty."""
        if self.refusal(cache) is not None or not _is_untouched(cache):
            return []
        most = _most_tokens(cache, window, len(ids) - 1)
        return page_keys(self._print, ids[:most], PAGE)

    def _fillable_chain(self, keys: Sequence[str]) -> list[Page]:
        # Where nothing can be stored, not even the directory is made.
        chain = self.index.chain(keys) if keys else []
        needs_state = bool(recurrent_states(self.like))
        while needs_state and chain and not chain[-1].has_state:
            chain.pop()
        return chain

    def _load(self, cache: Cache, ids: np.ndarray, chain: Sequence[Page]) -> Arrays | None:
        """The arrays of all layers behind the chain's tokens; None, with the page forgotten, where
        one cannot be used."""
        tokens = len(chain) * PAGE
        whole: Tensors = {}
        for i in self.used_layers:
            size = min(tokens, windows(cache)[i].max_size or tokens)
            for name, array in _arrays(i, windows(self.like)[i]):
                whole[name] = tensor_file.empty(_of_length(size, array), array.dtype)
        page: Tensors = {}
        for row in chain:
            try:
                page = self._read(row, ids)
            except (SnapshotBroken, FileNotFoundError):
                self.index.remove(row.key)
                return None
            # From the mapped file to its place, without the device: that waits once, for all pages.
            for name, tensor in whole.items():
                _put(tensor.bits, page[name].bits, tokens - row.depth)
        return tensor_file.loaded(whole | {name: page[name] for name in _states(self.like)})

    def _read(self, row: Page, ids: np.ndarray) -> Tensors:
        """Raises SnapshotBroken for whatever is not this model's page of these tokens."""
        path = self.index.path_of(row.key)
        tensors, facts = tensor_file.read_bits(path, most_bytes=row.bytes)
        right = (
            facts == {"model": self._print}
            and "ids" in tensors
            and np.array_equal(tensors["ids"].bits, ids[: row.depth])
            and self._has_keys_and_values(tensors)
            and (not row.has_state or self._has_states(tensors))
        )
        if not right:
            raise SnapshotBroken(f"{path} holds something else than its name says")
        return tensors

    def _has_keys_and_values(self, tensors: Tensors) -> bool:
        expected = [pair for i in self.used_layers for pair in _arrays(i, windows(self.like)[i])]
        return all(
            name in tensors
            and tensors[name].type == NAME_OF_TYPE[array.dtype]
            and tensors[name].shape == _of_length(PAGE, array)
            for name, array in expected
        )

    def _has_states(self, tensors: Tensors) -> bool:
        # A state may be of another shape behind one token than behind many.
        return all(
            name in tensors
            and tensors[name].type == NAME_OF_TYPE[array.dtype]
            and len(tensors[name].shape) == array.ndim
            for name, array in _states(self.like).items()
        )

    def _restore(self, cache: Cache, loaded: Arrays, tokens: int) -> None:
        for i in self.used_layers:
            keys, values = loaded[f"{i}.keys"], loaded[f"{i}.values"]
            size = keys.shape[2]
            placement = Placement(offset=tokens, total=tokens, next=size, anchor=tokens - size)
            windows(cache)[i].restore(Entries(keys, values), placement)
        for i, state in enumerate(recurrent_states(cache)):
            state.cache = [loaded.get(f"r.{i}.{j}") for j in range(len(state.cache))]

    def _touch(self, keys: Iterable[str]) -> None:
        # Without it the pages are only taken for older than they are.
        with suppress(OSError):
            self.index.touch(keys)

    # Writing

    def submit(self, job: Callable[[], None]) -> None:
        """Have the job done by the thread beside, once few others wait for it."""
        self._writes.append(self._writer.submit(job))
        self._wait_until_waiting(PAGES_IN_FLIGHT)

    def store(
        self, key: str, parent: str, depth: int, tensors: dict[str, Tensor], has_state: bool
    ) -> bool:
        """Write a page, and keep to the limit; False where it has no place any more, because the
        page before was deleted. Raises OSError."""
        facts = {"model": self._print}
        return self.index.store(
            key,
            parent,
            lambda path: tensor_file.write(path, tensors, facts, full_sync=False),
            limit_bytes=self.limit_bytes,
            depth=depth,
            model=self._model.name,
            has_state=has_state,
        )

    def fail(self, error: OSError) -> None:
        self.error = error

    def _wait_until_waiting(self, most: int) -> None:
        while len(self._writes) > most:
            self._writes.popleft().result()


def has_room(directory: Path, limit_bytes: int) -> bool:
    """Whether the disk would not be filled by all that may be kept in the directory."""
    nearest = next(each for each in (directory, *directory.parents) if each.exists())
    return shutil.disk_usage(nearest).free > limit_bytes


class _Recorder:
    """Cuts the steps of one prefill into pages and has those written that are not stored."""

    def __init__(
        self,
        pages: PrefixCache,
        cache: Cache,
        ids: np.ndarray,
        keys: Sequence[str],
        stored: Sequence[Page],
    ) -> None:
        self._pages = pages
        self._cache = cache
        self._ids = ids
        self._keys = keys
        self._stored = stored
        self._position = 0
        self._end = len(keys) * PAGE
        self._pieces: list[dict[str, Tensor]] = []
        self._stopped = False

    def begin(self, cached: int) -> bool:
        """Go on behind `cached` tokens; False where there is nothing to store that could be found
        again, or where the beginning of the page cannot be had."""
        self._position = cached
        place, tokens = divmod(cached, PAGE)
        held = [window.size() for window in self._windows()]
        if place > len(self._stored) or cached >= self._end or not self._is_at(cached):
            return False
        if tokens and (not held or tokens > min(held)):
            return False
        self._take(cached - tokens, cached)
        return True

    def __call__(self, step: np.ndarray) -> None:
        begin, end = self._position, self._position + len(step)
        self._position = end
        if self._stopped or begin >= self._end:
            return
        same = np.array_equal(step[: len(self._ids) - begin], self._ids[begin:end])
        if same and self._is_at(end):
            self._take(begin, end)
        else:
            self._stopped = True

    def _windows(self) -> list[WindowCache]:
        return [windows(self._cache)[i] for i in self._pages.used_layers]

    def _is_at(self, tokens: int) -> bool:
        """Whether every layer has been given so many tokens, and none has been moved."""
        return all(window.total == window.offset == tokens for window in self._windows())

    def _take(self, begin: int, end: int) -> None:
        """Take over the tokens from `begin` on, the cache's latest, a few pages at a time."""
        pages = range(begin // PAGE, -(-min(end, self._end) // PAGE))
        wanted = [place for place in pages if self._is_wanted(place)]
        for first in range(0, len(wanted), PAGES_IN_FLIGHT):
            self._take_pages(wanted[first : first + PAGES_IN_FLIGHT], begin, end)

    def _take_pages(self, places: Sequence[int], begin: int, end: int) -> None:
        """Take over what lies in these pages of the tokens from `begin` to `end`, and the states
        that a page ends with. All is held at once, because each evaluation waits for the device."""
        copies: dict[tuple[int | None, str], mx.array] = {}
        for place in places:
            first, last = max(place * PAGE, begin), min((place + 1) * PAGE, end)
            for name, array in self._entries(end - first, end - last).items():
                copies[place, name] = array
        if (places[-1] + 1) * PAGE == end:
            # The states' own arrays: a model replaces them, and never writes into them.
            copies |= {(None, name): array for name, array in self._whole_states().items()}
        held = tensor_file.hold(copies)
        for place in places:
            self._pieces.append({name: held[of, name] for of, name in held if of == place})
            if (place + 1) * PAGE <= end:
                is_last = (place + 1) * PAGE == end
                states = {name: held[of, name] for of, name in held if of is None and is_last}
                self._finish(place, states)

    def _is_wanted(self, place: int) -> bool:
        """Not stored; or without the states that a model with recurrent layers goes on from."""
        if place >= len(self._stored):
            return True
        return bool(recurrent_states(self._cache)) and not self._stored[place].has_state

    def _whole_states(self) -> Arrays:
        """The recurrent states, if all that the model goes on from are there."""
        states = _states(self._cache)
        return states if states.keys() == _states(self._pages.like).keys() else {}

    def _entries(self, first: int, last: int) -> Arrays:
        """Copies of the entries from the `first` latest up to the `last` latest."""
        copies: Arrays = {}
        for i in self._pages.used_layers:
            keys, values, _ = windows(self._cache)[i].entries
            assert keys is not None
            assert values is not None
            stop = keys.shape[2] - last
            start = keys.shape[2] - first
            # Copies: of a slice of a larger buffer MLX makes one even where it lies in order.
            copies[f"{i}.keys"] = mx.contiguous(keys[..., start:stop, :])
            copies[f"{i}.values"] = mx.contiguous(values[..., start:stop, :])
        return copies

    def _finish(self, place: int, states: Tensors) -> None:
        pieces, self._pieces = self._pieces, []
        if states or place >= len(self._stored):
            self._pages.submit(partial(self._write, place, pieces, states))

    def _write(
        self, place: int, pieces: Sequence[dict[str, Tensor]], states: dict[str, Tensor]
    ) -> None:
        if self._stopped:
            return
        depth = (place + 1) * PAGE
        parent = self._keys[place - 1] if place else ROOT
        # All tokens so far: then no hash has to be trusted, of this page or of one before.
        ids = Tensor("I32", (depth,), self._ids[:depth])
        tensors = _joined(pieces) | states | {"ids": ids}
        try:
            stored = self._pages.store(self._keys[place], parent, depth, tensors, bool(states))
            self._stopped = not stored
        except OSError as error:
            self._pages.fail(error)
            self._stopped = True


def _is_untouched(cache: Cache) -> bool:
    """Whether no token has ever been put in: what was taken out again leaves positions behind."""
    return not any(window.total or window.offset for window in windows(cache)) and all(
        state.empty() for state in recurrent_states(cache)
    )


def _most_tokens(cache: Cache, window: int | None, tokens: int) -> int:
    """How many of the first tokens leave the same behind whatever the steps: beyond that, kept
    tokens have been moved, or a layer has, or what a token saw depends on where its step began."""
    limits = [tokens] if window is None else [tokens, window]
    for each in windows(cache):
        if each.max_size is not None and each.keep:
            limits.append(each.max_size)
        if each.position_limit is not None:
            limits.append(each.position_limit - 1)
    return max(min(limits), 0)


def _arrays(i: int, window: WindowCache) -> list[tuple[str, mx.array]]:
    """A layer's arrays by the names that they have in a page."""
    assert window.keys is not None
    assert window.values is not None
    return [(f"{i}.keys", window.keys), (f"{i}.values", window.values)]


def _states(cache: Cache) -> Arrays:
    """The recurrent states by the names that they have in a page."""
    return {
        f"r.{i}.{j}": array
        for i, state in enumerate(recurrent_states(cache))
        for j, array in enumerate(state.cache)
        if array is not None
    }


def _of_length(tokens: int, like: mx.array) -> tuple[int, ...]:
    return (*like.shape[:2], tokens, *like.shape[3:])


def _put(array: np.ndarray, page: np.ndarray, behind: int) -> None:
    """Put a page into a layer's array, so that `behind` tokens have room behind it; of a narrow
    layer's, what lies within it."""
    stop = array.shape[2] - behind
    start = max(stop - PAGE, 0)
    if stop > 0:
        array[..., start:stop, :] = page[..., PAGE - (stop - start) :, :]


def _joined(pieces: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The page of which each piece holds some tokens."""
    joined: dict[str, Tensor] = {}
    for name, tensor in pieces[0].items():
        bits = np.concatenate([piece[name].bits for piece in pieces], axis=2)
        joined[name] = Tensor(tensor.type, bits.shape, bits)
    return joined
