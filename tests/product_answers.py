"""Constrained answers of tiny models, with forced tokens computed in one step or one at a time."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema
import numpy as np

from mlxchat.cache.layers import Cache, windows
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.constrained import Constrained
from mlxchat.engine.generate import generate
from mlxchat.engine.reply import Reply
from mlxchat.engine.sampling import Token
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings, SamplingSettings

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "identifier": {"type": "integer", "minimum": 1, "maximum": 99},
        "category": {"enum": ["fruit", "vegetable"]},
        "comment": {"type": "string", "minLength": 6, "maxLength": 12},
        "fresh": {"type": "boolean"},
    },
    "required": ["identifier", "category", "comment", "fresh"],
}
CHOICES = ["incontrovertible", "incontrovertibly"]
CONSTRAINTS = (Constraint.from_schema(SCHEMA), Constraint.from_choices(CHOICES))
PROMPT = np.arange(40, 52, dtype=np.int32)


class OneByOne(Constrained):
    """Forces no tokens: each is drawn from those allowed."""

    def forced(self) -> Sequence[int]:
        return ()


def compare_answers(model: Model, new_cache: Callable[[], Cache]) -> list[float]:
    """Check answers with forced tokens computed in one step and one at a time; return the
    differences in their tokens' probabilities."""
    is_bounded = any(window.max_size for window in windows(new_cache()))
    found: list[float] = []
    for constraint in CONSTRAINTS:
        ours, plain = (answer(model, new_cache(), constraint, forced) for forced in (True, False))
        for each in (ours, plain):
            assert each.is_complete
            assert is_valid(constraint, each.text)
            assert each.evicted_tokens or not is_bounded
        found += differences(ours, plain)
    return found


@dataclass(frozen=True, slots=True)
class Answered:
    text: str
    tokens: Sequence[Token]
    is_complete: bool | None
    evicted_tokens: int


def answer(model: Model, cache: Cache, constraint: Constraint, forced: bool) -> Answered:
    kind = Constrained if forced else OneByOne
    reply = Reply(
        model,
        PROMPT,
        cache,
        sampling=SamplingSettings(temp=1.0, seed=0),
        settings=GenerationSettings(max_tokens=200, logprobs=0),
        constrained=kind(constraint, model.tokenizer, None),
    )
    tokens = [token for token in generate(reply) if token.id is not None]
    assert reply.stats.finish_reason == "stop"
    return Answered(
        "".join(each.text for each in tokens),
        tokens,
        reply.complete,
        reply.stats.evicted_tokens,
    )


def is_valid(constraint: Constraint, text: str) -> bool:
    if constraint.kind == "choice":
        return text in CHOICES
    return jsonschema.Draft202012Validator(SCHEMA).is_valid(json.loads(text))


def differences(found: Answered, plain: Answered) -> Iterator[float]:
    """How much the probabilities of the tokens differ, up to the first token that does; without
    tokens that have no alternative."""
    for ours, theirs in zip(found.tokens, plain.tokens, strict=False):
        if ours.id != theirs.id:
            yield math.inf
            return
        assert ours.logprob is not None
        assert theirs.logprob is not None
        if ours.logprob or theirs.logprob:
            yield abs(math.exp(ours.logprob) - math.exp(theirs.logprob))
