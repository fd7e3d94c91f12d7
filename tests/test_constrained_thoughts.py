"""A thinking model thinks first, in its own format; its answer is constrained from its first token.

Each format is tried with its template and control tokens, in a chat.
"""

import json

import pytest

from mlxchat.chat.conversation import Conversation
from mlxchat.constraint.constraint import Constraint
from mlxchat.settings import CacheSettings, GenerationSettings
from mlxchat.template_args import thinking_variables
from tests.reply_formats import FORMATS
from tests.scripted_model import Scripted

# What the scripts answer, "Yes!", is none of these.
CHOICES = ["left", "right"]

# Their tags are ordinary text, which the constraint rules out like any other.
WITHOUT_MARKERS = {"apriel", "kimi vl"}


@pytest.fixture(params=sorted(FORMATS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def scripted(name: str) -> Scripted:
    return FORMATS[name]


def converse(scripted: Scripted, window: int | None = None) -> Conversation:
    return Conversation(
        scripted.model(),
        CacheSettings(window, keep=0, prefill_step_size=64),
        generation=GenerationSettings(max_tokens=200),
        variables=thinking_variables(True),
    )


def say(conversation: Conversation, constraint: Constraint | None) -> None:
    for _ in conversation.say("Which?", constraint=constraint):
        pass


def test_thoughts_are_free_and_the_answer_is_constrained(name: str, scripted: Scripted) -> None:
    conversation = converse(scripted)
    say(conversation, Constraint.from_choices(CHOICES))
    turn = conversation.turns[-1]
    thought = "" if name in WITHOUT_MARKERS else scripted.thought.strip()
    assert turn.thought.strip() == thought
    assert turn.reply in CHOICES
    assert conversation.is_complete


def test_the_turn_after_it_is_free(scripted: Scripted) -> None:
    conversation = converse(scripted)
    say(conversation, Constraint.from_schema({"const": {"a": 1}}))
    assert json.loads(conversation.turns[-1].reply) == {"a": 1}
    say(conversation, None)
    assert conversation.turns[-1].reply == scripted.answer
    assert conversation.is_complete is None


def test_another_answer_is_constrained_too(scripted: Scripted) -> None:
    conversation = converse(scripted)
    constraint = Constraint.from_choices(CHOICES)
    say(conversation, constraint)
    for _ in conversation.retry(constraint=constraint):
        pass
    assert conversation.turns[-1].reply in CHOICES
    assert len(conversation.turns) == 1
