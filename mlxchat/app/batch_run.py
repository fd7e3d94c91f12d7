"""Runs a batch: its rows side by side, where a row that is finished makes room for the next one,
from an open input to an open output.

Prefixes that rows share are read once. A row that does not fit its window, and every row of a model
that cannot compute several, is generated alone.
"""

import re
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from typing import BinaryIO

import mlx.core as mx
import numpy as np

from mlxchat import platform
from mlxchat.app.batch_row import RowPlanner, RowRun
from mlxchat.app.opening import Loaded, known_prefixes, open_model
from mlxchat.app.prompt import constraint_of, count_pinned
from mlxchat.cache.build import kv_bytes_per_token
from mlxchat.cache.layers import Cache, most_together, tokens_evicted
from mlxchat.cache.side_by_side import RowsCache, find_support
from mlxchat.engine.batch import ROW_FAILURES, Batch, Begun, SharedPrefixes, prefill_together
from mlxchat.engine.budget import without_effect
from mlxchat.engine.drafts import make_drafter
from mlxchat.engine.generate import generate
from mlxchat.engine.prefill import Pace, ShouldStop, first_step, prefill
from mlxchat.engine.reply import asked
from mlxchat.engine.sampling import Token
from mlxchat.errors import DeviceError, MlxchatError, UsageError, device_failures
from mlxchat.request import BatchRequest
from mlxchat.rows.output import WAIT_S, BatchFigures, Pending, Result, ResultFile
from mlxchat.rows.read import Rows
from mlxchat.rows.row import Row
from mlxchat.text.encoder import TokenIds
from mlxchat.units import Notify, Observer, count

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

# How many damaged lines of the output are named.
NAMED = 3


@contextmanager
def open_batch(
    request: BatchRequest,
    observer: Observer | None = None,
    *,
    write: Callable[[str], None] = lambda line: None,
    piped: BinaryIO | None = None,
) -> Generator["BatchRun"]:
    """Open the input and the output; `write` gets the lines if the request names no output, and
    `piped` is read if it names no input. Raises MlxchatError."""
    if platform.launched_rank() is not None:
        raise UsageError("a batch runs on one machine: start it without mlx.launch")
    observer = observer or Observer()
    # An invalid one is refused before anything is opened.
    constraint = constraint_of(request.answer)
    for notice in () if constraint is None else constraint.notices:
        observer.warn(notice)
    with Rows(request.input, piped, request.output) as rows:
        if request.output is None:
            yield BatchRun(request, Pending(rows, write), observer)
            return
        with observer.waiting(f"reading {request.output} …"):
            output = ResultFile(request.output)
        with output:
            if damaged := output.finished.damaged:
                lines = ", ".join(map(str, damaged[:NAMED])) + ", …" * (len(damaged) > NAMED)
                stay = "damaged lines stay, and answer no row: line"
                observer.warn(f"{request.output}: {stay} {lines}")
            yield BatchRun(request, Pending(rows, output.write, output.finished), observer)


class BatchRun:
    """A batch whose input and output are open. The model is loaded when a row needs it."""

    def __init__(self, request: BatchRequest, pending: Pending, observer: Observer) -> None:
        self._request = request
        self._observer = observer
        self._pending = pending
        self.figures = pending.figures
        self.can_continue = request.output is not None

    def results(
        self,
        should_stop: ShouldStop = lambda: False,
        on_progress: Callable[[BatchFigures], object] = lambda _: None,
    ) -> Iterator[Result]:
        """Run the rows until all are done or `should_stop` returns True. Yields the results that
        are not malformed rows, as they finish, once they are written. Raises MlxchatError."""
        figures, pending = self.figures, self._pending
        with self._observer.waiting("reading the input …"):
            has_more = pending.has_more(should_stop)
        if not has_more:
            return
        loaded = open_model(
            self._request.setup,
            self._observer,
            count_pinned=lambda tokenizer: count_pinned(self._request, tokenizer),
        )
        warn, on_read = self._observer.warn, lambda: on_progress(figures)
        runner = SideBySide(self._request, loaded, pending, should_stop, warn, on_read=on_read)
        began_s, window = time.perf_counter(), loaded.settings.max_kv_size
        on_progress(figures)
        for result in runner.results():
            if result is not None:
                pending.finish(result)
                is_larger = window is not None and result.prompt_tokens > window
                figures.cut += is_larger and result.evicted_tokens > 0
            figures.seconds = time.perf_counter() - began_s
            on_progress(figures)
            if result is not None:
                yield result


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
        *,
        on_read: Callable[[], object] = lambda: None,
    ) -> None:
        self._loaded = loaded
        self._on_read = on_read
        self._network = loaded.model.network
        self._window = loaded.settings.max_kv_size
        self._pending = pending
        self._should_stop = should_stop
        self._planner = RowPlanner(request, loaded.sampling, loaded.model)
        self._notify = notify
        # How many rows run side by side. It only ever falls, with a notice.
        self._most = request.rows or AUTO_ROWS
        self._token_bytes = kv_bytes_per_token(loaded.model.network, loaded.model.dtype)
        self._known = known_prefixes(request.setup, loaded.model, notify)
        self._pace = Pace(first_step(self._network))
        # Rows that have not begun, and all that have no result yet.
        self._waiting: deque[RowRun] = deque()
        self._unfinished: dict[RowRun, None] = {}
        self._begin([])
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
        for notice in without_effect(request, loaded.model.tokenizer):
            notify(notice)

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
                    running = len(self._unfinished) - len(self._waiting)
                    if running < 2:
                        raise
                    # Begin all again, fewer of them side by side.
                    self._lower(running // 2)
                    begun = [*self._unfinished]
                    self._begin([run.row for run in begun])
                    for run, before in zip(self._unfinished, begun, strict=True):
                        run.is_counted = before.is_counted
                if self._pending.is_over and not self._unfinished:
                    return

    def _begin(self, rows: Iterable[Row]) -> None:
        """Let these rows wait, and none run."""
        self._waiting = deque(map(self._planner.plan, rows))
        self._unfinished = dict.fromkeys(self._waiting)
        self._prefixes = SharedPrefixes(self._make_cache, self._window)
        together = RowsCache(self._network, self._make_cache(), self._window)
        self._batch: Batch[RowRun] = Batch(self._network, together)

    def _make_cache(self) -> Cache:
        # A fork, because making one tries the model's ropes.
        return self._loaded.cache.fork()

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
        """Plan as many rows as may run side by side, at least two, to see what prompts share."""
        while len(self._waiting) < max(self._most, 2) and not self._should_stop():
            # No wait while rows run, and not long to learn what follows the first one.
            wait_s = 0.0 if self._batch.rows else SOON_S if self._waiting else WAIT_S
            row = self._pending.take(wait_s)
            if row is None:
                return
            try:
                run = self._planner.plan(row)
            except MlxchatError as error:
                # A row has fields.
                yield Result(row, error=re.sub(r"\A--(?=\w+: )", "", str(error)))
            else:
                self._waiting.append(run)
                self._unfinished[run] = None

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
        """Read the next row's prompt, with others if possible, and seat them; or run it alone."""
        run = self._waiting.popleft()
        ids, last = run.prompt.ids, len(run.prompt.ids) - 1
        others: list[RowRun] = []
        run.reply.began_s = time.perf_counter()
        try:
            following = [each.prompt.ids for each in self._waiting]
            begun = self._prefixes.begin(ids, following, self._read)
            run.cached_tokens = begun.cached
            others = self._others_like(run, begun)
            if others:
                self._seat_together([run, *others], begun)
                return
            done, known = self._read(begun.cache, ids, begun.held, last)
            run.cached_tokens += known
            if done < last - begun.held:
                # Stopped.
                return
            if self._most == 1 or (self._window is not None and len(ids) > self._window):
                yield from self._finish_alone(run, begun.cache)
            else:
                self._seat(run, begun.cache, 0, begun)
        except MlxchatError as error:
            if isinstance(error, DeviceError) or others:
                raise
            del self._unfinished[run]
            yield Result(run.row, error=str(error))

    def _others_like(self, run: RowRun, begun: Begun) -> list[RowRun]:
        """Other rows whose prompts can be read with this one's: short, and with as much held."""
        others: list[RowRun] = []
        most, held = most_together(begun.cache), begun.held
        longest = len(run.prompt.ids)
        for other in self._waiting if self._reads_together else ():
            tokens = max(longest, len(other.prompt.ids))
            if (
                (len(others) + 2) * (tokens - held) <= TOKENS_TOGETHER
                and (most is None or tokens <= most)
                and self._has_seat(other, [run, *others])
                and self._prefixes.longest_known(other.prompt.ids)[1] is begun.start
            ):
                others.append(other)
                longest = tokens
        return others if longest - 1 > held else []

    def _seat_together(self, runs: Sequence[RowRun], begun: Begun) -> None:
        """Read the prompts of the first row and of others, which wait, in one step."""
        for other in runs[1:]:
            other.reply.began_s, other.cached_tokens = time.perf_counter(), begun.held
            self._waiting.remove(other)
        rest = [each.prompt.ids[begun.held : -1] for each in runs]
        shares = begun.start is not None and self._shares_start
        read = prefill_together(self._network, begun.cache, rest, shares=shares)
        self._batch.cache.reserve(len(read))
        for run, (rows, row) in zip(runs, read, strict=True):
            self._seat(run, rows, row, begun)

    def _seat(self, run: RowRun, cache: Cache, row: int, begun: Begun) -> None:
        start = begun.start if self._shares_start else None
        self._batch.add(run, cache, row, len(run.prompt.ids) - 1, start)

    def _read(self, cache: Cache, ids: TokenIds, start: int, stop: int) -> tuple[int, int]:
        """Put `ids[start:stop]` into the cache; return how many it has, how many the disk knew."""
        known, record = 0, None
        if start == 0 and self._known is not None:
            known, record = self._known.begin(cache, ids[:stop], self._window)
        done = prefill(
            self._network,
            cache,
            ids[start + known : stop],
            step_size=self._loaded.settings.prefill_step_size,
            after=start + known,
            pace=self._pace,
            on_progress=self._show_reading,
            on_held=record,
            should_stop=self._should_stop,
        )
        return known + done, known

    def _show_reading(self, done: int, total: int) -> None:
        self._pending.figures.reading = done, total
        self._on_read()

    # Rows that continue

    def _step(self) -> Iterator[Result | None]:
        """Generate one token of each row that has a seat."""
        if not self._batch.rows:
            return
        yield from self._advance(self._batch.step())
        for run in [*self._batch.rows]:
            if self._window is not None and len(run.prompt.ids) - 1 + run.drawn >= self._window:
                # The next step would evict a token of this row: generate the rest of it alone.
                cache = self._make_cache()
                yield from self._advance(self._batch.move(run, cache))
                if run in self._batch.rows:
                    self._batch.remove(run)
                    yield from self._finish_alone(run, cache)

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
                del self._unfinished[run]
                yield run.result()
        yield None

    def _add(self, run: RowRun, tokens: Iterable[Token]) -> None:
        """Add tokens of a row, whose prompt has been read and counts with the first of them."""
        figures = self._pending.figures
        if not run.is_counted:
            run.is_counted = True
            figures.prompt_tokens += len(run.prompt.ids)
            figures.cached_tokens += run.cached_tokens
        figures.generated_tokens += run.add(tokens)

    def _finish_alone(self, run: RowRun, cache: Cache) -> Iterator[Result | None]:
        """Generate a row to its end, in a window of its own, which has all tokens but the last."""
        drafter = make_drafter(self._loaded.model, run.reply.settings)
        if drafter is not None:
            generated = [each.id for each in run.tokens if each.id is not None]
            drafter.history.extend(np.array([*run.prompt.ids, *generated], np.int32))
        run.reply.move_to(cache, drafter)
        self._add(run, ())
        try:
            for token in generate(run.reply, ends=[asked(self._should_stop)]):
                self._add(run, [token])
                yield None
        except ROW_FAILURES as error:
            run.reply.fail(error)
        mx.clear_cache()
        if run.reply.finish_reason != "interrupted":
            del self._unfinished[run]
            yield run.result(tokens_evicted(cache))
