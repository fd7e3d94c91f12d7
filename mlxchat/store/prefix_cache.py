"""A cache of prompt prefixes on the disk: keys and values prefilled once are read back, whatever
conversation or document they were for, instead of computed again.

A prefix is stored in pages of 128 tokens, each in one of `CacheFiles`. Its name is a hash of the
model, of its tokens and of all pages before it, so prompts that begin alike share pages. Pages
restore exactly what prefill computed, bit for bit. Any problem costs no more than a prefill.
"""

import hashlib
import time
from functools import cached_property
from pathlib import Path

import numpy as np

from mlxchat.cache import Cache, run_lazily
from mlxchat.cache.layers import plain_refusal, recurrent_states, windows
from mlxchat.cache.placement import Entries
from mlxchat.engine.prefill import OnHeld
from mlxchat.models.model import Model
from mlxchat.store import tensor_file
from mlxchat.store.cache_files import CacheFiles
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


class PrefixCache:
    """The prefixes in `directory` that this model can use, limited to `limit_bytes` of files.

    For one thread at a time. Problems with the disk or its files raise nothing; `error` is the
    reason why the last page that failed was not stored. `label` describes the next text in lists.
    """

    def __init__(self, directory: Path, model: Model, limit_bytes: int) -> None:
        self.files = CacheFiles(directory, limit_bytes)
        self.limit_bytes = limit_bytes
        self.label = ""
        self._model = model
        self._made_by = made_by(model)
        self._writer = PageWriter(self.files, model.name)

    @property
    def error(self) -> OSError | None:
        return self._writer.error

    def refusal(self, cache: Cache) -> str | None:
        """Why prefixes of such a cache cannot be stored; None if they can."""
        refusal = plain_refusal(cache)
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
        pages: list[Tensors] = []
        for key in keys:
            page = self.files.read(key)
            if page is None:
                break
            pages.append(page)
        states = states_of(self.like).keys()
        while pages and not states <= pages[-1].keys():
            pages.pop()
        found = len(pages)
        if pages:
            self._restore(cache, self._joined(cache, pages), found * PAGE)
            self.files.touch(keys[:found])
        return found * PAGE

    def known(self, cache: Cache, ids: np.ndarray, window: int | None) -> int:
        """How many tokens `fill` will restore, if every stored page can be read."""
        keys = self._keys_to_fill(cache, ids, window)
        count = self.files.present(keys)
        while count and not self._has_states(keys[count - 1]):
            count -= 1
        return count * PAGE

    def recorder(
        self, cache: Cache, ids: np.ndarray, cached: int, window: int | None
    ) -> OnHeld | None:
        """A function for `prefill` to call with each step's ids, to store the pages of
        `ids: (T,)`; None if nothing can be stored.

        The cache has the first `cached` tokens, prefilled or filled, with none evicted or rewound.
        Nothing is stored beyond `window`, or after a token that is not in `ids`.
        """
        if self.refusal(cache) is not None or not self.files.has_room():
            return None
        ids = ids[: _reusable_tokens(cache, window, len(ids))].astype(np.int32)
        keys = self.page_keys(ids)
        stored, now = self.files.present(keys), time.time()
        self.files.touch(keys[:stored], now)
        done = [self._has_states(key) for key in keys[:stored]]
        recorder = Recorder(
            self._writer, self.like, cache, ids, keys=keys, done=done, label=self.label, now=now
        )
        return recorder if recorder.begin(cached) else None

    def close(self) -> None:
        """Wait for the writes, and enforce the limit."""
        self._writer.close()

    def page_keys(self, ids: np.ndarray) -> list[str]:
        """The keys of the complete pages of `ids: (T,)`, in order."""
        keys: list[str] = []
        parent = ""
        for end in range(PAGE, len(ids) + 1, PAGE):
            digest = hashlib.blake2b(f"{self._made_by}\n{parent}\n".encode(), digest_size=20)
            digest.update(ids[end - PAGE : end].astype("<i4").tobytes())
            parent = digest.hexdigest()
            keys.append(parent)
        return keys

    @cached_property
    def like(self) -> Cache:
        """What the model itself stores for one token: shapes and dtypes."""
        return run_lazily(self._model.shard)

    def _keys_to_fill(self, cache: Cache, ids: np.ndarray, window: int | None) -> list[str]:
        """Keys of the pages that the cache could be filled from; none if it is not empty."""
        if self.refusal(cache) is not None or not _is_untouched(cache):
            return []
        return self.page_keys(ids[: _reusable_tokens(cache, window, len(ids) - 1)])

    def _has_states(self, key: str) -> bool:
        """Whether the stored page has all that the model needs to continue after it."""
        return not recurrent_states(self.like) or bool(self.files.facts(key).get("has_states"))

    def _joined(self, cache: Cache, pages: list[Tensors]) -> Arrays:
        """The arrays of all layers after these pages. Empties `pages`, so that each is freed once
        copied."""
        tokens = len(pages) * PAGE
        whole: Tensors = {}
        for i in used_layers(self.like):
            size = min(tokens, windows(cache)[i].max_size or tokens)
            for name, array in arrays_of(i, windows(self.like)[i]):
                whole[name] = tensor_file.empty(of_length(size, array), array.dtype)
        states = {name: pages[-1][name] for name in states_of(self.like)}
        # Copied from the mapped files without the device, which waits only once, for all pages.
        while pages:
            page = pages.pop()
            for name, tensor in whole.items():
                _put(tensor.bits, page[name].bits, tokens - (len(pages) + 1) * PAGE)
        return tensor_file.loaded(whole | states)

    def _restore(self, cache: Cache, loaded: Arrays, tokens: int) -> None:
        for i in used_layers(self.like):
            entries = Entries(loaded[f"{i}.keys"], loaded[f"{i}.values"])
            windows(cache)[i].fill(entries, tokens)
        for i, state in enumerate(recurrent_states(cache)):
            state.cache = [loaded.get(f"r.{i}.{j}") for j in range(len(state.cache))]


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
