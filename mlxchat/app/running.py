"""Rows of a batch that run side by side, from the end of their prompts to their results."""

from collections.abc import Iterator
from dataclasses import dataclass

from mlxchat.app.loaded import Loaded
from mlxchat.app.row_alone import OnTokens, RowAlone
from mlxchat.app.row_plan import RowPlan
from mlxchat.app.row_run import RowRun
from mlxchat.cache import Cache
from mlxchat.cache.side_by_side import make_rows
from mlxchat.engine.batch import ROW_FAILURES, Batch, BatchRow
from mlxchat.engine.draw import Chooser
from mlxchat.engine.generate import max_tokens_within
from mlxchat.engine.reply import Reply
from mlxchat.rows.results import Result

NO_DRAFTS = "no drafts: rows run side by side"


@dataclass(eq=False, slots=True)
class Seated:
    """A row among others."""

    run: RowRun
    reply: Reply
    chooser: Chooser


class Running:
    """The rows that are seated in a batch. One that fills its window goes on alone."""

    def __init__(self, loaded: Loaded, alone: RowAlone, on_tokens: OnTokens) -> None:
        self._model = loaded.model
        self._window = loaded.settings.max_kv_size
        # A fork, because making one tries the model's ropes.
        self._make_cache = loaded.cache.fork
        self._alone = alone
        self._on_tokens = on_tokens
        self._seated: dict[BatchRow, Seated] = {}
        network = self._model.network
        self._batch = Batch(network, make_rows(network, self._make_cache(), self._window))

    def __len__(self) -> int:
        return len(self._seated)

    @property
    def plans(self) -> list[RowPlan]:
        return [seated.run.plan for seated in self._seated.values()]

    @property
    def nbytes(self) -> int:
        """Bytes allocated for keys and values."""
        return self._batch.nbytes

    def add(self, run: RowRun, cache: Cache, row: int = 0, start: Cache | None = None) -> None:
        """Seat the row whose prompt is in this cache, or in this row of it. What is in `start` is
        shared with other rows."""
        plan, tokens = run.plan, len(run.plan.prompt.ids)
        if plan.settings.wants_drafts:
            run.notices = (NO_DRAFTS,)
        max_tokens = max_tokens_within(
            self._model, Cache(), tokens, plan.settings.max_tokens, generated=0
        )
        constrained = run.constrained()
        chooser = Chooser(
            plan.prompt.ids,
            plan.sampling,
            logprobs=plan.settings.logprobs,
            constrained=constrained,
            eos_ids=() if plan.settings.ignore_eos else self._model.tokenizer.eos_ids,
            min_tokens=plan.settings.min_tokens,
        )
        reply = Reply(
            plan.prompt.ids,
            plan.reader(self._model.tokenizer)[0],
            plan.settings,
            eos_ids=self._model.tokenizer.eos_ids,
            max_tokens=max_tokens,
            constrained=constrained,
        )
        last = int(plan.prompt.ids[-1])
        added = self._batch.add(
            cache,
            last,
            chooser,
            max_tokens=max_tokens,
            row=row,
            tokens=tokens - 1,
            start=start,
        )
        self._seated[added] = Seated(run, reply, chooser)

    def reserve(self, rows: int) -> None:
        """Make room for that many more rows, which are about to be added."""
        self._batch.reserve(rows)

    def step(self) -> Iterator[Result]:
        """Generate one token of each row."""
        generated = 0
        for row, token in self._batch.step():
            if row not in self._seated:
                # It ended before its constraint failed.
                continue
            seated = self._seated[row]
            try:
                if isinstance(token, ROW_FAILURES):
                    raise token
                generated += seated.run.add(seated.reply.add(token))
                if seated.reply.finish_reason is not None:
                    self._batch.remove(row)
                    yield self._finished(row)
            except ROW_FAILURES as error:
                self._batch.remove(row)
                yield self._failed(row, error)
        self._on_tokens(generated)
        for row in [row for row in self._seated if self._is_full(row)]:
            yield from self._move_out(row)

    def _finished(self, row: BatchRow) -> Result:
        seated = self._seated.pop(row)
        seated.run.add(seated.reply.finish())
        reason = seated.reply.finish_reason
        assert reason is not None
        return seated.run.result(
            reason, complete=seated.reply.is_complete, error=seated.reply.problem
        )

    def _failed(self, row: BatchRow, error: Exception) -> Result:
        return Result(self._seated.pop(row).run.plan.row, error=str(error), model=self._model.name)

    def _is_full(self, row: BatchRow) -> bool:
        """Whether the next step would evict a token of this row."""
        held = len(self._seated[row].run.plan.prompt.ids) - 1 + row.drawn
        return self._window is not None and held >= self._window

    def _move_out(self, row: BatchRow) -> Iterator[Result]:
        """Generate the rest of a row alone, in the rotating window."""
        cache = self._make_cache()
        seated = self._seated[row]
        try:
            token = self._batch.move(row, cache)
            if token is not None:
                self._on_tokens(seated.run.add(seated.reply.add(token)))
            if seated.reply.finish_reason is not None:
                yield self._finished(row)
                return
            constrained = seated.chooser.constrained
            result = self._alone.resume(seated.run, seated.reply.here(), cache, constrained)
        except ROW_FAILURES as error:
            yield self._failed(row, error)
            return
        # Only now: if memory runs out, all rows that are seated begin again.
        del self._seated[row]
        if result is not None:
            yield result

    def close_gaps(self) -> None:
        """Stop computing empty seats, if they are at least half of all."""
        if 2 * len(self) <= self._batch.seats:
            self._batch.close_gaps()
