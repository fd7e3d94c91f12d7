"""A cache of prompt prefixes on the disk: keys and values prefilled once are read back, whatever
conversation or document they were for, instead of computed again.

A prefix is stored in pages of 128 tokens; `prefix_index` keeps track of them. Pages restore exactly
what prefill computed, bit for bit: a page is trusted only if the model, the shapes and all tokens
up to its end match. Any problem costs no more than a prefill.

Source: the prefix caches of vLLM and SGLang, see `prefix_index`; these outlive the process.
"""

import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import numpy as np

from mlxchat.cache import Cache, run_lazily
from mlxchat.cache.block import slice_refusal
from mlxchat.cache.layers import recurrent_states, windows
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
    """The prefixes in `directory` that this model can use, limited to `limit_bytes` of files.

    For one thread at a time. Problems with the disk or its files raise nothing; `error` is the
    reason why the last page that failed was not stored. `label` describes the next text in lists.
    """

    def __init__(self, directory: Path, model: Model, limit_bytes: int) -> None:
        self.index = PrefixIndex(directory)
        self._model = model
        self._print = made_by(model)
        self.limit_bytes = limit_bytes
        self.label = ""
        self._writer = PageWriter(self.index, model.name, self._print, limit_bytes)

    @property
    def error(self) -> OSError | None:
        return self._writer.error

    def refusal(self, cache: Cache) -> str | None:
        """Why prefixes of such a cache cannot be stored; None if they can."""
        refusal = slice_refusal(cache)
        states = recurrent_states(cache)
        if any(state.left_padding is not None or state.lengths is not None for state in states):
            return refusal or "its prompts are padded"
        return refusal

    def fill(self, cache: Cache, ids: np.ndarray, window: int | None) -> int:
        """Fill the empty cache with the longest stored prefix of `ids: (T,)`; return its length.

        Whole pages, at most T - 1 tokens and at most `window`, the cache's own (None: unbounded).
        If nothing is stored, returns 0 and leaves the cache unchanged. A model with recurrent
        states can only continue after a page that has them.
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
        """How many tokens `fill` will restore, if every stored page can be read."""
        with suppress(OSError):
            return len(self._fillable_chain(self._keys_to_fill(cache, ids, window))) * PAGE
        return 0

    def recorder(
        self, cache: Cache, ids: np.ndarray, cached: int, window: int | None
    ) -> OnHeld | None:
        """A function for `prefill` to call with each step's ids, to store the pages of
        `ids: (T,)`; None if nothing can be stored.

        The cache has the first `cached` tokens, prefilled or filled, with none evicted or rewound.
        Nothing is stored beyond `window`, or after a token that is not in `ids`.
        """
        if self.refusal(cache) is not None:
            return None
        ids = ids[: _reusable_tokens(cache, window, len(ids))].astype(np.int32)
        keys = page_keys(self._print, ids, PAGE)
        try:
            stored = self.index.chain(keys)
        except OSError as error:
            self._writer.error = error
            return None
        self._touch(page.key for page in stored)
        recorder = Recorder(
            self._writer, self.like, cache, ids, keys=keys, stored=stored, label=self.label
        )
        return recorder if recorder.begin(cached) else None

    def close(self) -> None:
        """Wait for the writes, enforce the limit, and close the files."""
        self._writer.close()
        with suppress(OSError):
            self.index.prune(self.limit_bytes)
        self.index.close()

    # Reading

    @cached_property
    def like(self) -> Cache:
        """What the model itself stores for one token: shapes and dtypes."""
        return run_lazily(self._model.shard)

    def _keys_to_fill(self, cache: Cache, ids: np.ndarray, window: int | None) -> list[str]:
        """Keys of the pages that the cache could be filled from; none if it is not empty."""
        if self.refusal(cache) is not None or not _is_untouched(cache):
            return []
        reusable = _reusable_tokens(cache, window, len(ids) - 1)
        return page_keys(self._print, ids[:reusable], PAGE)

    def _fillable_chain(self, keys: Sequence[str]) -> list[Page]:
        # If nothing can be stored, do not even create the directory.
        chain = self.index.chain(keys) if keys else []
        needs_state = bool(recurrent_states(self.like))
        while needs_state and chain and not chain[-1].has_state:
            chain.pop()
        return chain

    def _load(self, cache: Cache, ids: np.ndarray, chain: Sequence[Page]) -> Arrays | None:
        """The arrays of all layers after the chain's tokens. If a page cannot be used, removes it
        and returns None."""
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
            # Copied from the mapped file without the device, which waits only once, for all pages.
            for name, tensor in whole.items():
                _put(tensor.bits, page[name].bits, tokens - row.depth)
        return tensor_file.loaded(whole | {name: page[name] for name in states_of(self.like)})

    def _read(self, row: Page, ids: np.ndarray) -> Tensors:
        """Raises SnapshotBroken if this is not this model's page of these tokens."""
        path = self.index.path_of(row.key)
        tensors, facts = tensor_file.read_bits(path, max_bytes=row.bytes)
        right = (
            facts == {"model": self._print}
            and "ids" in tensors
            and np.array_equal(tensors["ids"].bits, ids[: row.depth])
            and self._has_keys_and_values(tensors)
            and (not row.has_state or self._has_states(tensors))
        )
        if not right:
            raise SnapshotBroken(f"the content of {path} does not match its name")
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
        # A state's shape after one token may differ from its shape after many.
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
        # If this fails, the pages only seem older than they are.
        with suppress(OSError):
            self.index.touch(keys)


def has_room(directory: Path, limit_bytes: int) -> bool:
    """Whether the disk has room for a full cache in the directory."""
    nearest = next(each for each in (directory, *directory.parents) if each.exists())
    return shutil.disk_usage(nearest).free > limit_bytes


def _is_untouched(cache: Cache) -> bool:
    """Whether the cache has never been given a token: rewound tokens still move positions."""
    return not any(window.total or window.offset for window in windows(cache)) and all(
        state.empty() for state in recurrent_states(cache)
    )


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
