"""A whole model's cache for several rows side by side, and whether the model can decode them so.

mlx-lm's BatchGenerator is not used: its windows forget the kept tokens, it holds whole vocabularies
of log-probabilities, and it draws before a constraint has seen the previous token.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import ArraysCache, CacheList

from mlxchat.cache.cascade import install_cascade
from mlxchat.cache.layers import Cache, LayerCache, leaves, plain_refusal, recurrent_states, windows
from mlxchat.cache.placement import Entries
from mlxchat.cache.rows import EndingsWindow, RowsWindow
from mlxchat.cache.seats import Seat, Seats

# mlx-lm modules that compute attention `(B, H_kv, H / H_kv, T, T)`, and so need masks of as many
# dimensions.
GROUPED = {"gemma2"}

# Largest relative difference between a row's logits computed alone and side by side.
TOLERANCE = {mx.float32: 1e-3, mx.float16: 0.05, mx.bfloat16: 0.1}


class RowsCache(list[LayerCache]):
    """One object per layer, for `model(tokens, cache=…)` with tokens `(B, 1)`: one of each seat.

    A seat is empty or has a row in it. Empty seats are computed too, and mean nothing. Rows have at
    most `max_tokens` tokens (None: any number), and share those that they begin with in the windows
    that hold as many.
    """

    def __init__(self, network: nn.Module, cache: Cache, max_tokens: int | None = None) -> None:
        """For rows each of which could be in this `cache`, which is empty."""
        module = type(network).__module__.rpartition(".")[2]
        mask_dims = 5 if module in GROUPED else 4
        # Without a window, there are only seats.
        sizes = {size: Seats(size) for size in (None, *(each.max_size for each in windows(cache)))}
        super().__init__(_for_rows(layer, sizes, mask_dims) for layer in cache)
        self._max_tokens = max_tokens
        self._seats = sizes[None]
        self._start: Cache | None = None
        own = [leaf for leaf in leaves(self) if isinstance(leaf, RowsWindow)]
        self._groups = [(each, [w for w in own if w.seats is each]) for each in sizes.values()]

    @property
    def seats(self) -> int:
        """B."""
        return len(self._seats.rows)

    def add(
        self, cache: Cache, row: int = 0, tokens: int | None = None, start: Cache | None = None
    ) -> int:
        """Let the sequence in `cache` take a seat, and return its number. Copies the cache.

        If the cache has several rows, that is one of them, and its first `tokens`. If the sequence
        begins with the one in `start`, that is not copied, unless rows begin with another one.
        """
        self.reserve(1)
        seat = self._seats.rows.index(None)
        total = _total(cache) if tokens is None else tokens
        sharing = [] if start is None or not _total(start) else self.sharing(start)
        begin = {window.seats for window in sharing}
        for seats, own in self._groups:
            new = Seat(total, seats in begin)
            _fit(seats, own, max(seats.longest, seats.size(new)) + 1)
            seats.rows[seat] = new
        for ours, theirs in zip(leaves(self), leaves(cache), strict=True):
            if isinstance(ours, RowsWindow):
                first = ours.seats.shared_tokens if ours.seats in begin else 0
                ours.place(seat, _part(theirs, row, first, total))
            else:
                _seat_states(ours, seat, theirs, self.seats)
        # A lazy copy would keep the other cache alive.
        self.evaluate()
        return seat

    def leave(self, seat: int) -> None:
        """Empty a seat."""
        for seats, _ in self._groups:
            seats.rows[seat] = None

    def compact(self) -> list[int]:
        """Remove the empty seats; return the former numbers of the others."""
        kept = [seat for seat, row in enumerate(self._seats.rows) if row is not None]
        for seats, _ in self._groups:
            seats.rows = [*seats.taken]
        indices = mx.array(kept, mx.int32)
        for leaf in leaves(self):
            if isinstance(leaf, RowsWindow):
                leaf.change(lambda x: x[indices])
            else:
                leaf.cache = [None if x is None else x[indices] for x in leaf.cache]
        self.evaluate()
        return kept

    def move_to(self, cache: Cache, seat: int) -> None:
        """Move the row in this seat to an empty cache of its own, and empty the seat."""
        for ours, theirs in zip(leaves(self), leaves(cache), strict=True):
            if isinstance(ours, RowsWindow):
                theirs.fill(ours.entries(seat), ours.seats.row(seat).total)
            else:
                theirs.cache = [None if x is None else x[seat : seat + 1] for x in ours.cache]
        mx.eval([layer.state for layer in cache])
        self.leave(seat)

    def begin_step(self) -> None:
        """Give each row one more token. Call it before the model."""
        for seats, own in self._groups:
            _fit(seats, own, int(seats.seen_by_next().max(initial=1)))
            seats.begin_step()

    def evaluate(self) -> None:
        """Evaluate all arrays, and nothing else."""
        mx.eval([leaf.state for leaf in leaves(self)])

    def reserve(self, seats: int) -> None:
        """Have at least that many empty seats. Adding them one by one would copy all rows each
        time."""
        missing = seats - self._seats.rows.count(None)
        if missing > 0:
            for each, own in self._groups:
                each.rows += [None] * missing
                for window in own:
                    window.change(lambda x: mx.pad(x, [(0, missing), (0, 0), (0, 0), (0, 0)]))

    def sharing(self, start: Cache) -> list[RowsWindow]:
        """The windows that share the tokens in `start`, if rows may begin with them now."""
        groups = [(seats, own) for seats, own in self._groups if seats.holds(self._max_tokens)]
        sharing = [window for _, own in groups for window in own]
        if start is not self._start:
            if any(seats.any_begins for seats, _ in groups):
                return []
            self._start = start
            for seats, _ in groups:
                seats.shared_tokens = _total(start)
            for ours, theirs in zip(leaves(self), leaves(start), strict=True):
                if ours in sharing:
                    ours.share(Entries(*theirs.entries[:2]))
        return sharing


def find_support(
    network: nn.Module, make: Callable[[], Cache], max_tokens: int | None
) -> tuple[str | None, bool]:
    """Why the model cannot compute several rows, None if it can; and whether they share the tokens
    that they begin with. The arguments are those of `compute_alike`."""
    reason = plain_refusal(make(), "this model groups tokens by their place in the window")
    shares = reason is None and compute_alike(network, make, max_tokens, shares=True)
    # If rows share their start, they may have different lengths, too.
    if not (reason or shares or compute_alike(network, make, max_tokens, shares=False)):
        reason = "this model computes rows of different lengths differently"
    return reason, shares


def compute_alike(
    network: nn.Module, make: Callable[[], Cache], max_tokens: int | None, *, shares: bool
) -> bool:
    """Whether the model computes rows of at most `max_tokens` side by side as it does each alone;
    if it `shares`, with the tokens that they begin with stored once. `make` returns an empty cache.
    Runs the model on a few tokens, and then replaces its attention."""
    start = _read(network, make(), [2, 3, 4])
    rows = RowsCache(network, make(), max_tokens)
    own = [5] if shares else [5, 6]
    try:
        if not shares:
            rows.add(_read(network, start.fork(), own))
        else:
            install_cascade(network)
            if most_together(start) == 0:
                rows.add(_read(network, start.fork(), own), start=start)
            else:
                # The second one is padded.
                together = _read(network, after(start), [6, 7], [*own, 6])
                rows.add(together, 0, 5, start)
                rows.add(together, 1, 4, start)
        rows.add(_read(network, make(), [4]))
        rows.begin_step()
        logits = network(mx.full((rows.seats, 1), 1), cache=rows)[-2:, -1, :]
        mx.eval(logits)
    except (ValueError, TypeError, RuntimeError, AttributeError):
        return False
    pairs = (([*own, 1], start.fork()), ([4, 1], make()))
    alone = [network(mx.array([ids]), cache=cache)[:, -1, :] for ids, cache in pairs]
    expected = mx.concatenate(alone).astype(mx.float32)
    error: Any = mx.linalg.norm(logits.astype(mx.float32) - expected) / mx.linalg.norm(expected)
    if not error.item() < TOLERANCE[logits.dtype]:
        return False
    used = [window for window in rows.sharing(start) if not window.empty()] if shares else []
    return not shares or (bool(used) and all(window.attended for window in used))


def most_together(cache: Sequence[LayerCache]) -> int | None:
    """Up to how many tokens several rows may be prefilled in one cache, shorter ones padded at
    their ends; None for any number. A recurrent state would include the padding, and it would evict
    tokens from a full window."""
    if recurrent_states(cache):
        return 0
    return min((w.max_size for w in windows(cache) if w.max_size is not None), default=None)


def repeated(cache: Cache, rows: int) -> Cache:
    """A cache with several rows, all like the one in `cache`, which does not change."""
    copies = cache.fork()
    for window in windows(copies):
        window.repeat(rows)
    return copies


def after(start: Cache) -> Cache:
    """An empty cache for several texts that begin with the one in `start`, to be read in one step
    by a model whose rows share it. Up to `most_together` tokens each."""
    return Cache(_after(layer) for layer in start)


def _read(network: nn.Module, cache: Cache, *texts: list[int]) -> Cache:
    network(mx.array(texts), cache=cache)
    mx.eval([layer.state for layer in cache])
    return cache


def _total(cache: Cache) -> int:
    """How many tokens the cache has been given. A model may have layers that it never uses."""
    return max((window.total for window in windows(cache)), default=0)


def _part(leaf: LayerCache, row: int, start: int, stop: int) -> Entries:
    """Tokens `start` to `stop` of one row; the latest of them in a narrower window."""
    if isinstance(leaf, EndingsWindow):
        return leaf.part(row, start, stop)
    return leaf.entries.part(row, start, stop)


def _after(layer: LayerCache) -> LayerCache:
    if isinstance(layer, CacheList):
        return CacheList(*(_after(each) for each in layer.caches))
    return EndingsWindow(Entries(*layer.entries[:2]), layer.max_size)


def _for_rows(layer: LayerCache, sizes: Mapping[int | None, Seats], mask_dims: int) -> LayerCache:
    if isinstance(layer, CacheList):
        return CacheList(*(_for_rows(each, sizes, mask_dims) for each in layer.caches))
    if isinstance(layer, ArraysCache):
        return ArraysCache(len(layer.cache))
    return RowsWindow(sizes[layer.max_size], mask_dims)


def _fit(seats: Seats, own: Sequence[RowsWindow], tokens: int) -> None:
    """Let the buffers hold rows of that many tokens, and not many more."""
    spans = seats.fit(tokens)
    if spans is not None:
        for window in own:
            window.rearrange(spans)


def _seat_states(ours: ArraysCache, seat: int, theirs: ArraysCache, seats: int) -> None:
    """Copy one row's recurrent states `(1, …)` to its seat among `(B, …)`."""
    for index, (held, new) in enumerate(zip(ours.cache, theirs.cache, strict=True)):
        like = held if new is None else new
        if like is None:
            continue
        room = mx.zeros((seats, *like.shape[1:]), like.dtype)
        if held is not None:
            room[: held.shape[0]] = held
        room[seat : seat + 1] = 0 if new is None else new
        ours.cache[index] = room
