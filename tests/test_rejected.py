"""What a chat template or a tokenizer rejects costs a message, never the chat or the session."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, normalizers

from mlxchat.chat.conversation import Conversation
from mlxchat.chat.state import State, Turn
from mlxchat.errors import InputError, UsageError
from mlxchat.sessions.listing import read_session
from mlxchat.text.template import ChatTemplate
from mlxchat.text.tokens import Tokenizer
from scripts.tiny_model import byte_tokenizer, write_tiny_model
from tests import chat_templates
from tests.conversations import END_IDS, check_in_step, make_conversation, say
from tests.in_process import run_in_process

NO_WORD = (
    "{% for m in messages %}{% if 'forbidden' in m.content %}{{ raise_exception('not this') }}"
    "{% endif %}{% endfor %}"
) + chat_templates.CHATML
FEW_MESSAGES = (
    "{% if messages | length > 6 %}{{ raise_exception('too many') }}{% endif %}"
) + chat_templates.CHATML
NOT_THIS = "the model's chat template rejects this: not this"
HISTORY = [Turn("one", ""), Turn("", "two"), Turn("three", " \n"), Turn("four", "fine")]


def rendered(conversation: Conversation) -> str:
    ids = conversation.rendering.ids(conversation.state.add(Turn("next")))
    return conversation.model.tokenizer.decode(ids)


def test_turns_that_the_template_rejects_are_not_rendered() -> None:
    """One empty reply, and every later message was rejected: the session had ended for good."""
    conversation = make_conversation(None, chat_templates.NO_EMPTY, system="Be kind.")
    conversation.resume(State("Be kind.", turns=tuple(HISTORY)))
    text = rendered(conversation)
    assert all(word in text for word in ("four", "fine"))
    assert not any(word in text for word in ("one", "two", "three"))
    say(conversation, "six")
    list(conversation.retry())
    check_in_step(conversation)
    with pytest.raises(UsageError, match="rejects this turn"):
        conversation.pin(1)
    assert [tokens for _, tokens in conversation.usage().turns][:3] == [0, 0, 0]
    assert conversation.undo().user == "six"
    say(conversation, "seven")
    check_in_step(conversation)
    assert [turn.user for turn in conversation.turns] == [*(t.user for t in HISTORY), "seven"]


def test_as_many_turns_are_rendered_as_the_template_accepts_together() -> None:
    conversation = make_conversation(None, FEW_MESSAGES)
    for text in ("one", "two", "three", "four", "five"):
        say(conversation, text)
        check_in_step(conversation)
    text = rendered(conversation)
    assert [each in text for each in ("three", "four", "five")] == [False, True, True]
    assert len(conversation.turns) == 5


def test_a_text_that_the_tokenizer_rejects_costs_one_message() -> None:
    """In a session begun with another model, it is left out."""
    backend = byte_tokenizer()
    backend.normalizer = normalizers.NFKC()
    backend.add_special_tokens([AddedToken("<go>", special=True, normalized=True)])
    conversation = make_conversation(None)
    tokenizer = Tokenizer(backend, ChatTemplate(chat_templates.CHATML, {}), END_IDS)
    conversation.rendering.tokenizer = tokenizer
    disguised = "\uff1cgo\uff1e"
    with pytest.raises(InputError, match="look-alike"):
        say(conversation, disguised)
    assert not conversation.turns
    conversation.resume(State(turns=(Turn(disguised, "yes"), Turn("two", disguised))))
    say(conversation, "three")
    check_in_step(conversation)


def test_a_rejected_message_in_a_pipe_costs_that_message(tmp_path: Path) -> None:
    """The messages after it were not answered."""
    model = write_tiny_model(tmp_path / "model", chat_template=NO_WORD)
    chat = ("-m", str(model), "-n", "1", "--temp", "0", "--session", "mine")
    given = "one\na forbidden word\ntwo\n"
    done = run_in_process(*chat, stdin=given)
    assert done.returncode == 1
    which = 'line 2 of standard input, "a forbidden word"'
    assert done.stderr == f"mlxchat: error: {NOT_THIS}; not answered: {which}\n"
    assert [turn.user for turn in read_session("mine").turns] == ["one", "two"]
    done = run_in_process(*chat, "--json", stdin=given)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    ends = [event for event in events if event["event"] == "done"]
    assert [end.get("error") for end in ends] == [None, NOT_THIS, None]
    assert [end["finish_reason"] for end in ends] == ["length", "error", "length"]
