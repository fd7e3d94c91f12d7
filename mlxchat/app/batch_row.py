"""One row of a batch: how it is generated, which the request's options and its own decide, the
tokens of its reply, and its result."""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from mlxchat.app.events import finite, value_of
from mlxchat.app.prompt import begin_answer, constraint_in, constraint_of, with_schema
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.batch import BatchRow
from mlxchat.engine.budget import without_effect
from mlxchat.engine.reply import Reply
from mlxchat.engine.sampling import Token
from mlxchat.errors import UsageError
from mlxchat.models.model import Model
from mlxchat.options import changed, refuse_pairs
from mlxchat.request import BatchRequest
from mlxchat.rows.output import Result
from mlxchat.rows.row import CONSTRAINTS, Row
from mlxchat.settings import GenerationSettings, SamplingSettings
from mlxchat.text.tokens import ChatMessage, Prompt


@dataclass(eq=False, slots=True, kw_only=True)
class RowRun(BatchRow):
    """A row generated with this `seed`, as `generate` would; the prompt until its tokens come.

    `cached_tokens` of the prompt were read for other rows or earlier; `begun` begins the answer.
    """

    row: Row
    prompt: Prompt
    seed: int
    constraint: Constraint | None
    begun: str
    hides_thoughts: bool
    cached_tokens: int = 0
    is_counted: bool = False
    tokens: list[Token] = field(default_factory=list[Token])

    def add(self, tokens: Iterable[Token]) -> int:
        """Add what the next token brought; return how many tokens that is."""
        before = len(self.tokens)
        self.tokens.extend(tokens)
        if self.tokens and not self.reply.first_token_s:
            self.reply.first_token_s = time.perf_counter()
        return sum(each.id is not None for each in self.tokens[before:])

    def result(self, evicted_tokens: int = 0) -> Result:
        """The result, once the reply has ended."""
        reply, ended_s = self.reply, time.perf_counter()
        text = self.begun + "".join(each.text for each in self.tokens if not each.thought)
        thought = "".join(each.text for each in self.tokens if each.thought)
        return Result(
            self.row,
            error=reply.problem,
            value=value_of(self.constraint, text) if reply.complete else None,
            text=text,
            finish_reason=reply.finish_reason or "",
            thought=None if self.hides_thoughts else thought or None,
            complete=reply.complete,
            notices=self.prompt.notices,
            logprobs=None if reply.settings.logprobs is None else self._logprobs(),
            prompt_tokens=len(self.prompt.ids),
            cached_tokens=self.cached_tokens,
            generated_tokens=reply.generated,
            thought_tokens=reply.thought_tokens,
            thought_cut=reply.thought_cut or None,
            evicted_tokens=evicted_tokens,
            ttft_s=round((reply.first_token_s or ended_s) - reply.began_s, 4),
            seconds=round(ended_s - reply.began_s, 4),
            seed=self.seed,
        )

    def _logprobs(self) -> list[dict[str, Any]]:
        """The tokens of the answer, and for each the likeliest in its place."""

        def of(id_: int | None, logprob: float | None) -> dict[str, Any]:
            assert id_ is not None
            return {"text": self.reply.model.tokenizer.text_of(id_), "logprob": finite(logprob)}

        shown = [each for each in self.tokens if each.id is not None and not each.thought]
        return [{**of(t.id, t.logprob), "top": [of(*each) for each in t.top]} for t in shown]


class RowPlanner:
    """Decides how a request's rows are generated; `sampling` is that of rows without their own.

    Raises UsageError if the request's constraint is invalid.
    """

    def __init__(self, request: BatchRequest, sampling: SamplingSettings, model: Model) -> None:
        self._request = request
        self._sampling = sampling
        self._model = model
        self._constraint = constraint_of(request.answer)

    def plan(self, row: Row) -> RowRun:
        """Raises MlxchatError if the row cannot be followed, or its prompt is too long."""
        tokenizer, request = self._model.tokenizer, changed(self._request, row.options)
        answer = request.answer
        request = replace(
            request,
            template_args={**self._request.template_args, **request.template_args},
            answer=replace(answer, prefill=row.options.get("prefill", answer.prefill)),
        )
        own = {name: row.options[name] for name in CONSTRAINTS if name in row.options}
        constraint = _constraint(json.dumps(own)) if own else self._constraint
        settings = GenerationSettings.of(request)
        if constraint is not None:
            refuse_pairs(settings, constraint=constraint.kind)
        sampling = changed(self._sampling, row.options)
        if "seed" not in row.options:
            sampling = replace(sampling, seed=row_seed(self._sampling.seed or 0, row))
        asked = self._prompt(row, request, constraint)
        prompt, begun, how = begin_answer(request, asked, constraint, tokenizer)
        notices = [*prompt.notices, *sampling.without_effect(row.options)]
        if own and constraint is not None:
            notices += constraint.notices
        of_all = without_effect(self._request, tokenizer)
        notices += [each for each in without_effect(settings, tokenizer) if each not in of_all]
        return RowRun(
            Reply(self._model, prompt.ids, sampling=sampling, settings=settings, **how),
            row=row,
            prompt=replace(prompt, notices=tuple(notices)),
            seed=sampling.seed,
            constraint=constraint,
            begun=begun,
            hides_thoughts=request.hides_thoughts,
        )

    def _prompt(self, row: Row, request: BatchRequest, constraint: Constraint | None) -> Prompt:
        if request.raw:
            if row.prompt is None:
                raise UsageError("messages need the chat template, which --raw bypasses")
            return self._model.tokenizer.raw_prompt(row.prompt)
        system = request.system
        if request.answer.schema_prompt and constraint is not None and constraint.kind == "schema":
            system = with_schema(system, constraint)
        said = row.messages or ({"role": "user", "content": row.prompt or ""},)
        messages = [ChatMessage(each["role"], each["content"]) for each in said]
        return self._model.tokenizer.chat(messages, system, variables=request.variables())


def row_seed(seed: int, row: Row) -> int:
    """The seed of a row without its own: it depends on the id, not on the row's place."""
    return int.from_bytes(blake2b(seed.to_bytes(8, "little") + row.key, digest_size=4).digest())


@lru_cache(maxsize=256)
def _constraint(fields: str) -> Constraint | None:
    """Rows often share a schema, which takes a while to compile."""
    return constraint_in(json.loads(fields))
