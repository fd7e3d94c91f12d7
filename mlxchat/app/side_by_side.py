"""Runs the rows of a batch side by side: a row that is finished makes room for the next one.

Prefixes that rows share are read once. A row that does not fit its window, and every row of a model
that cannot compute several, is generated alone.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, nullcontext

import mlx.core as mx
import numpy as np

from mlxchat import platform
from mlxchat.app.batch_row import RowPlanner, RowRun
from mlxchat.app.opening import Loaded, known_prefixes
from mlxchat.cache import Cache, kv_bytes_per_token, tokens_evicted
from mlxchat.cache.side_by_side import RowsCache, find_support, most_together
from mlxchat.engine.batch import ROW_FAILURES, Batch, prefill_together
from mlxchat.engine.drafts import make_drafter
from mlxchat.engine.ends import Asked
from mlxchat.engine.generate import generate
from mlxchat.engine.prefill import Pace, ShouldStop, first_step, prefill
from mlxchat.engine.sampling import Token
from mlxchat.engine.shared_prefix import Begun, SharedPrefixes
from mlxchat.errors import DeviceError, MlxchatError, device_failures
from mlxchat.request import BatchRequest
from mlxchat.rows.output import WAIT_S, Pending, Result
from mlxchat.text.spans import TokenIds
from mlxchat.units import Notify, count

# More rows than this hardly generate more tokens per second.
AUTO_ROWS = 32

# The rows may take this share of the free memory. Batches that took nearly all of it have brought
# down whole machines: see mlx-lm issue 1666.
MEMORY_SHARE = 0.5

# Assumed for rows without --max-tokens in an unbounded window, to know how many fit in memory.
ASSUMED_TOKENS = 2_048

# The most tokens, padding included, of prompts that are read together.
TOKENS_TOGETHER = 512

# Prompts wait for others to be read together with until this part of the seats is free.
SEATS_TOGETHER = 8

# Rows that come this soon after another may share a prefix with it.
SOON_S = 0.02


class SideBySide:
    """Runs the rows that are `pending`, and counts their tokens in its figures.

    Raises DeviceError if the device fails with a single row; other errors are results.
    """

    def __init__(
        self,
        request: BatchRequest,
        loaded: Loaded,
        pending: Pending,
        should_stop: ShouldStop,
        notify: Notify,
    ) -> None:
        self._loaded = loaded
        self._network = loaded.model.network
        self._window = loaded.settings.max_kv_size
        self._pending = pending
        self._should_stop = should_stop
        self._planner = RowPlanner(request, loaded.sampling, loaded.model)
        self._notify = notify
        # How many rows run side by side. It only ever falls, with a notice.
        self._most = AUTO_ROWS if request.rows == "auto" else request.rows
        self._token_bytes = kv_bytes_per_token(loaded.model.shard, loaded.model.dtype)
        self._known = known_prefixes(request.setup, loaded.model, notify)
        self._pace = Pace(first_step(self._network))
        self._waiting: deque[RowRun] = deque()
        self._begin_again()
        has_table = loaded.model.positions is not None
        self._reads_together = not has_table and most_together(self._make_cache()) != 0
        reason, self._shares_start = None, False
        if self._most > 1:
            reason, self._shares_start = find_support(self._network, self._make_cache, self._window)
        if reason is not None:
            notify(f"rows run one after the other: {reason}")
            self._most = 1
        if self._most > 1 and request.lookup:
            notify("no drafts: rows run side by side")

    def results(self) -> Iterator[Result | None]:
        """Yield the result of each row as soon as it is finished, and None after each token of
        several. Interrupted, it yields nothing for the rows that are not finished."""
        with platform.wired_limit(), closing(self._known) if self._known else nullcontext():
            while not self._should_stop():
                try:
                    with device_failures():
                        yield from self._fill_seats()
                        yield from self._step()
                except DeviceError:
                    if not self._can_begin_again():
                        raise
                if self._pending.is_over and not self._waiting and not self._batch.rows:
                    return

    # Rows that begin

    def _fill_seats(self) -> Iterator[Result | None]:
        yield from self._look_ahead()
        # Prompts that are read together take less time: a few free seats wait for more.
        worthwhile = self._most // SEATS_TOGETHER if self._reads_together else 0
        if len(self._waiting) >= worthwhile > self._most - len(self._batch.rows):
            return
        while self._waiting and self._has_seat(self._waiting[0]) and not self._should_stop():
            yield from self._begin_next()
            yield from self._look_ahead()
        if not self._waiting and self._pending.is_over:
            self._batch.close_gaps()

    def _look_ahead(self) -> Iterator[Result]:
        """Plan as many rows as may run side by side, and at least two, to see what their prompts
        share."""
        while len(self._waiting) < max(self._most, 2) and not self._should_stop():
            # No wait while rows run, and not long to learn what follows the first one.
            wait_s = 0.0 if self._batch.rows else SOON_S if self._waiting else WAIT_S
            row = self._pending.take(wait_s)
            if row is None:
                return
            try:
                self._waiting.append(self._planner.plan(row))
            except MlxchatError as error:
                yield Result(row, error=str(error))

    def _has_seat(self, run: RowRun, reading: Sequence[RowRun] = ()) -> bool:
        """Whether a row may run beside those that run and are being read. One row always may."""
        beside = [*self._batch.rows, *reading]
        if not beside or len(beside) >= self._most:
            return not beside
        longest = max(map(self._tokens, [run, *beside]))
        held_bytes = sum(layer.nbytes for layer in self._batch.cache)
        more_bytes = (len(beside) + 1) * longest * self._token_bytes - held_bytes
        if more_bytes <= platform.free_memory_bytes() * MEMORY_SHARE:
            return True
        self._lower(len(beside))
        return False

    def _lower(self, rows: int) -> None:
        """Run at most this number from now on."""
        self._most = max(rows, 1)
        self._notify(f"memory is short: {count(self._most, 'row')} side by side from now on")

    def _tokens(self, run: RowRun) -> int:
        """Tokens that a row may hold in the end."""
        most = run.reply.max_tokens
        tokens = len(run.prompt.ids) + (most if most >= 0 else ASSUMED_TOKENS)
        return tokens if self._window is None else min(tokens, self._window)

    def _begin_next(self) -> Iterator[Result | None]:
        """Read the next row's prompt, and others that can be read with it, and seat the rows; or
        generate the row alone."""
        run, *following = self._waiting
        ids = run.prompt.ids
        self._apart = [run]
        run.reply.began_s = time.perf_counter()
        try:
            begun = self._prefixes.begin(ids, [each.prompt.ids for each in following], self._read)
            run.cached_tokens = begun.cached
            self._apart += self._others_like(run, following, begun)
            last = len(ids) - 1
            if len(self._apart) > 1:
                self._seat_together(begun)
            elif self._read(begun.cache, ids, begun.held, last)[0] < last - begun.held:
                # Stopped.
                return
            elif self._most == 1 or (self._window is not None and len(ids) > self._window):
                yield from self._finish_alone(run, begun.cache)
            else:
                self._seat(run, begun.cache, 0, begun)
        except DeviceError:
            raise
        except MlxchatError as error:
            yield Result(run.row, error=str(error))
            self._apart = [run]
        for each in self._apart:
            self._waiting.remove(each)
        self._apart = []

    def _others_like(self, run: RowRun, following: Iterable[RowRun], begun: Begun) -> list[RowRun]:
        """Other rows whose prompts can be read together with this one's: all are short, and the
        same tokens are held of each."""
        others: list[RowRun] = []
        most, held = most_together(begun.cache), begun.held
        longest = len(run.prompt.ids)
        for other in following if self._reads_together else ():
            tokens = max(longest, len(other.prompt.ids))
            if (
                (len(others) + 2) * (tokens - held) <= TOKENS_TOGETHER
                and (most is None or tokens <= most)
                and self._has_seat(other, [run, *others])
                and self._prefixes.start_of(other.prompt.ids) is begun.start
            ):
                others.append(other)
                longest = tokens
        return others if longest - 1 > held else []

    def _seat_together(self, begun: Begun) -> None:
        """Read the prompts of the rows that are apart in one step."""
        for other in self._apart[1:]:
            other.reply.began_s, other.cached_tokens = time.perf_counter(), begun.held
        rest = [each.prompt.ids[begun.held : -1] for each in self._apart]
        shares = begun.start is not None and self._shares_start
        read = prefill_together(self._network, begun.cache, rest, shares=shares)
        self._batch.cache.reserve(len(read))
        for run, (rows, row) in zip(self._apart, read, strict=True):
            self._seat(run, rows, row, begun)

    def _seat(self, run: RowRun, cache: Cache, row: int, begun: Begun) -> None:
        start = begun.start if self._shares_start else None
        self._batch.add(run, cache, row, len(run.prompt.ids) - 1, start)

    def _read(self, cache: Cache, ids: TokenIds, start: int, stop: int) -> tuple[int, int]:
        """Put the tokens `ids[start:stop]` into the cache; return how many of them are in it, and
        how many of those the disk knew."""
        known, record = 0, None
        if start == 0 and self._known is not None:
            known, record = self._known.begin(cache, ids[:stop], self._window)
        done = prefill(
            self._network,
            cache,
            ids[start + known : stop],
            step_size=self._loaded.settings.prefill_step_size,
            pace=self._pace,
            on_held=record,
            should_stop=self._should_stop,
        )
        return known + done, known

    # Rows that continue

    def _step(self) -> Iterator[Result | None]:
        """Generate one token of each row that has a seat."""
        if not self._batch.rows:
            return
        yield from self._advance(self._batch.step())
        for run in [*self._batch.rows]:
            if self._window is not None and run.held >= self._window:
                # The next step would evict a token of this row.
                yield from self._move_out(run)

    def _advance(self, taken: Iterable[tuple[RowRun, Token]]) -> Iterator[Result | None]:
        """Add the next tokens of rows; remove those that have ended."""
        for run, token in taken:
            try:
                self._add(run, run.reply.add(token))
            except ROW_FAILURES as error:
                run.failure = error
        for run in [*self._batch.rows]:
            if run.failure is not None and run.reply.finish_reason is None:
                run.reply.fail(run.failure)
            if run.reply.finish_reason is not None:
                self._add(run, run.reply.finish())
                self._batch.remove(run)
                yield run.result()
        yield None

    def _add(self, run: RowRun, tokens: Iterable[Token]) -> None:
        self._pending.figures.generated_tokens += run.add(tokens)

    def _move_out(self, run: RowRun) -> Iterator[Result | None]:
        """Generate the rest of a row alone, in the rotating window."""
        cache = self._make_cache()
        yield from self._advance(self._batch.move(run, cache))
        if run in self._batch.rows:
            self._apart = [run]
            self._batch.remove(run)
            yield from self._finish_alone(run, cache)
            self._apart = []

    def _finish_alone(self, run: RowRun, cache: Cache) -> Iterator[Result | None]:
        """Generate a row to its end, in a window of its own, which has all tokens but the last."""
        drafter = make_drafter(self._loaded.model, run.reply.settings)
        if drafter is not None:
            generated = [each.id for each in run.tokens if each.id is not None]
            drafter.history.extend(np.array([*run.prompt.ids, *generated], np.int32))
        run.reply.move_to(cache, drafter)
        try:
            for token in generate(run.reply, ends=[Asked(self._should_stop)]):
                self._add(run, [token])
                yield None
        except ROW_FAILURES as error:
            run.reply.fail(error)
        mx.clear_cache()
        if run.reply.finish_reason != "interrupted":
            yield run.result(tokens_evicted(cache))

    # The device

    def _can_begin_again(self) -> bool:
        """Begin all rows again, fewer of them side by side, unless there is only one."""
        # A row that is apart may have a seat already.
        running = dict.fromkeys([*self._batch.rows, *self._apart])
        if len(running) < 2:
            return False
        self._lower(len(running) // 2)
        runs = dict.fromkeys([*running, *self._waiting])
        self._waiting = deque(self._planner.plan(run.row) for run in runs)
        self._begin_again()
        return True

    def _begin_again(self) -> None:
        # Those that have no seat, or are about to take one.
        self._apart: list[RowRun] = []
        self._prefixes = SharedPrefixes(self._make_cache, self._window)
        rows = RowsCache(self._network, self._make_cache(), self._window)
        self._batch: Batch[RowRun] = Batch(self._network, rows)

    def _make_cache(self) -> Cache:
        # A fork, because making one tries the model's ropes.
        return self._loaded.cache.fork()
