"""Runs the rows of a batch side by side: a row that is finished makes room for the next one.

Prefixes that rows share are read once. A row that does not fit its window, and every row of a model
that cannot compute several, is generated alone.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from mlxchat import platform
from mlxchat.app.opening import Loaded
from mlxchat.app.prefixes import Prefixes
from mlxchat.app.row_plan import RowPlan, RowPlanner
from mlxchat.app.running import OnTokens, RowRun, Running
from mlxchat.cache import Cache, kv_bytes_per_token
from mlxchat.cache.side_by_side import find_support, most_together
from mlxchat.engine.batch import prefill_together
from mlxchat.engine.pace import Pace, first_step
from mlxchat.engine.prefill import ShouldStop, prefill
from mlxchat.engine.shared_prefix import Begun, SharedPrefixes
from mlxchat.errors import DeviceError, MlxchatError
from mlxchat.failures import device_failures
from mlxchat.progress import Notify
from mlxchat.request import BatchRequest
from mlxchat.rows.pending import WAIT_S, Pending
from mlxchat.rows.results import Result
from mlxchat.text.spans import TokenIds
from mlxchat.units import count

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
        self._notify = notify
        # How many rows run side by side. It only ever falls, with a notice.
        self._most = AUTO_ROWS if request.rows == "auto" else request.rows
        self._token_bytes = kv_bytes_per_token(loaded.model.shard, loaded.model.dtype)
        self._known = Prefixes(request.setup, notify)
        self._pace = Pace(first_step(loaded.model.network))
        self._plans: deque[RowPlan] = deque()
        self._begin_again()
        has_table = loaded.model.positions is not None
        self._reads_together = not has_table and most_together(self._make_cache()) != 0
        reason, self._shares_start = None, False
        if self._most > 1:
            reason, self._shares_start = find_support(
                self._model.network, self._make_cache, self._window
            )
        if reason is not None:
            notify(f"rows run one after the other: {reason}")
            self._most = 1
        if self._most > 1 and request.generation_settings().wants_drafts:
            notify("no drafts: rows run side by side")

    def results(self, pending: Pending) -> Iterator[Result]:
        try:
            with platform.wired_limit():
                while not self._should_stop():
                    try:
                        with device_failures():
                            yield from self._fill_seats(pending)
                            yield from self._running.step()
                    except DeviceError:
                        if not self._can_begin_again():
                            raise
                    if pending.is_over and not self._plans and not self._running:
                        return
        finally:
            self._known.close()

    # Rows that begin

    def _fill_seats(self, pending: Pending) -> Iterator[Result]:
        yield from self._look_ahead(pending)
        if len(self._plans) >= self._worthwhile > self._most - len(self._running):
            return
        while self._plans and self._has_seat() and not self._should_stop():
            yield from self._begin_next()
            yield from self._look_ahead(pending)
        if not self._plans and pending.is_over:
            self._running.batch.close_gaps()

    @property
    def _worthwhile(self) -> int:
        """The free seats worth filling: prompts that are read together take less time."""
        return self._most // SEATS_TOGETHER if self._reads_together else 0

    def _look_ahead(self, pending: Pending) -> Iterator[Result]:
        """Plan as many rows as may run side by side, and at least two, to see what their prompts
        share."""
        while len(self._plans) < max(self._most, 2) and not self._should_stop():
            row = pending.take(self._patience_s())
            if row is None:
                return
            try:
                self._plans.append(self._planner.plan(row))
            except MlxchatError as error:
                yield Result(row, error=str(error))

    def _patience_s(self) -> float:
        """How long to wait for another row: not while others run, and not long to learn what
        follows the first one."""
        if self._running:
            return 0.0
        return SOON_S if self._plans else WAIT_S

    def _has_seat(self) -> bool:
        tokens = [self._tokens(self._plans[0])]
        tokens += map(self._tokens, self._running.plans)
        return self._allows(len(self._running), max(tokens), self._running.nbytes)

    def _allows(self, running: int, tokens: int, held_bytes: int) -> bool:
        """Whether another row may run beside `running` ones if the longest of them takes `tokens`.
        They hold `held_bytes` so far. One row always may."""
        if running == 0 or running >= self._most:
            return running == 0
        more_bytes = (running + 1) * tokens * self._token_bytes - held_bytes
        if more_bytes <= platform.free_memory_bytes() * MEMORY_SHARE:
            return True
        self._lower(running)
        return False

    def _lower(self, rows: int) -> None:
        """Run at most this number from now on."""
        self._most = max(rows, 1)
        self._notify(f"memory is short: {count(self._most, 'row')} side by side from now on")

    def _tokens(self, plan: RowPlan) -> int:
        """Tokens that a row may hold in the end."""
        most = plan.settings.max_tokens
        tokens = len(plan.prompt.ids) + (most if most >= 0 else ASSUMED_TOKENS)
        return tokens if self._window is None else min(tokens, self._window)

    def _begin_next(self) -> Iterator[Result]:
        """Read the next row's prompt, and others that can be read with it, and seat the rows; or
        generate the row alone."""
        plan = self._plans[0]
        self._beginning = [plan]
        try:
            run, ids = RowRun(plan, self._model), plan.prompt.ids
            following = [each.prompt.ids for each in list(self._plans)[1:]]
            begun = self._prefixes.begin(ids, following, self._read)
            run.cached_tokens = begun.cached
            others = self._others_like(plan, begun.cache, begun.held)
            self._beginning += others
            if others:
                runs = [RowRun(other, self._model, begun.held) for other in others]
                yield from self._seat_together([run, *runs], begun)
            elif self._most == 1 or (self._window is not None and len(ids) > self._window):
                result = self._running.generate_alone(run, begun.cache, begun.held)
                yield from [] if result is None else [result]
            else:
                last = len(ids) - 1
                if self._read(begun.cache, ids, begun.held, last)[0] == last - begun.held:
                    start = begun.start if self._shares_start else None
                    self._running.add(run, begun.cache, start=start)
        except DeviceError:
            raise
        except MlxchatError as error:
            yield Result(plan.row, error=str(error))
            self._beginning = [plan]
        for each in self._beginning:
            self._plans.remove(each)
        self._beginning = []

    def _others_like(self, plan: RowPlan, cache: Cache, held: int) -> list[RowPlan]:
        """Other plans that can be read together with this one: all are short, and the same tokens
        are held of each."""
        others: list[RowPlan] = []
        most = most_together(cache)
        ids = plan.prompt.ids
        longest = len(ids)
        for other in list(self._plans)[1:] if self._reads_together else ():
            theirs = other.prompt.ids
            tokens = max(longest, len(theirs))
            running = len(self._running) + 1 + len(others)
            if (
                (len(others) + 2) * (tokens - held) <= TOKENS_TOGETHER
                and (most is None or tokens <= most)
                and self._allows(running, self._tokens(other), 0)
                and self._prefixes.known_length(theirs) == held
                and bool((theirs[:held] == ids[:held]).all())
            ):
                others.append(other)
                longest = tokens
        return others if longest - 1 > held else []

    def _seat_together(self, runs: Sequence[RowRun], begun: Begun) -> Iterator[Result]:
        rest = [run.plan.prompt.ids[begun.held : -1] for run in runs]
        start = begun.start if self._shares_start else None
        shares = start is not None
        read = prefill_together(self._model.network, begun.cache, rest, shares=shares)
        self._running.batch.cache.reserve(len(runs))
        for run, (rows, row) in zip(runs, read, strict=True):
            try:
                self._running.add(run, rows, row, start)
            except DeviceError:
                raise
            except MlxchatError as error:
                yield Result(run.plan.row, error=str(error))

    def _read(self, cache: Cache, ids: TokenIds, start: int, stop: int) -> tuple[int, int]:
        """Put the tokens `ids[start:stop]` into the cache; return how many of them are in it, and
        how many of those the disk knew."""
        known, record = 0, None
        if start == 0:
            known, record = self._known.begin(self._model, cache, ids[:stop], self._window)
        done = prefill(
            self._model.network,
            cache,
            ids[start + known : stop],
            step_size=self._loaded.settings.prefill_step_size,
            pace=self._pace,
            on_held=record,
            should_stop=self._should_stop,
        )
        return known + done, known

    # The device

    def _can_begin_again(self) -> bool:
        """Begin all rows again, fewer of them side by side, unless there is only one."""
        # A row that is beginning may have a seat already.
        running = dict.fromkeys([*self._running.plans, *self._beginning])
        if len(running) < 2:
            return False
        self._lower(len(running) // 2)
        self._plans = deque(dict.fromkeys([*running, *self._plans]))
        self._begin_again()
        return True

    def _begin_again(self) -> None:
        self._beginning: list[RowPlan] = []
        self._prefixes = SharedPrefixes(self._make_cache, self._window)
        self._running = Running(self._loaded, self._should_stop, self._on_tokens)

    def _make_cache(self) -> Cache:
        # A fork, because making one tries the model's ropes.
        return self._loaded.cache.fork()
