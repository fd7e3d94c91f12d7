"""One row of a batch while it is generated: its tokens and times, and in the end its result."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from mlxchat.app.answer import value_of
from mlxchat.app.row_plan import RowPlan
from mlxchat.engine.constrained import Constrained
from mlxchat.engine.reply import Token
from mlxchat.models.model import Model
from mlxchat.rows.results import Likely, Result
from mlxchat.text.tokens import Tokenizer


@dataclass(slots=True)
class RowRun:
    """`cached_tokens` of the prompt were computed for other rows or in earlier runs. `notices` say
    what differs from a generation of its own."""

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
