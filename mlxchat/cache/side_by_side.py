"""A whole model's cache for several rows side by side, and whether the model can decode them so.

mlx-lm's BatchGenerator is not used: its windows forget the kept tokens, it holds whole vocabularies
of log-probabilities, and it draws before a constraint has seen the previous token.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import ArraysCache, CacheList

from mlxchat.cache.layers import Cache, LayerCache, leaves, plain_refusal, recurrent_states, windows
from mlxchat.cache.powers import install_sharing
from mlxchat.cache.ring import Entries
from mlxchat.cache.rows import Change, EndingsWindow, RowsWindow, Seat, Seats, padded
from mlxchat.cache.window import WindowCache

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
        mask_dims = 5 if type(network).__module__.rpartition(".")[2] in GROUPED else 4
        self._rows: list[Seat | None] = []
        self._max_tokens = max_tokens
        sizes = {size: Seats(self._rows, size) for size in {w.max_size for w in windows(cache)}}

        def for_rows(leaf: LayerCache) -> LayerCache:
            if isinstance(leaf, ArraysCache):
                return ArraysCache(len(leaf.cache))
            return RowsWindow(sizes[leaf.max_size], mask_dims)

        super().__init__(_replaced(layer, for_rows) for layer in cache)
        self._start: Cache | None = None
        own = [leaf for leaf in leaves(self) if isinstance(leaf, RowsWindow)]
        self._groups = [(each, [w for w in own if w.seats is each]) for each in sizes.values()]

    @property
    def seats(self) -> int:
        """B."""
        return len(self._rows)

    def add(
        self, cache: Cache, row: int = 0, tokens: int | None = None, start: Cache | None = None
    ) -> int:
        """Let the sequence in `cache` take a seat, and return its number. Copies the cache.

        If the cache has several rows, that is one of them, and its first `tokens`. If the sequence
        begins with the one in `start`, that is not copied, unless rows begin with another one.
        """
        self.reserve(1)
        seat = self._rows.index(None)
        total = _total(cache) if tokens is None else tokens
        begins = start is not None and self.begins(start)
        new = Seat(total, begins)
        for seats, own in self._groups:
            seats.fit(own, seats.size(new))
        self._rows[seat] = new
        for ours, theirs in zip(leaves(self), leaves(cache), strict=True):
            if isinstance(ours, RowsWindow):
                has_shared = begins and ours.seats.shared_tokens > 0
                ours.place(seat, new, _entries(theirs, row, total, without_shared=has_shared))
            else:
                _seat_states(ours, seat, theirs, self.seats)
        # A lazy copy would keep the other cache alive.
        mx.eval([leaf.state for leaf in leaves(self)])
        return seat

    def leave(self, seat: int) -> None:
        """Empty a seat."""
        self._rows[seat] = None

    def compact(self) -> list[int]:
        """Remove the empty seats; return the former numbers of the others."""
        kept = [seat for seat, row in enumerate(self._rows) if row is not None]
        self._rows[:] = [self._rows[seat] for seat in kept]
        indices = mx.array(kept, mx.int32)
        self._change(lambda x: x[indices])
        mx.eval([leaf.state for leaf in leaves(self)])
        return kept

    def move_to(self, cache: Cache, seat: int) -> None:
        """Move the row in this seat to an empty cache of its own, and empty the seat."""
        row = self._rows[seat]
        assert row is not None
        for ours, theirs in zip(leaves(self), leaves(cache), strict=True):
            if isinstance(ours, RowsWindow):
                theirs.fill(ours.entries(seat, row), row.total)
            else:
                theirs.cache = [None if x is None else x[seat : seat + 1] for x in ours.cache]
        mx.eval([layer.state for layer in cache])
        self.leave(seat)

    def begin_step(self) -> None:
        """Give each row one more token. Call it before the model."""
        for seats, own in self._groups:
            seats.fit(own)
            seats.begin_step()
        for row in self._rows:
            if row is not None:
                row.total += 1

    def reserve(self, seats: int) -> None:
        """Have at least that many empty seats. Adding them one by one would copy all rows each
        time."""
        missing = seats - self._rows.count(None)
        if missing > 0:
            self._rows += [None] * missing
            self._change(lambda x: padded(x, 0, 0, missing))

    def _change(self, change: Change) -> None:
        for leaf in leaves(self):
            if isinstance(leaf, RowsWindow):
                leaf.change(change)
            else:
                leaf.cache = [None if x is None else change(x) for x in leaf.cache]

    def begins(self, start: Cache) -> bool:
        """Whether a row may begin with the tokens in `start` now, which are then stored once."""
        if start is not self._start:
            if any(row is not None and row.begins for row in self._rows):
                return False
            self._start = start
            for seats, _ in self._groups:
                seats.shared_tokens = _total(start) if seats.holds(self._max_tokens) else 0
            for ours, theirs in zip(leaves(self), leaves(start), strict=True):
                if isinstance(ours, RowsWindow) and ours.seats.shared_tokens:
                    ours.share(Entries(*theirs.entries[:2]))
        return True


def find_support(
    network: nn.Module, make: Callable[[], Cache], max_tokens: int | None
) -> tuple[str | None, bool]:
    """Why the model cannot compute several rows, None if it can; and whether they share the tokens
    that they begin with. The arguments are those of `compute_alike`."""
    reason = plain_refusal(make(), "this model groups tokens by their place in the window")
    if reason is not None:
        return reason, False
    for shares in (True, False):
        if compute_alike(network, make, max_tokens, shares=shares):
            return None, shares
    return "this model computes rows of different lengths differently", False


def compute_alike(
    network: nn.Module, make: Callable[[], Cache], max_tokens: int | None, *, shares: bool
) -> bool:
    """Whether the model computes rows of at most `max_tokens` side by side as it does each alone;
    if it `shares`, with the tokens that they begin with stored once. `make` returns an empty cache.
    Runs the model on a few tokens, and then replaces its attention."""
    start = _read(network, make(), [2, 3, 4])
    rows = RowsCache(network, make(), max_tokens)
    together = shares and most_together(start) != 0
    try:
        if shares:
            install_sharing(network)
        read = after(start) if together else start.fork()
        texts = [[5, 6], [5, 7]] if together else [[5, 6]]
        rows.add(_read(network, read, *texts), 0, 5, start if shares else None)
        rows.add(_read(network, make(), [4]))
        rows.begin_step()
        logits = network(mx.full((2, 1), 1), cache=rows)[:, -1, :]
        mx.eval(logits)
    except (ValueError, TypeError, RuntimeError, AttributeError):
        return False
    pairs = (([5, 6, 1], start.fork()), ([4, 1], make()))
    alone = [network(mx.array([ids]), cache=cache)[:, -1, :] for ids, cache in pairs]
    expected = mx.concatenate(alone).astype(mx.float32)
    error: Any = mx.linalg.norm(logits.astype(mx.float32) - expected) / mx.linalg.norm(expected)
    if not error.item() < TOLERANCE[logits.dtype]:
        return False
    used = [leaf for leaf in leaves(rows) if isinstance(leaf, RowsWindow) and leaf.state]
    sharing = [window for window in used if window.shared is not None]
    return not shares or (bool(sharing) and all(window.attended for window in sharing))


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
        several = window.entries.each(lambda x: mx.repeat(x, rows, axis=0))
        window.restore(several, window.placement)
    return copies


def after(start: Cache) -> Cache:
    """An empty cache for several texts that begin with the one in `start`, to be read in one step
    by a model whose rows share it. Up to `most_together` tokens each."""
    return Cache(_replaced(layer, EndingsWindow) for layer in start)


def _read(network: nn.Module, cache: Cache, *texts: list[int]) -> Cache:
    network(mx.array(texts), cache=cache)
    mx.eval([layer.state for layer in cache])
    return cache


def _total(cache: Cache) -> int:
    """How many tokens the cache has been given. A model may have layers that it never uses."""
    return max((window.total for window in windows(cache)), default=0)


def _entries(leaf: WindowCache, row: int, total: int, *, without_shared: bool) -> Entries:
    """The entries of a row of `total` tokens; those that it shares may be among them anyway."""
    own = leaf.entries.each(lambda x: x[row : row + 1])
    if not isinstance(leaf, EndingsWindow):
        return own.between(0, total)
    own = own.between(0, total - leaf.shared.tokens)
    return own if without_shared else leaf.shared.followed_by(own)


def _replaced(layer: LayerCache, replace: Callable[[LayerCache], LayerCache]) -> LayerCache:
    """The layer with its windows and recurrent states replaced, those in lists, too."""
    if isinstance(layer, CacheList):
        return CacheList(*(_replaced(each, replace) for each in layer.caches))
    return replace(layer)


def _seat_states(ours: ArraysCache, seat: int, theirs: ArraysCache, seats: int) -> None:
    """Copy one row's recurrent states `(1, …)` to its seat among `(B, …)`."""
    for index, (held, new) in enumerate(zip(ours.cache, theirs.cache, strict=True)):
        if held is not None:
            held[seat : seat + 1] = 0 if new is None else new
        elif new is not None:
            room = mx.zeros((seats, *new.shape[1:]), new.dtype)
            room[seat : seat + 1] = new
            ours.cache[index] = room
