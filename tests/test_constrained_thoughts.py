"""A thinking model thinks first, in its own format; its answer is constrained from its first token.

Each format is tried with its template and control tokens, in a chat.
"""

import json
from dataclasses import replace

import pytest

from mlxchat.chat.conversation import Conversation
from mlxchat.constraint.constraint import Constraint
from mlxchat.settings import CacheSettings, GenerationSettings
from mlxchat.template_args import thinking_variables
from tests.reply_formats import APRIEL, FORMATS, MISTRAL
from tests.scripted_model import Scripted

# What the scripts answer, "Yes!", is none of these.
CHOICES = ["left", "right"]


@pytest.fixture(params=sorted(FORMATS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def scripted(name: str) -> Scripted:
    return FORMATS[name]


def converse(scripted: Scripted, *, thinks: bool = True) -> Conversation:
    return Conversation(
        scripted.model(),
        CacheSettings(None, keep=0, prefill_step_size=64),
        generation=GenerationSettings(max_tokens=200),
        variables=thinking_variables(thinks),
    )


def say(conversation: Conversation, constraint: Constraint | None) -> None:
    for _ in conversation.say("Which?", constraint=constraint):
        pass


def test_thoughts_are_free_and_the_answer_is_constrained(scripted: Scripted) -> None:
    conversation = converse(scripted)
    say(conversation, Constraint.from_choices(CHOICES))
    turn = conversation.turns[-1]
    assert turn.thought.strip() == scripted.thought.strip()
    assert turn.reply in CHOICES
    assert conversation.is_complete


def test_newlines_that_begin_an_answer_are_part_of_it(scripted: Scripted) -> None:
    """Those between a thought and an answer are dropped otherwise."""
    conversation = converse(scripted)
    for choices in (["\n\nleft", "\n\nright"], ["\n"]):
        say(conversation, Constraint.from_choices(choices))
        assert conversation.turns[-1].reply in choices
        assert conversation.is_complete
        assert conversation.turns[-1].exact


def test_with_thinking_off_no_thought_can_begin(scripted: Scripted) -> None:
    """The tokens that open thoughts stayed allowed. Some templates open one nevertheless."""
    conversation = converse(scripted, thinks=False)
    say(conversation, Constraint.from_choices(CHOICES))
    turn = conversation.turns[-1]
    is_opened = scripted.tokenizer().reader(conversation.view.prompt).is_thought
    assert turn.thought.strip() == (scripted.thought.strip() if is_opened else "")
    assert turn.reply in CHOICES
    assert conversation.is_complete


def answered(choices: list[str], reply: str) -> tuple[str, str]:
    """The thought and the answer of a model with tags in ordinary text that wants to reply so."""
    conversation = converse(replace(APRIEL, reply=f"{reply}<|end|>"))
    say(conversation, Constraint.from_choices(choices))
    assert conversation.is_complete
    return conversation.turns[-1].thought, conversation.turns[-1].reply


def test_an_answer_may_begin_like_a_tag() -> None:
    """The first different character decides which of them has begun."""
    choices = ["<thing>", "no"]
    assert answered(choices, "<thing>") == ("", "<thing>")
    assert answered(choices, "<thinking>Hm</thinking>\n<thing>") == ("Hm", "<thing>")
    assert answered(choices, "\n<thinking>Hm</thinking>no") == ("Hm", "no")


def test_a_thought_that_is_cut_off_is_no_complete_answer(scripted: Scripted) -> None:
    """Although the constraint allows an empty one."""
    conversation = converse(scripted)
    conversation.generation = GenerationSettings(max_tokens=9)
    say(conversation, Constraint.from_regex("a*"))
    assert conversation.is_complete is False


def test_a_reply_cannot_end_within_its_thought() -> None:
    """A random model that thinks often had no answer."""
    scripted = replace(MISTRAL, reply="[THINK]Hm</s>")
    conversation = converse(scripted)
    say(conversation, Constraint.from_choices(CHOICES))
    assert conversation.turns[-1].finish_reason == "length" or conversation.is_complete


def test_the_turn_after_it_is_free(scripted: Scripted) -> None:
    conversation = converse(scripted)
    say(conversation, Constraint.from_schema({"const": {"a": 1}}))
    assert json.loads(conversation.turns[-1].reply) == {"a": 1}
    say(conversation, None)
    assert conversation.turns[-1].reply == scripted.answer
    assert conversation.is_complete is None
