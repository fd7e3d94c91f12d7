"""Cuts pages of keys and values out of a cache while it is prefilled, and writes them in another
thread. `prefix_cache` decides which are stored, and reads them."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import mlx.core as mx
import numpy as np

from mlxchat.cache import Cache, WindowCache
from mlxchat.cache.layers import recurrent_states, windows
from mlxchat.store import tensor_file
from mlxchat.store.cache_files import OLDER_S, CacheFiles
from mlxchat.store.state_file import Background
from mlxchat.store.tensor_file import Tensor

PAGE = 128  # tokens

# Pages waiting to be written: bounds the memory that a slow disk can take up.
PAGES_IN_FLIGHT = 4

Arrays = dict[str, mx.array]
Tensors = dict[str, Tensor]


class PageWriter(Background):
    """Writes pages of one model to `files`. `error` is the reason why the last page that failed was
    not stored."""

    def __init__(self, files: CacheFiles, model_name: str) -> None:
        super().__init__(PAGES_IN_FLIGHT)
        self.files = files
        self.model_name = model_name
        self.error: OSError | None = None

    def close(self) -> None:
        """Wait for all writes, and enforce the limit."""
        self.wait()
        with suppress(OSError):
            self.files.prune(self.files.limit_bytes)


class Recorder:
    """Cuts the steps of one prefill into pages, and writes those that are not stored. Of the first
    `keys` there are files; those of which `done` is False lack a recurrent model's states."""

    def __init__(
        self,
        writer: PageWriter,
        like: Cache,
        cache: Cache,
        ids: np.ndarray,
        *,
        keys: Sequence[str],
        done: Sequence[bool],
        label: str,
        now: float,
    ) -> None:
        self._writer = writer
        self._like = like
        self._cache = cache
        self._ids = ids
        self._keys = keys
        self._done = done
        self._label = label
        self._now = now
        self._position = 0
        self._end = len(keys) * PAGE
        self._stopped = False

    def begin(self, cached: int) -> bool:
        """Continue after `cached` tokens. False if there is nothing to store that could be found
        again."""
        self._position = cached
        return cached // PAGE <= len(self._done) and cached < self._end and self._is_at(cached)

    def __call__(self, step: np.ndarray) -> None:
        """Store the pages that the step completes, a few at a time."""
        begin, end = self._position, self._position + len(step)
        self._position = end
        if self._stopped or begin >= self._end:
            return
        same = np.array_equal(step[: len(self._ids) - begin], self._ids[begin:end])
        pages = range(begin // PAGE, min(end, self._end) // PAGE)
        wanted = [place for place in pages if self._is_wanted(place)]
        if not (same and self._is_at(end) and (not wanted or self._holds(wanted[0], end))):
            self._stopped = True
            return
        for first in range(0, len(wanted), PAGES_IN_FLIGHT):
            self._take(wanted[first : first + PAGES_IN_FLIGHT], end)

    def _windows(self) -> list[WindowCache]:
        return [windows(self._cache)[i] for i in used_layers(self._like)]

    def _is_at(self, tokens: int) -> bool:
        """Whether every layer has been given this many tokens, and none has been moved."""
        return all(window.total == window.offset == tokens for window in self._windows())

    def _holds(self, place: int, end: int) -> bool:
        """Whether every layer still has the whole page; a narrow one has lost its beginning if the
        steps are small."""
        return all(window.size() >= end - place * PAGE for window in self._windows())

    def _take(self, places: Sequence[int], end: int) -> None:
        """Copy these pages, and the states if the last one ends here. One evaluation for all,
        because each waits for the device."""
        copies: dict[tuple[int, str], mx.array] = {}
        for place in places:
            for name, array in self._entries(end - place * PAGE).items():
                copies[place, name] = array
        if (places[-1] + 1) * PAGE == end:
            # No copies of the states: a model replaces these arrays and never writes into them.
            copies |= {(places[-1], name): array for name, array in self._whole_states().items()}
        held = tensor_file.hold(copies)
        for place in places:
            page = {name: held[of, name] for of, name in held if of == place}
            has_states = states_of(self._like).keys() <= page.keys()
            if has_states or place >= len(self._done):
                self._writer.run(partial(self._write, place, page, has_states))

    def _is_wanted(self, place: int) -> bool:
        return place >= len(self._done) or not self._done[place]

    def _whole_states(self) -> Arrays:
        """The recurrent states, if all that the model needs to continue are there."""
        states = states_of(self._cache)
        return states if states.keys() == states_of(self._like).keys() else {}

    def _entries(self, first: int) -> Arrays:
        """Copies of a page's entries, from the `first` latest on."""
        copies: Arrays = {}
        for i in used_layers(self._like):
            keys, values, _ = windows(self._cache)[i].entries
            assert keys is not None
            assert values is not None
            start = keys.shape[2] - first
            # Copied explicitly: MLX copies a slice of a larger buffer even if it is contiguous.
            copies[f"{i}.keys"] = mx.contiguous(keys[..., start : start + PAGE, :])
            copies[f"{i}.values"] = mx.contiguous(values[..., start : start + PAGE, :])
        return copies

    def _write(self, place: int, page: Tensors, has_states: bool) -> int:
        files = self._writer.files
        # A page could not be reached after one that another process deleted.
        if self._stopped or (place and not files.path_of(self._keys[place - 1]).exists()):
            self._stopped = True
            return 0
        facts = {
            "kind": "prefix",
            "tokens": (place + 1) * PAGE,
            "has_states": has_states,
            "model": self._writer.model_name,
            "label": self._label,
        }
        used = self._now - place * OLDER_S
        try:
            return files.write(self._keys[place], page, facts, used)
        except OSError as error:
            self._writer.error = error
            self._stopped = True
            return 0


def used_layers(like: Cache) -> list[int]:
    """Indices of the windows that are used: some models have layers that they give no tokens."""
    return [i for i, window in enumerate(windows(like)) if window.keys is not None]


def arrays_of(i: int, window: WindowCache) -> list[tuple[str, mx.array]]:
    """A layer's arrays, by their names in a page."""
    assert window.keys is not None
    assert window.values is not None
    return [(f"{i}.keys", window.keys), (f"{i}.values", window.values)]


def states_of(cache: Cache) -> Arrays:
    """The recurrent states, by their names in a page."""
    return {
        f"r.{i}.{j}": array
        for i, state in enumerate(recurrent_states(cache))
        for j, array in enumerate(state.cache)
        if array is not None
    }


def of_length(tokens: int, like: mx.array) -> tuple[int, ...]:
    return (*like.shape[:2], tokens, *like.shape[3:])
