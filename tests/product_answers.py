"""Constrained answers of tiny models, with forced tokens computed in one step or one at a time."""

import json
import math
from collections.abc import Callable, Sequence
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
    },
    "required": ["identifier", "category"],
}
CHOICES = ["incontrovertible", "incontrovertibly"]
CONSTRAINTS = (Constraint.from_schema(SCHEMA), Constraint.from_choices(CHOICES))
PROMPT = np.arange(40, 52, dtype=np.int32)


class OneByOne(Constrained):
    """Forces no tokens: each is drawn from those allowed."""

    def forced(self) -> Sequence[int]:
        return ()


def compare_answers(model: Model, new_cache: Callable[[], Cache]) -> list[float]:
    """Answer with forced tokens computed in one step and one at a time; return the differences in
    their tokens' probabilities, up to the first token that differs."""
    found: list[float] = []
    for constraint in CONSTRAINTS:
        answers = [answer(model, new_cache(), constraint, kind) for kind in (Constrained, OneByOne)]
        for ours, theirs in zip(*answers, strict=False):
            if ours.id != theirs.id:
                found.append(math.inf)
                break
            assert ours.logprob is not None
            assert theirs.logprob is not None
            # Without tokens that have no alternative.
            if ours.logprob or theirs.logprob:
                found.append(abs(math.exp(ours.logprob) - math.exp(theirs.logprob)))
    return found


def answer(model: Model, cache: Cache, form: Constraint, kind: type[Constrained]) -> list[Token]:
    """A valid answer, for which a window evicts tokens."""
    is_bounded = any(window.max_size for window in windows(cache))
    reply = Reply(
        model,
        PROMPT,
        cache,
        sampling=SamplingSettings(temp=1.0, seed=0),
        settings=GenerationSettings(max_tokens=200, logprobs=0),
        constrained=kind(form, model.tokenizer, None),
    )
    tokens = [token for token in generate(reply) if token.id is not None]
    assert (reply.finish_reason, reply.complete) == ("stop", True)
    assert reply.stats.evicted_tokens or not is_bounded
    text = "".join(each.text for each in tokens)
    if form.kind == "choice":
        assert text in CHOICES
    else:
        jsonschema.validate(json.loads(text), SCHEMA)
    return tokens
