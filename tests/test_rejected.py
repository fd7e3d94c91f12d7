"""What a chat template or a tokenizer rejects costs a message, never the chat or the session."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, normalizers

from mlxchat.chat.conversation import Conversation
from mlxchat.chat.state import Recalled, Turn
from mlxchat.errors import InputError, TemplateError, UsageError
from mlxchat.sessions.listing import latest, read_session
from mlxchat.settings import GenerationSettings
from mlxchat.text.template import ChatTemplate
from mlxchat.text.tokens import Tokenizer
from scripts.tiny_model import byte_tokenizer, write_tiny_model
from tests import chat_templates
from tests.conftest import RunMlxchat
from tests.conversations import END_IDS, check_in_step, make_conversation, say
from tests.terminal_chat import CTRL_D, PROMPT
from tests.terminal_chat import Chat as TerminalChat

NO_WORD = (
    "{% for m in messages %}{% if 'forbidden' in m.content %}{{ raise_exception('not this') }}"
    "{% endif %}{% endfor %}"
) + chat_templates.CHATML
FEW_MESSAGES = (
    "{% if messages | length > 6 %}{{ raise_exception('too many') }}{% endif %}"
) + chat_templates.CHATML
NOT_THIS = "the model's chat template rejects this: not this"
HISTORY = [
    Turn("one", ""),
    Turn("", "two"),
    Turn("three", " \n"),
    Turn("four", "fine"),
    Turn("five", "", thought="Hm."),
]


def rendered(conversation: Conversation) -> str:
    ids = conversation.rendering.ids(conversation.state.add(Turn("next")))
    return conversation.model.tokenizer.decode(ids)


def test_turns_that_the_template_rejects_are_not_rendered() -> None:
    """One empty reply, and every later message was rejected: the session had ended for good."""
    conversation = make_conversation(None, chat_templates.NO_EMPTY, system="Be kind.")
    conversation.resume("Be kind.", [*HISTORY])
    text = rendered(conversation)
    assert all(word in text for word in ("four", "fine", "five", "Hm."))
    assert not any(word in text for word in ("one", "two", "three"))
    say(conversation, "six")
    check_in_step(conversation)
    list(conversation.retry())
    list(conversation.continue_reply())
    with pytest.raises(UsageError, match="rejects this turn"):
        conversation.pin(1)
    conversation.pin(4)
    assert [tokens for _, tokens in conversation.usage().turns][:3] == [0, 0, 0]
    assert conversation.compact() is not None
    conversation.take_back()
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
    assert "five" in text
    assert "four" in text
    assert "three" not in text
    assert len(conversation.turns) == 5


def test_a_rejected_quote_is_not_made() -> None:
    """A quoted turn may be of another session, with a model that accepted it."""
    template = NO_WORD.replace("forbidden", "I said")
    conversation = make_conversation(400, template, recalls=2)
    told = "My brother Carlo keeps bees in Verona."
    conversation.resume(None, [Turn(told, "Ah.", forgotten=True), Turn("Hello.", "Yes.")])
    said = list(conversation.say("Where does my brother Carlo keep his bees?"))
    assert not any(isinstance(each, Recalled) for each in said)
    check_in_step(conversation)


def test_rejected_turns_are_forgotten_with_their_neighbours() -> None:
    """Without tokens of its own, such a turn kept the window from forgetting whole turns."""
    conversation = make_conversation(240, chat_templates.NO_EMPTY)
    conversation.add(Turn("x" * 30, "y"), Turn("nothing", ""), Turn("z" * 30, "y"))
    conversation.generation = GenerationSettings(max_tokens=200, ignore_eos=True)
    numbers = [n for forgot in say(conversation, "go on") for n in forgot.numbers]
    assert numbers == [1, 2, 3]
    check_in_step(conversation)


def test_a_system_prompt_that_is_rejected_as_a_message_is_part_of_the_first() -> None:
    conversation = make_conversation(None, chat_templates.NO_EMPTY, system=" ")
    say(conversation, "hello")
    conversation = make_conversation(None, NO_WORD, system="Be kind.")
    with pytest.raises(TemplateError):
        conversation.set_system("forbidden")
    assert conversation.state.system == "Be kind."
    say(conversation, "hello")
    check_in_step(conversation)


def test_a_text_that_the_tokenizer_rejects_costs_one_message() -> None:
    """In a session begun with another model, it is left out."""
    backend = byte_tokenizer()
    backend.normalizer = normalizers.NFKC()
    backend.add_special_tokens([AddedToken("<go>", special=True, normalized=True)])
    conversation = make_conversation(None)
    tokenizer = Tokenizer(backend, ChatTemplate(chat_templates.CHATML, {}), END_IDS)
    conversation.rendering.tokenizer = tokenizer
    disguised = "\uff1cgo\uff1e"
    with pytest.raises(InputError):
        say(conversation, disguised)
    assert not conversation.turns
    conversation.resume(None, [Turn(disguised, "yes"), Turn("two", disguised)])
    say(conversation, "three")
    check_in_step(conversation)


@pytest.fixture
def model(tmp_path: Path) -> Callable[[str], str]:
    """Writes a model with this template."""

    def write(template: str) -> str:
        return str(write_tiny_model(tmp_path / "model", chat_template=template))

    return write


def test_a_rejected_message_in_a_pipe_costs_that_message(
    model: Callable[[str], str], run_mlxchat: RunMlxchat
) -> None:
    """The messages after it were not answered."""
    chat = ("-m", model(NO_WORD), "-n", "1", "--temp", "0", "--session", "mine")
    given = "one\na forbidden word\ntwo\n"
    done = run_mlxchat(*chat, stdin=given)
    assert done.returncode == 1
    assert done.stderr == f'mlxchat: error: {NOT_THIS}; not answered: "a forbidden word"\n'
    assert [turn.user for turn in read_session("mine").turns] == ["one", "two"]
    # A session without a turn is not the last one.
    assert run_mlxchat(*chat[:-2], "A forbidden question").returncode == 1
    assert latest() == "mine"
    done = run_mlxchat(*chat, "--json", stdin=given)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    ends = [event for event in events if event["event"] == "done"]
    assert [end.get("error") for end in ends] == [None, NOT_THIS, None]
    assert [end["finish_reason"] for end in ends] == ["length", "error", "length"]
    assert done.returncode == 1


def test_turns_that_are_left_out_are_reported_once(
    model: Callable[[str], str], run_mlxchat: RunMlxchat
) -> None:
    """The model answered without earlier turns, and nobody knew."""
    chat = ["chat", "--no-save", "-m", model(FEW_MESSAGES), "-n", "1"]
    done = run_mlxchat(*chat, stdin="a\nb\nc\nd\ne\nf\n")
    notice = "the chat template rejects these turns together: earlier ones are left out"
    assert (done.returncode, done.stderr.count(notice)) == (0, 1)


def test_a_rejected_message_on_a_terminal_comes_back_with_its_files(
    model: Callable[[str], str], ordinary_terminal: None, tmp_path: Path
) -> None:
    """The reason was shown twice, and the chat ended."""
    (tmp_path / "notes").write_text("some notes")
    chat = TerminalChat(model(NO_WORD), "-n", "1", "--session", "mine", "--max-kv-size", "500")
    chat.says(f"/file {tmp_path / 'notes'}")
    chat.send("forbidden\r")
    chat.shows(f"^> forbidden\n{NOT_THIS}\n> forbidden$")
    chat.send("\x15fine\r")
    chat.shows("^> fine\n[^$]*stopped at 1 token")
    chat.shows(PROMPT)
    chat.send(CTRL_D)
    assert chat.ends() == 0
    assert chat.written.count(NOT_THIS) == 1
    (turn,) = read_session("mine").turns
    assert turn.user == f"# {tmp_path / 'notes'}\n\nsome notes\n\nfine"
