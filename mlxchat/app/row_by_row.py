"""Runs the rows of a batch one after the other, each as a generation of its own."""

import time
from collections.abc import Callable, Iterator

from mlxchat.app.answer import value_of
from mlxchat.app.loaded import Loaded
from mlxchat.app.row_plan import RowPlan, RowPlanner
from mlxchat.engine.constrained import Constrained
from mlxchat.engine.generate import Generation, Token
from mlxchat.engine.loops import ShouldStop
from mlxchat.errors import DeviceError, MlxchatError
from mlxchat.request import BatchRequest
from mlxchat.rows.pending import Pending
from mlxchat.rows.results import Likely, Result
from mlxchat.rows.row import Row
from mlxchat.text.tokens import Tokenizer

# Called with the tokens of a row that have been generated since the last call.
OnTokens = Callable[[int], object]


class RowByRow:
    """Yields the result of each row. Interrupted, it yields nothing for the row it was in."""

    def __init__(self, request: BatchRequest, loaded: Loaded) -> None:
        self._loaded = loaded
        self._planner = RowPlanner(request, loaded.sampling, loaded.model.tokenizer)

    def results(
        self, pending: Pending, *, should_stop: ShouldStop, on_tokens: OnTokens
    ) -> Iterator[Result]:
        """Raises DeviceError if the device fails; other errors are results."""
        while not should_stop() and (row := pending.take()) is not None:
            result = self._result(row, should_stop, on_tokens)
            if result is not None:
                yield result

    def _result(self, row: Row, should_stop: ShouldStop, on_tokens: OnTokens) -> Result | None:
        try:
            return self._run(self._planner.plan(row), should_stop, on_tokens)
        except DeviceError:
            raise
        except MlxchatError as error:
            return Result(row, error=str(error), model=self._loaded.model.name)

    def _run(self, plan: RowPlan, should_stop: ShouldStop, on_tokens: OnTokens) -> Result | None:
        model, settings = self._loaded.model, self._loaded.settings
        context = None if plan.raw else plan.prompt.ids
        constrained = None
        if plan.constraint is not None:
            constrained = Constrained.begin(plan.constraint, model.tokenizer, context)
        started_s = time.perf_counter()
        generation = Generation(
            model,
            plan.prompt.ids,
            model.make_cache(settings.max_kv_size, settings.keep),
            sampling=plan.sampling,
            settings=plan.settings,
            prefill_step_size=settings.max_step_size,
            constrained=constrained,
            reply=model.tokenizer.reader(context),
            should_stop=should_stop,
        )
        tokens: list[Token] = []
        for token in generation:
            tokens.append(token)
            on_tokens(token.id is not None)
        if generation.stats.finish_reason == "interrupted":
            return None
        return self._finished(plan, generation, tokens, time.perf_counter() - started_s)

    def _finished(
        self, plan: RowPlan, generation: Generation, tokens: list[Token], seconds: float
    ) -> Result:
        stats, text = generation.stats, "".join(each.text for each in tokens if not each.thought)
        thought = "".join(each.text for each in tokens if each.thought)
        complete = generation.is_complete
        assert plan.sampling.seed is not None
        return Result(
            plan.row,
            text=text,
            thought=None if plan.hides_thoughts else thought or None,
            value=value_of(plan.constraint, text) if complete else None,
            complete=complete,
            finish_reason=stats.finish_reason,
            prompt_tokens=stats.prompt_tokens,
            cached_tokens=stats.cached_tokens,
            generated_tokens=stats.generated_tokens,
            evicted_tokens=stats.evicted_tokens,
            ttft_s=stats.ttft_s,
            seconds=seconds,
            seed=plan.sampling.seed,
            model=self._loaded.model.name,
            logprobs=_likely(self._loaded.model.tokenizer, plan, tokens),
            notices=plan.prompt.notices,
        )


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
