"""Several sequences side by side: what they share is read once; a step decodes one token of each.

The caller feeds replies, maybe while the next tokens are computed. Rows come and go between steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat import platform
from mlxchat.cache.layers import Cache, after, repeated
from mlxchat.cache.side_by_side import RowsCache
from mlxchat.engine.generate import CLEAR_EVERY
from mlxchat.engine.reply import Reply
from mlxchat.engine.sampling import Drawn, Token
from mlxchat.errors import ConstraintError, ModelError, UsageError
from mlxchat.text.encoder import TokenIds, common_length

# What costs one row, and no other.
ROW_FAILURES = (ModelError, ConstraintError, UsageError)

# Shorter prefixes are not worth a cache.
MIN_TOKENS = 16

# The number of prefixes kept, of which the least recently used is dropped.
MAX_PREFIXES = 4

# Puts the tokens `ids[start:stop]` into a cache that holds the ones before; returns how many are
# in it now, and how many of them came from elsewhere.
Read = Callable[[Cache, TokenIds, int, int], tuple[int, int]]


class Begun(NamedTuple):
    """A cache with the first `held` tokens of a prompt, of which `cached` were not computed for it.
    It begins with the tokens in `start`, if a prefix is known."""

    cache: Cache
    held: int
    cached: int
    start: Cache | None


class SharedPrefixes:
    """Caches of the prefixes that prompts share, which are forked: that copies nothing until a fork
    is written to. `make` returns an empty cache, with this window.

    No prefix is longer than the window: beyond that, where reading pauses decides what each token
    sees, so a prompt would be read differently from how it is read alone.
    """

    def __init__(self, make: Callable[[], Cache], window: int | None = None) -> None:
        self._make = make
        self._window = window
        # Tokens `(T,)` and a cache that holds them, the least recently used first.
        self._prefixes: list[tuple[TokenIds, Cache]] = []

    def begin(self, ids: TokenIds, following: Sequence[TokenIds], read: Read) -> Begun:
        """A cache with the first tokens of `ids: (T,)`. Leaves at least the last token.

        Reads a prefix if it is shared with `following` prompts; `read` may stop early.
        """
        start, known = self.longest_known(ids)
        # One more, which is never part of a prefix.
        within = ids if self._window is None else ids[: self._window + 1]
        stop = shared_length(within, following, start)
        cache = self._make() if known is None else known.fork()
        done = reused = 0
        if stop - start >= MIN_TOKENS:
            done, reused = read(cache, ids, start, stop)
            if done == stop - start:
                known = cache.fork()
                self._prefixes = [*self._prefixes, (ids[:stop].copy(), known)][-MAX_PREFIXES:]
        return Begun(cache, start + done, start + reused, known)

    def longest_known(self, ids: TokenIds) -> tuple[int, Cache | None]:
        """The length and the cache of the longest known prefix of these tokens."""
        known = [x for x in self._prefixes if common_length(ids[:-1], x[0]) == len(x[0])]
        if not known:
            return 0, None
        longest = max(known, key=lambda each: len(each[0]))
        self._prefixes = [each for each in self._prefixes if each is not longest] + [longest]
        return len(longest[0]), longest[1]


def shared_length(ids: TokenIds, following: Sequence[TokenIds], known: int) -> int:
    """How many of the tokens `ids: (T,)` to keep for the `following` prompts: the length that saves
    the most, less than T. The first `known` are kept already."""
    lengths = [min(common_length(ids, each), len(ids) - 1) for each in following]
    common = sorted(lengths, reverse=True)
    savings = [(length - known) * count for count, length in enumerate(common, 1)]
    best = max(savings, default=0)
    return common[savings.index(best)] if best > 0 else known


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
class BatchRow:
    """One row, whose tokens continue its `reply`. `drawn` counts them; the latest, with its
    `scores`, has not been returned yet. `failure` is why no token can follow those returned."""

    reply: Reply
    seat: int = field(default=-1, kw_only=True)
    drawn: int = field(default=0, kw_only=True)
    scores: tuple[mx.array, ...] = field(default=(), kw_only=True)
    failure: Exception | None = field(default=None, kw_only=True)


AnyRow = TypeVar("AnyRow", bound=BatchRow)


class Batch(Generic[AnyRow]):
    """Rows that are decoded together; each may have other sampling settings and constraints.

    The tokens after the next ones are computed while the caller handles the next ones. A row's
    tokens are those that it would get alone, up to rounding.
    """

    def __init__(self, network: nn.Module, cache: RowsCache) -> None:
        self.cache = cache
        self.rows: list[AnyRow] = []
        self._network = network
        # The latest token of each seat, `(B,)`, which the network has not read yet.
        self._tokens = mx.zeros(0, mx.int32)
        self._steps = 0

    def add(self, added: AnyRow, cache: Cache, row: int, tokens: int, start: Cache | None) -> None:
        """Add a row whose prompt, all but the last token, is in `cache`, which is copied: the first
        `tokens` of one `row` if there are several, as after `prefill_together`. Tokens that are
        also in `start` are shared with other rows."""
        added.seat = self.cache.add(cache, row, tokens, start)
        self._tokens = mx.pad(self._tokens, (0, self.cache.seats - self._tokens.size))
        self._tokens[added.seat] = int(added.reply.rest[-1])
        self.rows.append(added)

    def remove(self, row: AnyRow) -> None:
        """Remove a row; what was computed of it in advance is dropped."""
        self.cache.leave(row.seat)
        self.rows.remove(row)

    def move(self, row: AnyRow, cache: Cache) -> list[tuple[AnyRow, Token]]:
        """Move a row's tokens to an empty cache: remove it then. Returns what `step` would return
        of it; that token is not in the cache."""
        self.cache.move_to(cache, row.seat)
        return self._take([(row, row.scores)] if row.drawn else [], self._tokens)

    def close_gaps(self) -> None:
        """Stop computing empty seats, if they are at least half and no rows will take them."""
        if 2 * len(self.rows) > self.cache.seats:
            return
        kept = self.cache.compact()
        self._tokens = self._tokens[mx.array(kept, mx.int32)]
        for row in self.rows:
            row.seat = kept.index(row.seat)

    def step(self) -> list[tuple[AnyRow, Token]]:
        """Return the next token of each row, and begin computing the one after it. Remove the rows
        that have ended, or have a failure, before the next step.

        A row just added has no next token yet. If all rows are at their ends, computes nothing.
        """
        tokens = self._tokens
        drawn = [(row, row.scores) for row in self.rows if row.drawn]
        if all(row.drawn == row.reply.max_tokens for row in self.rows):
            return self._take(drawn, tokens)
        self.cache.begin_step()
        logits = self._network(tokens[:, None], cache=self.cache)[:, -1, :]
        has_plain = any(row.reply.chooser.is_plain for row in self.rows)
        self._tokens = mx.argmax(logits, axis=-1).astype(mx.int32) if has_plain else tokens + 0
        constrained = [row for row in self.rows if row.reply.chooser.constrained is not None]
        if constrained:
            # Computed while the masks are.
            mx.async_eval(logits)
        free = [row for row in self.rows if row.reply.chooser.constrained is None]
        self._draw(free, logits, tokens)
        taken = self._take(drawn, tokens)
        for row in free:
            # The token just taken may have been the last of a thought.
            if (closing := row.reply.chooser.closing()) is not None:
                self._tokens[row.seat : row.seat + 1] = closing.token
                row.scores = closing.scores
        # What a constraint rules out depends on the tokens just taken.
        self._draw([row for row in constrained if row.failure is None], logits, tokens)
        self._steps += 1
        if self._steps % CLEAR_EVERY == 0:
            mx.clear_cache()
        return taken

    def _take(
        self, drawn: Sequence[tuple[AnyRow, tuple[mx.array, ...]]], tokens: mx.array
    ) -> list[tuple[AnyRow, Token]]:
        """Wait for the `tokens: (B,)` that were drawn for these rows, with their scores."""
        # Read once for all rows.
        ids: Any = tokens.tolist()
        taken: list[tuple[AnyRow, Token]] = []
        for row, scores in drawn:
            token = Token(ids[row.seat])
            if scores:
                token = Drawn(tokens[row.seat : row.seat + 1], scores).read()
            try:
                row.reply.chooser.take(ids[row.seat])
                taken.append((row, token))
            except ROW_FAILURES as error:
                row.failure = error
        return taken

    def _draw(self, rows: Sequence[AnyRow], logits: mx.array, last: mx.array) -> None:
        """Begin drawing the next token of these rows, from the logits `(B, V)` of all seats, after
        the `last` ones `(B,)`; a row whose constraint allows none has failed."""
        begun: list[mx.array] = []
        for row in rows:
            if not row.reply.chooser.is_plain:
                seat = slice(row.seat, row.seat + 1)
                is_taken = row.reply.chooser.constrained is not None or not row.drawn
                try:
                    drawn = row.reply.chooser.draw(logits[seat], None if is_taken else last[seat])
                except ROW_FAILURES as error:
                    row.failure = error
                    continue
                self._tokens[seat] = drawn.token.astype(mx.int32)
                row.scores = drawn.scores
                begun += [drawn.token, *drawn.scores]
            row.drawn += 1
        mx.async_eval(self._tokens, *begun)
