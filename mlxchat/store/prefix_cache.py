"""Keys and values of prompts' beginnings, on the disk: a prefix that was prefilled once, for
whatever conversation or document, is read back instead of being computed again.

A prefix is cut into pages of 128 tokens; which there are is `prefix_index`'s business. What is read
back is what a prefill left, to the bit: a page is trusted only if the model, the shapes and all
tokens up to its end are the very same. Whatever goes wrong costs the time of a prefill, no more.

Source: the prefix caches of vLLM and SGLang, see `prefix_index`; here they outlive the process.
"""

import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import numpy as np

from mlxchat.cache import Cache, ChunkCache, WindowCache, run_lazily
from mlxchat.cache.layers import leaves, recurrent_states, windows
from mlxchat.cache.placement import Entries, Placement
from mlxchat.engine.loops import OnHeld
from mlxchat.errors import SnapshotBroken
from mlxchat.models.model import Model
from mlxchat.store import tensor_file
from mlxchat.store.fingerprint import made_by
from mlxchat.store.page_recorder import (
    PAGE,
    Arrays,
    PageWriter,
    Recorder,
    Tensors,
    arrays_of,
    of_length,
    states_of,
    used_layers,
)
from mlxchat.store.prefix_index import Page, PrefixIndex, page_keys
from mlxchat.store.tensor_file import NAME_OF_TYPE


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
        self._writer = PageWriter(self.index, model.name, self._print, limit_bytes)

    @property
    def error(self) -> OSError | None:
        return self._writer.error

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

    def fill(self, cache: Cache, ids: np.ndarray, window: int | None) -> int:
        """Put the longest stored prefix of `ids: (T,)` into the empty cache; return its tokens.

        Whole pages, at most T - 1 tokens and at most `window`, the cache's own (None: unbounded);
        0 if nothing is stored, and then the cache is as it was. A model with recurrent states can
        only continue after a page that holds them.
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
        """How many tokens `fill` will put in, if all that is stored can be read."""
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
            self._writer.error = error
            return None
        self._touch(page.key for page in stored)
        recorder = Recorder(self._writer, self.like, cache, ids, keys=keys, stored=stored)
        return recorder if recorder.begin(cached) else None

    def close(self) -> None:
        """Wait for the writes, keep to the limit, and let go of the files."""
        self._writer.close()
        with suppress(OSError):
            self.index.prune(self.limit_bytes)
        self.index.close()

    # Reading

    @cached_property
    def like(self) -> Cache:
        """What the model itself stores after one token: shapes and dtypes."""
        return run_lazily(self._model.shard)

    def _keys_to_fill(self, cache: Cache, ids: np.ndarray, window: int | None) -> list[str]:
        """Of the pages that could be put into the cache; none if it is not empty."""
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
        """The arrays of all layers after the chain's tokens; None, with the page forgotten, where
        one cannot be used."""
        tokens = len(chain) * PAGE
        whole: Tensors = {}
        for i in used_layers(self.like):
            size = min(tokens, windows(cache)[i].max_size or tokens)
            for name, array in arrays_of(i, windows(self.like)[i]):
                whole[name] = tensor_file.empty(of_length(size, array), array.dtype)
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
        return tensor_file.loaded(whole | {name: page[name] for name in states_of(self.like)})

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
        expected = [
            pair for i in used_layers(self.like) for pair in arrays_of(i, windows(self.like)[i])
        ]
        return all(
            name in tensors
            and tensors[name].type == NAME_OF_TYPE[array.dtype]
            and tensors[name].shape == of_length(PAGE, array)
            for name, array in expected
        )

    def _has_states(self, tensors: Tensors) -> bool:
        # A state may be of another shape after one token than after many.
        return all(
            name in tensors
            and tensors[name].type == NAME_OF_TYPE[array.dtype]
            and len(tensors[name].shape) == array.ndim
            for name, array in states_of(self.like).items()
        )

    def _restore(self, cache: Cache, loaded: Arrays, tokens: int) -> None:
        for i in used_layers(self.like):
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


def has_room(directory: Path, limit_bytes: int) -> bool:
    """Whether the disk would not be filled by all that may be kept in the directory."""
    nearest = next(each for each in (directory, *directory.parents) if each.exists())
    return shutil.disk_usage(nearest).free > limit_bytes


def _is_untouched(cache: Cache) -> bool:
    """Whether no token has ever been put in: what was taken out again leaves positions behind."""
    return not any(window.total or window.offset for window in windows(cache)) and all(
        state.empty() for state in recurrent_states(cache)
    )


def _most_tokens(cache: Cache, window: int | None, tokens: int) -> int:
    """How many of the first tokens leave the same whatever the steps: beyond that, kept
    tokens have been moved, or a layer has, or what a token saw depends on where its step began."""
    limits = [tokens] if window is None else [tokens, window]
    for each in windows(cache):
        if each.max_size is not None and each.keep:
            limits.append(each.max_size)
        if each.position_limit is not None:
            limits.append(each.position_limit - 1)
    return max(min(limits), 0)


def _put(array: np.ndarray, page: np.ndarray, after: int) -> None:
    """Put a page into a layer's array, so that `after` tokens have room after it; of a narrow
    layer's, what lies within it."""
    stop = array.shape[2] - after
    start = max(stop - PAGE, 0)
    if stop > 0:
        array[..., start:stop, :] = page[..., PAGE - (stop - start) :, :]
