"""Rows of a batch from the end of their prompts to their results: side by side, or alone."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import mlx.core as mx

from mlxchat.app.answer import value_of
from mlxchat.app.opening import Loaded
from mlxchat.app.row_plan import RowPlan
from mlxchat.cache import Cache
from mlxchat.cache.side_by_side import RowsCache
from mlxchat.engine.batch import ROW_FAILURES, Batch, BatchRow, RowFailure
from mlxchat.engine.drafts import make_drafter
from mlxchat.engine.ends import Asked
from mlxchat.engine.generate import generate
from mlxchat.engine.prefill import ShouldStop
from mlxchat.engine.reply import Reply
from mlxchat.engine.sampling import Token
from mlxchat.models.model import Model
from mlxchat.rows.results import Result

# Called with the tokens of rows that have been generated since the last call.
OnTokens = Callable[[int], object]


@dataclass(eq=False, slots=True)
class RowRun:
    """A row while it is generated: its tokens and times. `cached_tokens` of the prompt were read
    for other rows or in earlier runs."""

    plan: RowPlan
    model: Model
    cached_tokens: int = 0
    tokens: list[Token] = field(default_factory=list[Token])
    began_s: float = field(default_factory=time.perf_counter)
    first_s: float | None = None

    def add(self, tokens: Iterable[Token]) -> int:
        """Add what the next token brought; return how many tokens that is."""
        before = len(self.tokens)
        self.tokens.extend(tokens)
        if self.first_s is None and self.tokens:
            self.first_s = time.perf_counter()
        return sum(each.id is not None for each in self.tokens[before:])

    def result(
        self, finish_reason: str, *, complete: bool | None, error: str | None, evicted: int = 0
    ) -> Result:
        plan, tokenizer, ended_s = self.plan, self.model.tokenizer, time.perf_counter()
        begun = plan.reader(tokenizer)[1]
        text = begun + "".join(each.text for each in self.tokens if not each.thought)
        thought = "".join(each.text for each in self.tokens if each.thought)
        likely = [
            (
                tokenizer.text_of(each.id),
                each.logprob,
                [(tokenizer.text_of(id_), logprob) for id_, logprob in each.top],
            )
            for each in self.tokens
            if each.id is not None and not each.thought and plan.settings.logprobs is not None
        ]
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
            evicted_tokens=evicted,
            ttft_s=(self.first_s or ended_s) - self.began_s,
            seconds=ended_s - self.began_s,
            seed=plan.sampling.seed,
            model=self.model.name,
            error=error,
            logprobs=None if plan.settings.logprobs is None else likely,
            notices=plan.prompt.notices,
        )


class Running:
    """The rows that are seated in a batch. One that fills its window goes on alone."""

    def __init__(self, loaded: Loaded, should_stop: ShouldStop, on_tokens: OnTokens) -> None:
        self._loaded = loaded
        self._model = loaded.model
        self._window = loaded.settings.max_kv_size
        self._should_stop = should_stop
        self._on_tokens = on_tokens
        self._seated: dict[BatchRow, tuple[RowRun, Reply]] = {}
        network = self._model.network
        # A fork, because making one tries the model's ropes.
        self.batch = Batch(network, RowsCache(network, loaded.cache.fork(), self._window))

    def __len__(self) -> int:
        return len(self._seated)

    @property
    def plans(self) -> list[RowPlan]:
        return [run.plan for run, _ in self._seated.values()]

    @property
    def nbytes(self) -> int:
        """Bytes allocated for keys and values."""
        return sum(layer.nbytes for layer in self.batch.cache)

    def add(self, run: RowRun, cache: Cache, row: int = 0, start: Cache | None = None) -> None:
        """Seat the row whose prompt is in this cache, or in this row of it. What is in `start` is
        shared with other rows."""
        plan, tokenizer = run.plan, self._model.tokenizer
        ids = plan.prompt.ids
        reply = Reply(
            self._model,
            ids,
            sampling=plan.sampling,
            settings=plan.settings,
            reader=plan.reader(tokenizer)[0],
            constrained=plan.constrained(tokenizer),
        )
        added = BatchRow(reply.chooser, int(ids[-1]), reply.max_tokens)
        self.batch.add(added, cache, row, len(ids) - 1, start)
        self._seated[added] = run, reply

    def step(self) -> Iterator[Result]:
        """Generate one token of each row, if there are any."""
        if not self._seated:
            return
        yield from self._finished(self.batch.step(), self.batch.remove)
        for row, (run, reply) in [*self._seated.items()]:
            held = len(run.plan.prompt.ids) - 1 + row.drawn
            if self._window is not None and held >= self._window:
                # The next step would evict a token of this row.
                yield from self._move_out(row, run, reply)

    def _finished(
        self,
        taken: Iterable[tuple[BatchRow, Token | RowFailure]],
        remove: Callable[[BatchRow], object],
    ) -> Iterator[Result]:
        """Add the next tokens of rows; remove and yield those that have ended."""
        generated = 0
        for row, token in taken:
            if row not in self._seated:
                # It ended before its constraint failed.
                continue
            run, reply = self._seated[row]
            try:
                if isinstance(token, ROW_FAILURES):
                    raise token
                generated += run.add(reply.add(token))
                if reply.finish_reason is None:
                    continue
                run.add(reply.finish())
                result = run.result(
                    reply.finish_reason, complete=reply.complete, error=reply.problem
                )
            except ROW_FAILURES as error:
                result = Result(run.plan.row, error=str(error))
            remove(row)
            del self._seated[row]
            yield result
        self._on_tokens(generated)

    def _move_out(self, row: BatchRow, run: RowRun, reply: Reply) -> Iterator[Result]:
        """Generate the rest of a row alone, in the rotating window."""
        cache = self._loaded.cache.fork()
        yield from self._finished(self.batch.move(row, cache), lambda _: None)
        if row not in self._seated:
            return
        reply.move_to(cache, make_drafter(self._model, run.plan.settings))
        try:
            result = self._finish(run, reply)
        except ROW_FAILURES as error:
            result = Result(run.plan.row, error=str(error))
        # Only now: if memory runs out, all rows that are seated begin again.
        del self._seated[row]
        if result is not None:
            yield result

    def generate_alone(self, run: RowRun, cache: Cache, held: int) -> Result | None:
        """Generate a row to its end, in the rotating window; `held` tokens of its prompt are in the
        cache. Interrupted, it has no result."""
        plan, tokenizer = run.plan, self._model.tokenizer
        reply = Reply(
            self._model,
            plan.prompt.ids,
            cache,
            sampling=plan.sampling,
            settings=plan.settings,
            cached_tokens=held,
            reader=plan.reader(tokenizer)[0],
            constrained=plan.constrained(tokenizer),
            drafter=make_drafter(self._model, plan.settings),
        )
        return self._finish(run, reply)

    def _finish(self, run: RowRun, reply: Reply) -> Result | None:
        step_size = self._loaded.settings.prefill_step_size
        for token in generate(reply, ends=[Asked(self._should_stop)], step_size=step_size):
            self._on_tokens(run.add([token]))
        stats = reply.stats
        mx.clear_cache()
        if stats.finish_reason == "interrupted":
            return None
        return run.result(
            stats.finish_reason,
            complete=stats.complete,
            error=stats.problem,
            evicted=stats.evicted_tokens,
        )
