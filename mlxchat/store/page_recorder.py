"""Pages of keys and values, cut out of a cache while it is prefilled, and written by a thread of
their own. Which of them are stored, and reading them, is `prefix_cache`'s business."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import mlx.core as mx
import numpy as np

from mlxchat.cache import Cache, WindowCache
from mlxchat.cache.layers import recurrent_states, windows
from mlxchat.store import tensor_file
from mlxchat.store.prefix_index import ROOT, Page, PrefixIndex
from mlxchat.store.tensor_file import Tensor

PAGE = 128  # tokens

# Pages that may wait to be written: what a slow disk can make memory hold, beside the cache.
PAGES_IN_FLIGHT = 4

Arrays = dict[str, mx.array]
Tensors = dict[str, Tensor]


class PageWriter:
    """Writes pages of one model, `print`, in the order in which they come, and keeps to
    `limit_bytes`. `error` is why the last page that was not stored was not."""

    def __init__(self, index: PrefixIndex, model_name: str, print: str, limit_bytes: int) -> None:
        self.index = index
        self.print = print
        self.limit_bytes = limit_bytes
        self.error: OSError | None = None
        self._model_name = model_name
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pages")
        self._writes: deque[Future[None]] = deque()

    def close(self) -> None:
        """Wait for the writes."""
        self.wait_for(0)
        self._thread.shutdown()

    def submit(self, job: Callable[[], None]) -> None:
        """Have the job done by the thread beside, once few others wait for it."""
        self._writes.append(self._thread.submit(job))
        self.wait_for(PAGES_IN_FLIGHT)

    def store(
        self, key: str, parent: str, depth: int, tensors: dict[str, Tensor], has_state: bool
    ) -> bool:
        """Write a page, and keep to the limit; False if it has no place any more, because the
        page before was deleted. Raises OSError."""
        facts = {"model": self.print}
        return self.index.store(
            key,
            parent,
            lambda path: tensor_file.write(path, tensors, facts, full_sync=False),
            limit_bytes=self.limit_bytes,
            depth=depth,
            model=self._model_name,
            has_state=has_state,
        )

    def fail(self, error: OSError) -> None:
        self.error = error

    def wait_for(self, most: int) -> None:
        while len(self._writes) > most:
            self._writes.popleft().result()


class Recorder:
    """Cuts the steps of one prefill into pages and has those written that are not stored."""

    def __init__(
        self,
        writer: PageWriter,
        like: Cache,
        cache: Cache,
        ids: np.ndarray,
        *,
        keys: Sequence[str],
        stored: Sequence[Page],
    ) -> None:
        self._writer = writer
        self._like = like
        self._cache = cache
        self._ids = ids
        self._keys = keys
        self._stored = stored
        self._position = 0
        self._end = len(keys) * PAGE
        self._pieces: list[dict[str, Tensor]] = []
        self._stopped = False

    def begin(self, cached: int) -> bool:
        """Continue after `cached` tokens; False if there is nothing to store that could be found
        again, or if the beginning of the page is no longer held."""
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
        return [windows(self._cache)[i] for i in used_layers(self._like)]

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
        """Not stored; or without the states that a model with recurrent layers continues from."""
        if place >= len(self._stored):
            return True
        return bool(recurrent_states(self._cache)) and not self._stored[place].has_state

    def _whole_states(self) -> Arrays:
        """The recurrent states, if all that the model continues from are there."""
        states = states_of(self._cache)
        return states if states.keys() == states_of(self._like).keys() else {}

    def _entries(self, first: int, last: int) -> Arrays:
        """Copies of the entries from the `first` latest up to the `last` latest."""
        copies: Arrays = {}
        for i in used_layers(self._like):
            keys, values, _ = windows(self._cache)[i].entries
            assert keys is not None
            assert values is not None
            stop = keys.shape[2] - last
            start = keys.shape[2] - first
            # Copies: of a slice of a larger buffer MLX makes one even if it lies in order.
            copies[f"{i}.keys"] = mx.contiguous(keys[..., start:stop, :])
            copies[f"{i}.values"] = mx.contiguous(values[..., start:stop, :])
        return copies

    def _finish(self, place: int, states: Tensors) -> None:
        pieces, self._pieces = self._pieces, []
        if states or place >= len(self._stored):
            self._writer.submit(partial(self._write, place, pieces, states))

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
            stored = self._writer.store(self._keys[place], parent, depth, tensors, bool(states))
            self._stopped = not stored
        except OSError as error:
            self._writer.fail(error)
            self._stopped = True


def used_layers(like: Cache) -> list[int]:
    """Which windows hold anything: a model may have layers that it gives no tokens."""
    return [i for i, window in enumerate(windows(like)) if window.keys is not None]


def arrays_of(i: int, window: WindowCache) -> list[tuple[str, mx.array]]:
    """A layer's arrays by the names that they have in a page."""
    assert window.keys is not None
    assert window.values is not None
    return [(f"{i}.keys", window.keys), (f"{i}.values", window.values)]


def states_of(cache: Cache) -> Arrays:
    """The recurrent states by the names that they have in a page."""
    return {
        f"r.{i}.{j}": array
        for i, state in enumerate(recurrent_states(cache))
        for j, array in enumerate(state.cache)
        if array is not None
    }


def of_length(tokens: int, like: mx.array) -> tuple[int, ...]:
    return (*like.shape[:2], tokens, *like.shape[3:])


def _joined(pieces: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The page of which each piece holds some tokens."""
    joined: dict[str, Tensor] = {}
    for name, tensor in pieces[0].items():
        bits = np.concatenate([piece[name].bits for piece in pieces], axis=2)
        joined[name] = Tensor(tensor.type, bits.shape, bits)
    return joined
