"""Runs the rows of a batch side by side: a row that is finished makes room for the next one.

Prefixes that rows share are read once. A row that does not fit its window, and every row of a model
that cannot compute several, is generated alone.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mlxchat.app.loaded import Loaded
from mlxchat.app.prefixes import Prefixes
from mlxchat.app.row_alone import OnTokens, RowAlone
from mlxchat.app.row_limit import RowLimit
from mlxchat.app.row_plan import RowPlan, RowPlanner
from mlxchat.app.row_run import RowRun
from mlxchat.cache import Cache
from mlxchat.cache.side_by_side import differs_side_by_side, make_rows, rows_refusal
from mlxchat.engine.batch import Batch, BatchRow
from mlxchat.engine.draw import Chooser
from mlxchat.engine.generate import max_tokens_within
from mlxchat.engine.loops import ShouldStop, prefill
from mlxchat.engine.pace import Pace
from mlxchat.engine.reply import Reply
from mlxchat.engine.shared_prefix import ReadTokens, SharedPrefixes
from mlxchat.errors import DeviceError, MlxchatError
from mlxchat.failures import device_failures
from mlxchat.platform import wired_limit
from mlxchat.progress import Notify
from mlxchat.request import BatchRequest
from mlxchat.rows.pending import WAIT_S, Pending
from mlxchat.rows.results import Result
from mlxchat.text.spans import TokenIds

# Assumed for rows without --max-tokens in an unbounded window, to know how many fit in memory.
ASSUMED_TOKENS = 2_048

# Rows that come this soon after another may share a prefix with it.
SOON_S = 0.02

NO_DRAFTS = "no drafts: rows run side by side"


@dataclass(eq=False, slots=True)
class Seated:
    """A row among others."""

    run: RowRun
    reply: Reply
    chooser: Chooser

    @property
    def tokens(self) -> int:
        """Tokens that the row may take in the end."""
        more = self.reply.max_tokens if self.reply.max_tokens >= 0 else ASSUMED_TOKENS
        return len(self.run.plan.prompt.ids) + more


class SideBySide:
    """Yields the result of each row as soon as it is finished.

    Interrupted, it yields nothing for the rows that are not. Raises DeviceError if the device fails
    with a single row; other errors are results.
    """

    def __init__(
        self,
        request: BatchRequest,
        loaded: Loaded,
        *,
        should_stop: ShouldStop,
        on_tokens: OnTokens,
        notify: Notify,
    ) -> None:
        self._loaded = loaded
        self._model = loaded.model
        self._window = loaded.settings.max_kv_size
        self._should_stop = should_stop
        self._on_tokens = on_tokens
        self._planner = RowPlanner(request, loaded.sampling, loaded.model.tokenizer)
        self._alone = RowAlone(loaded, should_stop, on_tokens, notify)
        self._limit = RowLimit(request.rows, loaded.model, notify)
        self._known = Prefixes(request.setup, notify)
        self._pace = Pace.of(loaded.model.network, loaded.settings)
        self._plans: deque[RowPlan] = deque()
        self._begin_again()
        if self._limit.most > 1 and (reason := self._refusal()):
            notify(f"rows run one after the other: {reason}")
            self._limit.most = 1

    def results(self, pending: Pending) -> Iterator[Result]:
        try:
            with wired_limit():
                while not self._should_stop():
                    yield from self._fill_seats(pending)
                    if self._seated:
                        yield from self._survived(self._step)
                    elif pending.is_over and not self._plans:
                        return
        finally:
            self._known.close()

    # Rows that begin

    def _fill_seats(self, pending: Pending) -> Iterator[Result]:
        while not self._should_stop():
            yield from self._look_ahead(pending)
            if not self._plans or not self._has_seat():
                break
            yield from self._survived(self._begin_next)
        if not self._plans and pending.is_over and 2 * len(self._seated) <= self._batch.seats:
            self._batch.close_gaps()

    def _look_ahead(self, pending: Pending) -> Iterator[Result]:
        """Plan as many rows as may run side by side, to see what their prompts share."""
        while len(self._plans) < self._limit.most and not self._should_stop():
            row = pending.take(self._patience_s())
            if row is None:
                return
            try:
                self._plans.append(self._planner.plan(row))
            except MlxchatError as error:
                yield Result(row, error=str(error), model=self._model.name)

    def _patience_s(self) -> float:
        """How long to wait for another row: not while others run, and not long to learn what
        follows the first one."""
        if self._seated:
            return 0.0
        return SOON_S if self._plans else WAIT_S

    def _has_seat(self) -> bool:
        plan = self._plans[0]
        most = plan.settings.max_tokens if plan.settings.max_tokens >= 0 else ASSUMED_TOKENS
        wanted = [len(plan.prompt.ids) + most, *(each.tokens for each in self._seated.values())]
        tokens = max(wanted) if self._window is None else min(max(wanted), self._window)
        return self._limit.allows(len(self._seated), tokens, self._batch.nbytes)

    def _begin_next(self) -> Iterator[Result]:
        plan = self._plans[0]
        run = RowRun(plan, self._model)
        try:
            result = self._begin(run)
        except DeviceError:
            raise
        except MlxchatError as error:
            result = Result(plan.row, error=str(error), model=self._model.name)
        self._plans.popleft()
        if result is not None:
            yield result

    def _begin(self, run: RowRun) -> Result | None:
        """Read the row's prompt and seat it, or generate it alone and return its result."""
        ids = run.plan.prompt.ids
        following = [plan.prompt.ids for plan in list(self._plans)[1:]]
        cache, held, run.cached_tokens = self._prefixes.begin(ids, following, self._read)
        if self._limit.most == 1 or (self._window is not None and len(ids) > self._window):
            return self._alone.generate(run, cache, held)
        max_tokens = max_tokens_within(
            self._model, cache, len(ids) - held, run.plan.settings.max_tokens, 0
        )
        last = len(ids) - 1
        if self._read(cache, ids, held, last).done == last - held:
            self._seat(run, cache, max_tokens)
        return None

    def _seat(self, run: RowRun, cache: Cache, max_tokens: int) -> None:
        plan = run.plan
        if plan.settings.wants_drafts:
            run.notices = (NO_DRAFTS,)
        constrained = run.constrained()
        chooser = Chooser(
            plan.prompt.ids,
            plan.sampling,
            logprobs=plan.settings.logprobs,
            constrained=constrained,
        )
        reply = Reply(
            plan.prompt.ids,
            self._model.tokenizer.reader(plan.context),
            plan.settings,
            eos_ids=self._model.tokenizer.eos_ids,
            max_tokens=max_tokens,
            constrained=constrained,
        )
        row = self._batch.add(cache, int(plan.prompt.ids[-1]), chooser)
        self._seated[row] = Seated(run, reply, chooser)

    def _read(self, cache: Cache, ids: TokenIds, start: int, stop: int) -> ReadTokens:
        """Put the tokens `ids[start:stop]` into the cache. The disk may know the first ones."""
        known, record = 0, None
        if start == 0:
            known, record = self._known.begin(self._model, cache, ids[:stop], self._window)
        done = prefill(
            self._model.network,
            cache,
            ids[start + known : stop],
            step_size=self._loaded.settings.max_step_size,
            pace=self._pace,
            on_held=record,
            should_stop=self._should_stop,
        )
        return ReadTokens(known + done, known)

    # Rows that run

    def _step(self) -> Iterator[Result]:
        """Generate one token of each row."""
        generated = 0
        for row, token in self._batch.step():
            seated = self._seated[row]
            generated += seated.run.add(seated.reply.add(token))
            if seated.reply.finish_reason is not None:
                self._batch.remove(row)
                yield self._finished(row)
        self._on_tokens(generated)
        for row in [row for row in self._seated if self._is_full(row)]:
            yield from self._move_out(row)

    def _finished(self, row: BatchRow) -> Result:
        seated = self._seated.pop(row)
        seated.run.add(seated.reply.finish())
        reason = seated.reply.finish_reason
        assert reason is not None
        return seated.run.result(reason, complete=seated.reply.is_complete)

    def _is_full(self, row: BatchRow) -> bool:
        """Whether the next step would evict a token of this row."""
        held = len(self._seated[row].run.plan.prompt.ids) - 1 + row.drawn
        return self._window is not None and held >= self._window

    def _move_out(self, row: BatchRow) -> Iterator[Result]:
        """Generate the rest of a row alone, in the rotating window."""
        cache = self._make_cache()
        token = self._batch.move(row, cache)
        seated = self._seated[row]
        if token is not None:
            self._on_tokens(seated.run.add(seated.reply.add(token)))
        if seated.reply.finish_reason is not None:
            yield self._finished(row)
            return
        del self._seated[row]
        constrained = seated.chooser.constrained
        result = self._alone.resume(seated.run, seated.reply.here(), cache, constrained)
        if result is not None:
            yield result

    # The device

    def _survived(self, work: Callable[[], Iterator[Result]]) -> Iterator[Result]:
        """Do some work; if memory runs out, begin all rows again, fewer of them side by side."""
        try:
            with device_failures():
                yield from work()
        except DeviceError:
            if len(self._seated) < 2:
                raise
            self._limit.lower(len(self._seated) // 2)
            self._plans.extendleft(seated.run.plan for seated in reversed(self._seated.values()))
            self._begin_again()

    def _begin_again(self) -> None:
        self._seated: dict[BatchRow, Seated] = {}
        self._prefixes = SharedPrefixes(self._make_cache)
        self._batch = Batch(self._model.network, make_rows(self._model.network, self._make_cache()))

    def _make_cache(self) -> Cache:
        return self._model.make_cache(self._window, self._loaded.settings.keep)

    def _refusal(self) -> str | None:
        if self._model.peers is not None:
            return "the model is shared by several machines"
        return rows_refusal(self._make_cache()) or differs_side_by_side(
            self._model.network, self._make_cache
        )
