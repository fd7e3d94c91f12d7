"""How to generate one row of a batch: the request's options, overridden by those of the row."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from mlxchat.app.answer import constraint_in, constraint_of, with_schema
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.constrained import Constrained
from mlxchat.errors import UsageError
from mlxchat.options import flag, options_of
from mlxchat.request import BatchRequest
from mlxchat.request.pairs import refuse_pairs
from mlxchat.request.template_args import allows_thinking, thinking_variables
from mlxchat.rows.json_lines import CONSTRAINTS
from mlxchat.rows.row import Row
from mlxchat.settings import GenerationSettings, SamplingSettings
from mlxchat.text.reply_reader import Reader
from mlxchat.text.tokens import ChatMessage, Prompt, Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class RowPlan:
    """A row, ready to be generated. Its sampling has its own seed, with which `generate` writes the
    same text."""

    row: Row
    prompt: Prompt
    sampling: SamplingSettings
    settings: GenerationSettings
    constraint: Constraint | None
    raw: bool
    hides_thoughts: bool
    may_think: bool

    def constrained(self, tokenizer: Tokenizer) -> Constrained | None:
        """The row's constraint, at the beginning of the answer."""
        if self.constraint is None:
            return None
        return Constrained.begin(
            self.constraint,
            tokenizer,
            # It decides how the reply begins: with a thought, for example.
            None if self.raw else self.prompt.asked,
            may_think=self.may_think,
            beginning=self.prompt.beginning,
        )

    def reader(self, tokenizer: Tokenizer) -> tuple[Reader, str]:
        """A reader for the reply, and what is written of its answer."""
        return (tokenizer.reader(), "") if self.raw else tokenizer.reader_after(self.prompt)


class RowPlanner:
    """Makes the plans of a request's rows; `sampling` is that of rows without their own.

    Raises UsageError if the request's constraint is invalid.
    """

    def __init__(self, request: BatchRequest, sampling: SamplingSettings, tokenizer: Tokenizer):
        self._request = request
        self._sampling = sampling
        self._tokenizer = tokenizer
        self._constraint = constraint_of(request.answer)

    def plan(self, row: Row) -> RowPlan:
        """Raises MlxchatError if the row's options or messages cannot be followed."""
        request, options = self._request, row.options
        own = {name: options[name] for name in CONSTRAINTS if name in options}
        constraint = _constraint(json.dumps(own)) if own else self._constraint
        settings = _overridden(request.generation_settings(), options)
        if constraint is not None:
            refuse_pairs(settings, constraint=constraint.kind)
        if request.raw:
            _check_raw(row)
        think = options.get("think", request.think)
        variables = self._variables(options, think)
        prompt = self._tokenizer.with_beginning(
            self._prompt(row, self._system(options, constraint), variables),
            options.get("prefill", request.answer.prefill),
            newlines=constraint is None,
        )
        if own and constraint is not None:
            prompt = replace(prompt, notices=(*prompt.notices, *constraint.notices))
        return RowPlan(
            row,
            prompt,
            self._sampling_of(row),
            settings,
            constraint,
            raw=request.raw,
            hides_thoughts=think in ("off", "hide"),
            may_think=allows_thinking(variables),
        )

    def _variables(self, options: Mapping[str, Any], think: str | None) -> dict[str, Any]:
        thinking = {} if think is None else thinking_variables(think != "off")
        return {**thinking, **self._request.template_args, **options.get("template_args", {})}

    def _system(self, options: Mapping[str, Any], constraint: Constraint | None) -> str | None:
        system = options.get("system", self._request.system)
        has_schema = constraint is not None and constraint.kind == "schema"
        if self._request.answer.schema_prompt and has_schema:
            assert constraint is not None
            return with_schema(system, constraint)
        return system

    def _prompt(self, row: Row, system: str | None, variables: Mapping[str, Any]) -> Prompt:
        if self._request.raw:
            assert row.prompt is not None
            return self._tokenizer.raw_prompt(row.prompt)
        if row.messages is None:
            assert row.prompt is not None
            return self._tokenizer.prompt(row.prompt, system, variables=variables)
        messages = [ChatMessage(each["role"], each["content"]) for each in row.messages]
        return self._tokenizer.chat(messages, system, variables=variables)

    def _sampling_of(self, row: Row) -> SamplingSettings:
        sampling = _overridden(self._sampling, row.options)
        if "seed" in row.options:
            return sampling
        assert sampling.seed is not None
        return replace(sampling, seed=row_seed(sampling.seed, row))


def row_seed(seed: int, row: Row) -> int:
    """The seed of a row without its own: it depends on the id, not on the row's place."""
    key = seed.to_bytes(8, "little") + row.key
    return int.from_bytes(blake2b(key, digest_size=4).digest())


@lru_cache(maxsize=256)
def _constraint(fields: str) -> Constraint | None:
    """Rows often share a schema, which takes a while to compile."""
    return constraint_in(json.loads(fields))


def _overridden(settings: Any, options: Mapping[str, Any]) -> Any:
    known = options_of(type(settings))
    return replace(settings, **{name: options[name] for name in options if name in known})


def _check_raw(row: Row) -> None:
    names = ("system", "think", "template_args", "prefill")
    wrong = [name for name in names if name in row.options]
    if row.messages is not None:
        wrong = ["messages"]
    if wrong:
        raise UsageError(f"{flag(wrong[0])} needs the chat template, which --raw bypasses")
