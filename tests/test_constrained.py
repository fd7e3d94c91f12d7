"""Constrained answers: always valid, and the same text however the tokens are computed."""

import json
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import Mock

import jsonschema
import mlx.core as mx
import numpy as np
import pytest

from mlxchat.cache.layers import Cache
from mlxchat.chat.conversation import Conversation
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.constrained import Constrained
from mlxchat.engine.drafts import Drafter, History
from mlxchat.engine.generate import generate
from mlxchat.engine.reply import Reply
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings, SamplingSettings
from scripts.families import build_family
from scripts.tiny_model import byte_tokenizer
from tests.conversations import converse, make_model, prompt_of
from tests.reply_formats import FORMATS, MISTRAL

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "identifier": {"type": "integer", "minimum": 1, "maximum": 99},
        "category": {"enum": ["fruit", "vegetable", "mineral"]},
        "comment": {"type": "string", "maxLength": 12},
        "parts": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["identifier", "category", "comment", "parts"],
    "additionalProperties": False,
}


@cache
def a_model() -> Model:
    return make_model(net=build_family("llama"))


def answer(
    constraint: Constraint,
    *,
    lookup: bool = True,
    sampling: dict[str, Any] | None = None,
    **settings: Any,
) -> Reply:
    model = a_model()
    prompt = np.arange(40, 104, dtype=np.int32)
    drafter = Drafter(History(), clock=lambda: 0.0) if lookup else None
    if drafter is not None:
        drafter.history.extend(prompt)
    return Reply(
        model,
        prompt,
        model.make_cache(48, 4),
        sampling=SamplingSettings(**{"temp": 1.0, "seed": 0, **(sampling or {})}),
        settings=GenerationSettings(**settings),
        drafter=drafter,
        constrained=Constrained(constraint, model.tokenizer, None),
    )


def text_of(reply: Reply, pause_after: int = -1) -> str:
    """The reply's text; after each pause another loop continues it."""
    text = ""
    while reply.finish_reason is None:
        text += "".join(token.text for token in generate(reply, tokens=pause_after))
    return text


@pytest.mark.parametrize(
    "sampler",
    [
        {"temp": 0.0},
        {"top_p": 0.5},
        {"top_k": 3, "repetition_penalty": 1.3},
        {"min_p": 0.2},
        {"xtc_probability": 0.5},
    ],
    ids=str,
)
def test_every_sampler_obeys_and_drafts_and_pauses_change_nothing(sampler: dict[str, Any]) -> None:
    one_by_one, drafted = (
        answer(Constraint.from_schema(SCHEMA), lookup=lookup, sampling=sampler, max_tokens=120)
        for lookup in (False, True)
    )
    text = text_of(one_by_one)
    assert text_of(drafted, pause_after=7) == text
    # A random model may write blanks or digits for as long as it is allowed to.
    assert one_by_one.complete == (one_by_one.finish_reason == "stop")
    if one_by_one.complete:
        jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize("lookup", [True, False])
@pytest.mark.parametrize("pattern", ["^[\\x01-\\x07]$", "^[\\x01-\\x07]"])
def test_a_stuck_answer_ends_with_what_is_written(pattern: str, lookup: bool) -> None:
    """No escape can write the pattern's characters. The error ended a chat, and a batch."""
    fields = {"b": {"type": "integer", "maximum": 9}, "a": {"type": "string", "pattern": pattern}}
    schema = {"anyOf": [{"type": "object", "properties": fields, "required": ["b", "a"]}]}
    reply = answer(Constraint.from_schema(schema), lookup=lookup, max_tokens=300)
    assert text_of(reply).startswith('{"b": ')
    assert (reply.finish_reason, reply.complete) == ("error", False)
    assert (reply.problem or "").startswith("the answer got stuck: --schema: nothing matches it")
    assert reply.stats.generated_tokens > 0


@pytest.mark.parametrize("items", [{"maxItems": 2}, {}])
def test_an_answer_its_grammar_allows_is_validated_however_it_ends(items: dict[str, int]) -> None:
    """With `maxItems` nothing may follow, so no end token is drawn."""
    schema = {"type": "array", "items": {"const": 1}, "minItems": 2, "uniqueItems": True, **items}
    reply = answer(Constraint.from_schema(schema), max_tokens=300, sampling={"temp": 0.5})
    text_of(reply)
    assert (reply.finish_reason, reply.complete) == ("stop", False)
    assert reply.problem == "the answer is not valid: $: [1, 1] has non-unique elements"


def test_log_probabilities_are_those_of_the_tokens_allowed() -> None:
    constraint = Constraint.from_choices(["yes", "no"])
    first, *rest = (t for t in generate(answer(constraint, logprobs=5)) if t.id is not None)
    assert {id_ for id_, _ in first.top} == {ord("y"), ord("n")}
    assert sum(np.exp([logprob for _, logprob in first.top])) == pytest.approx(1)
    assert all(t.logprob == 0 for t in rest)


def test_a_cache_that_refuses_drafts_gets_no_forced_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cache, "draft_room", property(lambda _: 0))
    monkeypatch.setattr(Cache, "begin_draft", Mock(side_effect=AssertionError("drafted")))
    assert text_of(answer(Constraint.from_choices(["incontrovertible"]))) == "incontrovertible"


def test_no_thought_begins_within_a_character() -> None:
    """A random model drew the marker of a thought after the first byte of a euro sign."""
    tokenizer = a_model().tokenizer
    constrained = Constrained(Constraint.from_regex("€"), tokenizer, tokenizer.prompt("How much?"))
    vocabulary = byte_tokenizer().get_vocab_size()
    first, *rest = "€".encode()
    for before, after in ((first, rest[0]), (rest[0], rest[1])):
        constrained.accept(before)
        masked = np.array(constrained.apply(mx.zeros((1, vocabulary))))
        assert np.flatnonzero(np.isfinite(masked)).tolist() == [after]


# A thinking model thinks first, in its format; its answer is constrained from its first token


# What the scripts answer, "Yes!", is none of these.
CHOICES = ["left", "right"]


def say(conversation: Conversation, constraint: Constraint | None) -> tuple[str, str, bool | None]:
    """The thought, the answer, and whether that is complete."""
    for _ in conversation.say("Which?", constraint=constraint):
        pass
    turn = conversation.turns[-1]
    assert conversation.stats is not None
    return turn.thought.strip(), turn.reply, conversation.stats.complete


def may_think(conversation: Conversation) -> bool:
    """The model may think first, unless its tags are ordinary text, and not in the prompt."""
    tokenizer = conversation.model.tokenizer
    is_opened = tokenizer.reader(prompt_of(conversation)).is_thought
    return is_opened or not tokenizer.replies.markers.tags


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_thoughts_are_free_and_the_answer_is_constrained_turn_after_turn(name: str) -> None:
    """Newlines between a thought and an answer were dropped, although the answer began with them;
    and an empty answer is none if the thought before it is cut off."""
    scripted = FORMATS[name]
    conversation = converse(scripted)
    thought, *answered = say(conversation, Constraint.from_choices(CHOICES))
    assert thought == (scripted.thought.strip() if may_think(conversation) else "")
    assert answered in [[choice, True] for choice in CHOICES]
    for choices in (["\n\nleft", "\n\nright"], ["\n"]):
        _, reply, is_complete = say(conversation, Constraint.from_choices(choices))
        assert (reply in choices, is_complete) == (True, True)
    _, reply, is_complete = say(conversation, Constraint.from_schema({"const": {"a": 1}}))
    assert (json.loads(reply), is_complete) == ({"a": 1}, True)
    assert say(conversation, None)[1:] == (scripted.answer, None)
    conversation.generation = GenerationSettings(max_tokens=9)
    _, _, is_complete = say(conversation, Constraint.from_regex("a*"))
    assert is_complete is not may_think(conversation)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_with_thinking_off_no_thought_can_begin(name: str) -> None:
    """The tokens that open thoughts stayed allowed. Some templates open one nevertheless."""
    scripted = FORMATS[name]
    conversation = converse(scripted, thinks=False)
    thought, reply, is_complete = say(conversation, Constraint.from_choices(CHOICES))
    is_opened = scripted.tokenizer().reader(prompt_of(conversation)).is_thought
    assert thought == (scripted.thought.strip() if is_opened else "")
    assert (reply in CHOICES, is_complete) == (True, True)


def test_a_reply_cannot_end_within_its_thought() -> None:
    """A random model that thinks often had no answer."""
    conversation = converse(replace(MISTRAL, reply="[THINK]Hm</s>"))
    _, _, is_complete = say(conversation, Constraint.from_choices(CHOICES))
    assert conversation.turns[-1].finish_reason == "length" or is_complete
