"""Decode several sequences side by side: one token of each row in one step.

Works on arrays only, like `decode`. Rows may come and go between steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat import platform
from mlxchat.cache import Cache
from mlxchat.cache.side_by_side import RowsCache, after, repeated
from mlxchat.engine.decode import CLEAR_EVERY
from mlxchat.engine.draw import Chooser, Decoded, Drawn
from mlxchat.errors import ConstraintError, ModelError
from mlxchat.text.spans import TokenIds

# What costs one row, and no other.
ROW_FAILURES = (ModelError, ConstraintError)
RowFailure = ModelError | ConstraintError


def prefill_together(
    network: nn.Module, cache: Cache, texts: Sequence[TokenIds], *, shares: bool = False
) -> list[tuple[Cache, int]]:
    """Read several texts in one step, each after what `cache` holds. Returns for each a cache with
    several rows, and its row. If the model `shares` the start of rows, that is not copied.

    Shorter ones are padded at the end, after all their tokens, which therefore do not see it. On a
    CPU with several cores, each computes a part of the rows.
    """
    padded = np.zeros((len(texts), max(map(len, texts))), np.int32)
    for row, ids in zip(padded, texts, strict=True):
        row[: len(ids)] = ids
    read: list[Cache] = []
    with platform.prefill_streams() as streams:
        parts = [part for part in np.array_split(padded, len(streams)) if len(part)]
        for part, stream in zip(parts, streams, strict=False):
            with mx.stream(stream):
                read.append(after(cache) if shares else repeated(cache, len(part)))
                network(mx.array(part), cache=read[-1])
        mx.eval([layer.state for rows in read for layer in rows])
    return [(rows, row) for rows, part in zip(read, parts, strict=True) for row in range(len(part))]


@dataclass(eq=False, slots=True)
class Likeliest:
    """The likeliest token of each seat, `(B,)`, which is read once for all rows."""

    tokens: mx.array
    _ids: Any = None

    def at(self, seat: int) -> int:
        if self._ids is None:
            self._ids = self.tokens.tolist()
        return self._ids[seat]


@dataclass(eq=False, slots=True)
class BatchRow:
    """One row. `next` has been drawn after the `last` token known, and not been read yet. At most
    `max_tokens` are wanted; -1 means no limit."""

    chooser: Chooser
    last: int
    max_tokens: int = -1
    seat: int = -1
    next: Drawn | Likeliest | None = None
    drawn: int = 0

    @property
    def is_at_end(self) -> bool:
        """Whether `next` is the last token wanted."""
        return self.next is not None and self.drawn == self.max_tokens


class Batch:
    """Rows that are decoded together; each may have other sampling settings and constraints.

    The tokens after the next ones are computed while the caller handles the next ones. A row's
    tokens are those that it would get alone, up to rounding.
    """

    def __init__(self, network: nn.Module, rows: RowsCache) -> None:
        self._network = network
        self._cache = rows
        self._rows: list[BatchRow] = []
        # The latest, which is the next token of all rows that are plain.
        self._likeliest: Likeliest | None = None
        self._steps = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def seats(self) -> int:
        """Rows that are computed, taken or not."""
        return self._cache.seats

    @property
    def nbytes(self) -> int:
        """Bytes allocated for all rows."""
        return sum(layer.nbytes for layer in self._cache)

    def add(
        self,
        added: BatchRow,
        cache: Cache,
        row: int = 0,
        tokens: int | None = None,
        start: Cache | None = None,
    ) -> None:
        """Add a row whose tokens, all but the `last` one, are in `cache`, which is copied. They are
        the first `tokens` of one `row` if there are several, as after `prefill_together`. Tokens
        that are also in `start` are shared with other rows."""
        added.seat = self._cache.add(cache, row, tokens, start)
        self._rows.append(added)

    def reserve(self, rows: int) -> None:
        """Make room for that many more rows, which are about to be added."""
        self._cache.reserve(rows)

    def remove(self, row: BatchRow) -> None:
        """Remove a row; what was computed of it in advance is dropped."""
        self._cache.leave(row.seat)
        self._rows.remove(row)

    def move(self, row: BatchRow, cache: Cache) -> Decoded | None:
        """Remove a row and move its tokens to an empty cache. Returns its next token, which is not
        in the cache, if it has one yet."""
        self._cache.move_to(cache, row.seat)
        self._rows.remove(row)
        return None if row.next is None else self._take(row, row.next)

    def close_gaps(self) -> None:
        """Stop computing empty seats, if no rows are going to take them."""
        kept = self._cache.compact()
        for row in self._rows:
            row.seat = kept.index(row.seat)
        if self._likeliest is not None:
            known = [seat for seat in kept if seat < self._likeliest.tokens.size]
            self._likeliest = Likeliest(self._likeliest.tokens[mx.array(known, mx.int32)])
            for row in self._rows:
                row.next = self._likeliest if isinstance(row.next, Likeliest) else row.next

    def step(self) -> list[tuple[BatchRow, Decoded | RowFailure]]:
        """Return the next token of each row, and begin computing the one after it; for a row whose
        constraint cannot be kept, the error, perhaps after its token: remove that row.

        A row that has just been added has no next token yet. If all rows are at their ends, nothing
        is computed.
        """
        current = [(row, row.next) for row in self._rows]
        if all(row.is_at_end for row in self._rows):
            return [(row, self._tried(row, last)) for row, last in current if last is not None]
        self._cache.begin_step()
        logits = self._network(self._inputs()[:, None], cache=self._cache)[:, -1, :]
        constrained = [row for row in self._rows if row.chooser.constrained is not None]
        if constrained:
            # Computed while the masks are.
            mx.async_eval(logits)
        self._draw([row for row in self._rows if row.chooser.constrained is None], logits)
        taken = [(row, self._tried(row, next_)) for row, next_ in current if next_ is not None]
        refused = {id(row) for row, each in taken if isinstance(each, ROW_FAILURES)}
        constrained = [row for row in constrained if id(row) not in refused]
        # What a constraint rules out depends on the tokens just taken.
        taken += self._draw(constrained, logits)
        self._steps += 1
        if self._steps % CLEAR_EVERY == 0:
            mx.clear_cache()
        return taken

    def _inputs(self) -> mx.array:
        """The last token of each seat, `(B,)`."""
        inputs = mx.zeros(0, mx.int32)
        if self._likeliest is not None:
            inputs = self._likeliest.tokens.astype(mx.int32)
        if inputs.size < self._cache.seats:
            inputs = mx.pad(inputs, (0, self._cache.seats - inputs.size))
        for row in self._rows:
            if not isinstance(row.next, Likeliest):
                inputs[row.seat : row.seat + 1] = self._last(row).astype(mx.int32)
        return inputs

    def _last(self, row: BatchRow) -> mx.array:
        """A row's last token, `(1,)`."""
        if row.next is None:
            return mx.array([row.last], mx.int32)
        if isinstance(row.next, Likeliest):
            return row.next.tokens[row.seat : row.seat + 1]
        return row.next.token

    def _tried(self, row: BatchRow, drawn: Drawn | Likeliest) -> Decoded | RowFailure:
        try:
            return self._take(row, drawn)
        except ROW_FAILURES as error:
            return error

    def _take(self, row: BatchRow, drawn: Drawn | Likeliest) -> Decoded:
        """Wait for a drawn token."""
        decoded = Decoded(drawn.at(row.seat)) if isinstance(drawn, Likeliest) else drawn.read()
        row.chooser.take(decoded.id)
        row.last = decoded.id
        if row.next is drawn:
            row.next = None
        return decoded

    def _draw(
        self, rows: Sequence[BatchRow], logits: mx.array
    ) -> list[tuple[BatchRow, RowFailure]]:
        """Begin drawing the next token of these rows, from the logits `(B, V)` of all seats; return
        those whose constraint allows none."""
        failed: list[tuple[BatchRow, RowFailure]] = []
        likeliest = Likeliest(mx.argmax(logits, axis=-1))
        begun: list[mx.array] = []
        for row in rows:
            if row.chooser.is_plain:
                row.next = self._likeliest = likeliest
                begun.append(likeliest.tokens)
            else:
                after = [] if row.next is None else self._last(row)
                try:
                    drawn = row.chooser.draw(logits[row.seat : row.seat + 1], row.drawn, after)
                except ROW_FAILURES as error:
                    failed.append((row, error))
                    continue
                begun += drawn.arrays()
                row.next = drawn
            row.drawn += 1
        mx.async_eval(*begun)
        return failed
