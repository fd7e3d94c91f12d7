"""Rows of a batch from the end of their prompts to their results: side by side, or alone."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from mlxchat.app.answer import value_of
from mlxchat.app.opening import Loaded
from mlxchat.app.row_plan import RowPlan
from mlxchat.cache import Cache
from mlxchat.cache.side_by_side import make_rows
from mlxchat.engine.batch import ROW_FAILURES, Batch, BatchRow
from mlxchat.engine.constrained import Constrained
from mlxchat.engine.drafts import make_drafter
from mlxchat.engine.draw import Chooser
from mlxchat.engine.generate import Generation, max_tokens_within
from mlxchat.engine.prefill import ShouldStop
from mlxchat.engine.reply import Reply, Token
from mlxchat.models.model import Model
from mlxchat.rows.results import Likely, Result
from mlxchat.text.tokens import Tokenizer

NO_DRAFTS = "no drafts: rows run side by side"

# Called with the tokens of rows that have been generated since the last call.
OnTokens = Callable[[int], object]


@dataclass(slots=True)
class RowRun:
    """A row while it is generated: its tokens and times. `cached_tokens` of the prompt were read
    for other rows or in earlier runs. `notices` say what differs from a row run alone."""

    plan: RowPlan
    model: Model
    cached_tokens: int = 0
    evicted_tokens: int = 0
    notices: tuple[str, ...] = ()
    tokens: list[Token] = field(default_factory=list[Token])
    _began_s: float = field(default_factory=time.perf_counter)
    _first_s: float | None = None

    def add(self, tokens: Iterable[Token]) -> int:
        """Add what the next token brought; return how many tokens that is."""
        before = len(self.tokens)
        self.tokens.extend(tokens)
        if self._first_s is None and self.tokens:
            self._first_s = time.perf_counter()
        return sum(each.id is not None for each in self.tokens[before:])

    def constrained(self) -> Constrained | None:
        """The row's constraint, at the beginning of the answer."""
        plan, tokenizer = self.plan, self.model.tokenizer
        if plan.constraint is None:
            return None
        return Constrained.begin(
            plan.constraint,
            tokenizer,
            plan.context,
            may_think=plan.may_think,
            beginning=plan.prompt.beginning,
        )

    def result(
        self, finish_reason: str, *, complete: bool | None, error: str | None = None
    ) -> Result:
        plan, ended_s = self.plan, time.perf_counter()
        begun = plan.reader(self.model.tokenizer)[1]
        text = begun + "".join(each.text for each in self.tokens if not each.thought)
        thought = "".join(each.text for each in self.tokens if each.thought)
        assert plan.sampling.seed is not None
        return Result(
            plan.row,
            text=text,
            thought=None if plan.hides_thoughts else thought or None,
            value=value_of(plan.constraint, text) if complete else None,
            complete=complete,
            finish_reason=finish_reason,
            prompt_tokens=len(plan.prompt.ids),
            cached_tokens=self.cached_tokens,
            generated_tokens=sum(each.id is not None for each in self.tokens),
            evicted_tokens=self.evicted_tokens,
            ttft_s=(self._first_s or ended_s) - self._began_s,
            seconds=ended_s - self._began_s,
            seed=plan.sampling.seed,
            model=self.model.name,
            error=error,
            logprobs=_likely(self.model.tokenizer, plan, self.tokens),
            notices=(*plan.prompt.notices, *self.notices),
        )


@dataclass(eq=False, slots=True)
class Seated:
    """A row among others."""

    run: RowRun
    reply: Reply
    chooser: Chooser


class Running:
    """The rows that are seated in a batch. One that fills its window goes on alone."""

    def __init__(self, loaded: Loaded, should_stop: ShouldStop, on_tokens: OnTokens) -> None:
        self._loaded = loaded
        self._model = loaded.model
        self._window = loaded.settings.max_kv_size
        self._should_stop = should_stop
        self._on_tokens = on_tokens
        self._seated: dict[BatchRow, Seated] = {}
        network = self._model.network
        # A fork, because making one tries the model's ropes.
        self._batch = Batch(network, make_rows(network, loaded.cache.fork(), self._window))

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
        added = BatchRow(chooser, last, max_tokens)
        self._batch.add(added, cache, row, tokens - 1, start)
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
        cache = self._loaded.cache.fork()
        seated = self._seated[row]
        try:
            token = self._batch.move(row, cache)
            if token is not None:
                self._on_tokens(seated.run.add(seated.reply.add(token)))
            if seated.reply.finish_reason is not None:
                yield self._finished(row)
                return
            run = seated.run
            how = self._alone(run, seated.chooser.constrained)
            point = seated.reply.here()
            result = self._finish(run, Generation.resume(self._model, point, cache, **how))
        except ROW_FAILURES as error:
            yield self._failed(row, error)
            return
        # Only now: if memory runs out, all rows that are seated begin again.
        del self._seated[row]
        if result is not None:
            yield result

    def generate_alone(self, run: RowRun, cache: Cache, held: int) -> Result | None:
        """Generate a row to its end, in the rotating window; `held` tokens of its prompt are in the
        cache. Interrupted, it has no result."""
        how = self._alone(run, run.constrained())
        ids = run.plan.prompt.ids
        generation = Generation(self._model, ids, cache, cached_tokens=held, **how)
        return self._finish(run, generation)

    def _alone(self, run: RowRun, constrained: Constrained | None) -> dict[str, Any]:
        """The options of a row's own generation."""
        return {
            "sampling": run.plan.sampling,
            "settings": run.plan.settings,
            "prefill_step_size": self._loaded.settings.prefill_step_size,
            "constrained": constrained,
            "drafter": make_drafter(self._model, run.plan.settings),
            "reply": run.plan.reader(self._model.tokenizer)[0],
            "should_stop": self._should_stop,
        }

    def _finish(self, run: RowRun, generation: Generation) -> Result | None:
        for token in generation:
            self._on_tokens(run.add([token]))
        stats = generation.stats
        run.evicted_tokens = stats.evicted_tokens
        mx.clear_cache()
        if stats.finish_reason == "interrupted":
            return None
        return run.result(
            stats.finish_reason, complete=generation.is_complete, error=generation.problem
        )

    def close_gaps(self) -> Iterator[Result]:
        """Stop computing empty seats, if they are at least half of all."""
        if 2 * len(self) <= self._batch.seats:
            self._batch.close_gaps()
        yield from ()


def _likely(tokenizer: Tokenizer, plan: RowPlan, tokens: list[Token]) -> tuple[Likely, ...] | None:
    """The tokens of the answer with their log-probabilities, if wanted."""
    if plan.settings.logprobs is None:
        return None
    return tuple(
        Likely(
            tokenizer.text_of(each.id),
            each.logprob,
            tuple((tokenizer.text_of(id_), logprob) for id_, logprob in each.top),
        )
        for each in tokens
        if each.id is not None and not each.thought
    )
