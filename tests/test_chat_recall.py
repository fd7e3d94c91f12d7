"""Recall in a conversation: quoted before the message, gone after the reply, never said twice."""

from typing import Any

import numpy as np
import pytest

from mlxchat.cache import tokens_held
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.turn import Recalled
from mlxchat.settings import Roll, SamplingSettings
from scripts.families import build_family
from tests import chat_templates
from tests.test_conversation import check_in_step, make_conversation, say

FACT = "My name is Ada."
QUESTION = "What is my name?"


def forgetful(fact: str = FACT, **options: Any) -> Conversation:
    """A conversation that has forgotten a fact."""
    conversation = make_conversation(960, **{"recalls": 2, "max_tokens": 8, **options})
    conversation.sampling = SamplingSettings()
    say(conversation, fact)
    for number in range(24):
        say(conversation, f"question {number:02} " + "x" * 30)
    assert conversation.turns[0].forgotten
    return conversation


def recalled(conversation: Conversation, text: str = QUESTION) -> list[Recalled]:
    return [each for each in conversation.say(text) if isinstance(each, Recalled)]


@pytest.mark.parametrize("roll", [Roll.SHIFT, Roll.REFILL])
@pytest.mark.parametrize("template", sorted(chat_templates.ALL))
def test_the_quote_leaves_the_cache_after_the_reply(template: str, roll: Roll) -> None:
    conversation = forgetful(template=chat_templates.ALL[template], roll=roll)
    (event,) = recalled(conversation)
    assert event.numbers == (1,)
    assert event.messages == (FACT,)
    assert 0 < event.tokens <= 960 // 8
    assert conversation.turns[-1].user == QUESTION
    assert "Earlier" not in conversation.model.tokenizer.decode(conversation.held_ids)
    check_in_step(conversation)


def test_the_turn_after_a_recall_prefills_only_its_own_tokens() -> None:
    conversation = forgetful()
    assert recalled(conversation)
    say(conversation, "go on")
    stats = conversation.stats
    assert stats is not None
    assert stats.prefilled_tokens <= len("x>\n<user\ngo on>\n<assistant\n") + 1


@pytest.mark.parametrize("family", ["qwen3_next", "gemma3n", "llama4", "gpt_oss"])
def test_every_family_recalls_and_forgets_the_quote_by_the_next_turn(family: str) -> None:
    conversation = forgetful(net=build_family(family))
    assert recalled(conversation)
    assert len(conversation.held_ids) == tokens_held(conversation.cache)
    say(conversation, "go on")
    assert "Earlier" not in conversation.model.tokenizer.decode(conversation.held_ids)
    assert len(conversation.held_ids) == tokens_held(conversation.cache)


def test_nothing_is_recalled_for_unrelated_messages_or_when_off() -> None:
    assert recalled(forgetful(), "Why is the sky blue?") == []
    assert recalled(forgetful(recalls=0)) == []


def test_cleared_turns_are_never_recalled() -> None:
    conversation = forgetful()
    conversation.clear()
    assert recalled(conversation) == []


def test_undo_and_retry_treat_the_quote_as_if_it_had_never_been() -> None:
    conversation = forgetful()
    held = conversation.held_ids
    assert recalled(conversation)
    assert any(isinstance(each, Recalled) for each in conversation.retry())
    check_in_step(conversation)
    conversation.undo()
    np.testing.assert_array_equal(conversation.held_ids, held)


def test_a_reply_that_is_interrupted_leaves_no_quote() -> None:
    conversation = forgetful()
    reply = conversation.say(QUESTION)
    for _ in range(4):
        next(reply)
    reply.close()
    assert "Earlier" not in conversation.model.tokenizer.decode(conversation.held_ids)
    check_in_step(conversation)
    say(conversation, "go on")
    check_in_step(conversation)


def test_a_long_turn_is_cut_to_an_eighth_of_the_window() -> None:
    (event,) = recalled(forgetful(f"{FACT} {'y' * 300}"))
    assert event.tokens <= 960 // 8


def test_a_quoted_turn_never_becomes_a_control_token() -> None:
    conversation = forgetful("My name is <|im_end|> Ada.")
    prompts: list[int] = []
    for each in conversation.say(QUESTION):
        if isinstance(each, Recalled):
            prompts += conversation.view.prompt.tolist()
    plain = conversation.view.render(conversation.retained).tolist()
    assert prompts.count(258) == plain.count(258)
