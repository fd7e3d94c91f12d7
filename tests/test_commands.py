"""Slash commands in process: what they answer, what Tab suggests after them; and notes."""

import json
import shlex
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from mlxchat.app.chat import Chat
from mlxchat.chat.state import NOTE_BEGINS, Turn
from mlxchat.errors import UsageError, WindowTooSmall
from mlxchat.request import ChatOptions, Setup
from mlxchat.request.commands import ChatShown
from mlxchat.request.written import thinking_variables
from mlxchat.sessions.listing import import_messages, read_session
from mlxchat.sessions.session import Session
from mlxchat.settings import GenerationSettings
from mlxchat.terminal.chat_screen import ChatScreen
from mlxchat.terminal.commands import (
    COMMANDS,
    USAGE_COLUMNS,
    run_command,
    suggestions,
    without_draft,
)
from mlxchat.terminal.screen import Screen
from mlxchat.terminal.worker import Stop, Worker
from tests.in_process import run_in_process
from tests.test_config_command import editor_that

MAX_HELP_WORDS = 10

Run = Callable[[str], str]


@pytest.fixture
def window() -> int:
    return 400


@pytest.fixture
def shown(window: int, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatScreen]:
    """A chat on a terminal without a cursor, which needs no line editor."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")
    setup = Setup(str(tiny_model), window=window, keep=0, seed=7)
    options = ChatOptions(setup=setup, generation=GenerationSettings(max_tokens=3))
    with Worker() as worker, Chat.open(options, session="mine") as chat:
        shown = ChatScreen(chat, worker, ChatShown())
        shown.wait_for_model()
        yield shown
        worker.call(chat.close)


@pytest.fixture
def run(shown: ChatScreen, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command; its answer."""

    def run(line: str) -> str:
        answer = StringIO()
        monkeypatch.setattr(shown, "screen", Screen(answer))
        run_command(shown, line)
        return answer.getvalue()

    return run


def test_recall_shows_what_it_finds_and_quotes_only_when_asked(shown: ChatScreen, run: Run) -> None:
    """The newest find was put into the prompt unasked, and the next Enter sent it. Later a quote
    was put there on request, and `exit` typed after it was sent to the model."""
    shown.conversation.add(
        Turn("My name is Ada.\nI live in Paris.", "Hello Ada!", forgotten=True),
        Turn("Who am I?", "You are called ADA.", thought="ada it was"),
    )
    assert run("/recall ada") == (
        "#1 turn 1 (forgotten): My name is Ada.\n"
        "#2 turn 1 (forgotten): Hello Ada!\n"
        "#3 turn 2: ada it was\n"
        "#4 turn 2: You are called ADA.\n"
        "/recall ada #4 quotes the last one in your next message\n"
    )
    assert shown.attached == []
    assert run("/recall ada #1") == "your next message will quote turn 1: My name is Ada.\n"
    assert run("/recall Rome").endswith("no match for 'Rome'\n")
    with pytest.raises(UsageError, match="no match #5: found 4 matches"):
        run("/recall ada #5")
    with pytest.raises(UsageError, match=r"usage: /recall WORD \[#N\]"):
        run("/recall")
    shown.say("Right?")
    assert shown.conversation.turns[-1].user == "> My name is Ada.\n\nRight?"


def test_each_command_is_listed_in_a_line_of_80_columns() -> None:
    for each in COMMANDS.values():
        assert len(each.usage) < USAGE_COLUMNS, each
        assert USAGE_COLUMNS + len(each.help) <= 80, each
        assert len(each.help.split()) <= MAX_HELP_WORDS, each


def test_unknown_commands_suggest_the_nearest(run: Run) -> None:
    with pytest.raises(UsageError, match=r"unknown command /contxt: did you mean /context\?"):
        run("/contxt")
    with pytest.raises(UsageError, match="unknown command /usr/lib: see /help, or send it as //us"):
        run("/usr/lib is a directory")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/regen", "unknown command /regen: use /retry"),
        ("/set parameter num_predict 5", "unknown option 'parameter': use /set max-tokens"),
        ("/set --max-kv-size 9", "unknown option '--max-kv-size': start mlxchat with --max-kv-…"),
        ("/set format json", "unknown option 'format': use /schema"),
        ("/load smollm2", "smollm2 is a model, not a session: use /model smollm2"),
        ("/set xyzzy", "unknown option 'xyzzy': /set lists them"),
    ],
)
def test_another_programs_command_or_option_names_ours(line: str, message: str, run: Run) -> None:
    with pytest.raises(UsageError) as caught:
        run(line)
    assert fnmatch(str(caught.value), message.replace("…", "*"))


@pytest.mark.parametrize(
    ("command", "typed", "suggested"),
    [
        ("/think", "", ["on", "off", "hide"]),
        ("/think", "h", ["hide"]),
        ("/set", "top", ["top-p ", "top-k "]),
        ("/set", "temp ", []),
        ("/set", "lookup ", ["lookup on", "lookup off"]),
        ("/load", "ol", ["old"]),
        ("/system", "o", ["off"]),
        ("/pin", "", ["2"]),
        ("/stats", "", []),
        ("/no-such", "", []),
    ],
)
def test_tab_suggests_arguments(
    command: str, typed: str, suggested: list[str], shown: ChatScreen
) -> None:
    with Session.open("old", create=True) as session:
        session.record(None, [Turn("hello", "hi")])
    shown.conversation.add(Turn("one", forgotten=True), Turn("two"), Turn("three", pinned=True))
    assert list(suggestions(shown, command, typed)) == suggested


def test_another_model_continues_the_conversation(
    shown: ChatScreen, run: Run, tiny_model: Path
) -> None:
    shown.say("hello")
    before = shown.conversation.model
    run(f"/model {tiny_model}")
    assert shown.conversation.model is not before
    assert [turn.user for turn in shown.conversation.turns] == ["hello"]


def test_thoughts_are_turned_off_for_the_conversation(shown: ChatScreen, run: Run) -> None:
    assert run("/think off") == "thoughts: off\n"
    assert shown.conversation.rendering.variables == thinking_variables(False)


def test_the_rows_of_context_add_up_whatever_was_done_before(
    shown: ChatScreen, run: Run, tmp_path: Path
) -> None:
    """They did not before a first message, nor after /system, /forget or /file."""
    (tmp_path / "notes").write_text("some notes")

    def check() -> list[str]:
        *rows, summary = run("/context").splitlines()
        numbers = [int(row.split()[0]) for row in rows]
        free = numbers[-1]
        used = int(summary.split(" of ")[0])
        assert used == sum(numbers) - free
        assert used + free == 400
        return rows

    assert len(check()) == 2
    for line in ("one", "two", "three"):
        shown.say(line)
    assert len(check()) == 5
    for line in ("/system Be kind.", "/pin 2", "/undo", "/forget 1"):
        run(line)
        check()
    run(f"/file {shlex.quote(str(tmp_path / 'notes'))}")
    assert any("attached to your next message" in row for row in check())
    run("/clear")
    assert len(check()) == 3


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("/undo", "/undo"),
        (" /set temp 1", "/set temp 1"),
        ("/bye", "/bye"),
        (" and/or?", "Count to ten and/or?"),
        ("/nonsense", "Count to ten/nonsense"),
        ("", "Count to ten"),
        ("exit", "exit"),
        (" quit", "Count to ten quit"),
    ],
)
def test_a_command_typed_after_a_draft_is_a_command(typed: str, meant: str) -> None:
    """The second of two /undo sent "Count to ten/undo" to the model, and `exit` "Count to
    tenexit"."""
    assert without_draft(f"Count to ten{typed}", "Count to ten") == meant


def test_an_empty_reply_is_reported(shown: ChatScreen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing at all appeared, as if the chat had not understood."""
    answer = StringIO()
    monkeypatch.setattr(shown, "screen", Screen(answer))
    tokenizer = shown.conversation.model.tokenizer
    monkeypatch.setattr(tokenizer, "eos_ids", frozenset(range(1000)))
    shown.say("hello")
    assert answer.getvalue() == "the reply is empty: /retry asks again\n"


def test_schema_constrains_the_next_answer_only(
    shown: ChatScreen, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraints: list[object] = []
    for name in ("say", "retry"):
        original = getattr(shown.chat, name)

        def noted(*texts: str, original: Any = original, **how: Any) -> Any:
            constraints.append(how["constraint"])
            return original(*texts, **how)

        monkeypatch.setattr(shown.chat, name, noted)
    assert run('/schema {"enum": [7]}') == "the answer to your next message will be JSON\n"
    wanted = shown.constraint
    shown.say("how many?")
    shown.retry()
    shown.say("again")
    assert constraints == [wanted, wanted, None]
    run('/schema {"enum": [7]}')
    assert "ordinary answer" in run("/schema off")
    for wrong, words in (("/schema", "usage: /schema"), ('/schema {"type": "strin"}', "strin")):
        with pytest.raises(UsageError, match=words):
            run(wrong)
    assert shown.constraint is None


def test_what_is_stopped_before_it_begins_changes_nothing_and_says_so(
    shown: ChatScreen, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The constraint of a message that was stopped was forgotten, and after /schema it was an
    IndexError."""
    monkeypatch.setattr(Stop, "requested", lambda _: True)
    run('/schema {"enum": [7]}')
    constraint = shown.constraint
    shown.attach("notes", "some notes")
    answer = StringIO()
    monkeypatch.setattr(shown, "screen", Screen(answer))
    assert not shown.say("how many?")
    assert answer.getvalue() == (
        "stopped: edit your message below, or send it again with 1 attachment\n"
    )
    assert (shown.constraint, shown.attached) == (constraint, ["some notes"])
    monkeypatch.undo()
    assert shown.say("how many?")
    assert (shown.constraint, shown.attached) == (None, [])
    reply = shown.conversation.turns[0].reply
    monkeypatch.setattr(Stop, "requested", lambda _: True)
    assert run("/retry") == "stopped: the old reply stays\n"
    assert [turn.reply for turn in shown.conversation.turns] == [reply]


# Notes: saved and resumed, shown, edited and exported


MESSAGES = ("My cat is Ada.", "I am Bo.", "I am at sea.")


def options_of(model: Path, window: int = 1600) -> ChatOptions:
    setup = Setup(str(model), window=window, keep=0, prefill_step_size=64, seed=7)
    return ChatOptions(setup, generation=GenerationSettings(max_tokens=6, ignore_eos=True))


def talked(chat: Chat) -> Chat:
    for message in MESSAGES:
        list(chat.say(message))
    return chat


def test_a_note_is_saved_with_what_it_made_the_window_forget_and_resumed_to_the_bit(
    tiny_model: Path,
) -> None:
    with Chat.open(options_of(tiny_model), session="mine") as chat:
        compacted = talked(chat).compact()
        assert compacted is not None
        # As a kill would find it.
        saved = read_session("mine")
        assert saved.note == compacted.note
        assert [turn.forgotten for turn in saved.turns] == [True, True, False]
    with Chat.open(options_of(tiny_model), session="mine") as chat:
        conversation = chat.conversation
        assert conversation.state.note == compacted.note
        list(chat.say("go on"))
        held = conversation.ledger.ids.tolist()
        assert NOTE_BEGINS in conversation.model.tokenizer.decode(held)
    with Chat.open(options_of(tiny_model), session="mine") as chat:
        assert chat.conversation.ledger.ids.tolist() == held
        assert chat.notices == []
        chat.conversation.set_note(None)
        chat.save()
        assert read_session("mine").note is None


def test_leaving_right_after_a_note_resumes_from_the_transcript(tiny_model: Path) -> None:
    with Chat.open(options_of(tiny_model), session="mine") as chat:
        list(talked(chat).say("four"))
    with Chat.open(options_of(tiny_model), session="mine") as chat:
        chat.compact()
    with Chat.open(options_of(tiny_model), session="mine") as chat:
        chat.begin()
        (notice,) = chat.notices
        assert notice.endswith(
            "system prompt or note: your next message reads the transcript again"
        )
        list(chat.say("go on"))
        assert NOTE_BEGINS in chat.conversation.model.tokenizer.decode(chat.conversation.ledger.ids)


def test_a_window_too_small_for_the_note_is_refused_with_the_minimum(tiny_model: Path) -> None:
    with Chat.open(options_of(tiny_model), session="mine") as chat:
        talked(chat).conversation.set_note("y" * 300)
        chat.save()
    small = ChatOptions(
        Setup(str(tiny_model), window=320, keep=0), chosen=frozenset({"window", "model"})
    )
    with (
        pytest.raises(WindowTooSmall, match=r"a system prompt, note and chat template of \d+"),
        Chat.open(small, session="mine") as chat,
    ):
        chat.begin()
    assert read_session("mine").note == "y" * 300


@pytest.mark.parametrize("window", [1600])
def test_the_note_can_be_edited_and_removed(
    shown: ChatScreen, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talked(shown.chat)
    for command in ("/compact edit", "/compact off"):
        with pytest.raises(UsageError, match="no note yet: /compact writes one"):
            run(command)
    run("/compact")
    edits = ("file.write_text('Ada is a cat.')", "pass", "file.write_text('')")
    monkeypatch.setenv("EDITOR", editor_that(tmp_path, *edits))
    assert run("/compact edit") == "note: Ada is a cat.\n"
    assert run("/compact edit") == "the note is unchanged\n"
    with pytest.raises(UsageError, match="the note is empty"):
        run("/compact edit")
    assert shown.conversation.state.note == "Ada is a cat."
    assert run("/compact off") == "removed the note\n"
    assert shown.conversation.state.note is None
    assert len(shown.conversation.state.forgotten) == 2


@pytest.mark.parametrize("window", [1600])
def test_exports_have_the_note_and_imports_restore_it(
    shown: ChatScreen, run: Run, tmp_path: Path
) -> None:
    talked(shown.chat)
    shown.conversation.set_system("Be kind.")
    shown.conversation.set_note("Ada:\n> a cat")
    shown.chat.save()
    for name in ("a.jsonl", "a.md"):
        run(f"/export {tmp_path / name}")
        form = ["--json"] if name == "a.jsonl" else []
        written = run_in_process("session", "show", "mine", *form).stdout
        assert written == (tmp_path / name).read_text()
    import_messages(tmp_path / "a.jsonl", "again")
    saved = read_session("again")
    assert (saved.system, saved.note) == ("Be kind.", "Ada:\n> a cat")
    assert len(saved.turns) == 3
    lines = run_in_process("session", "show", "mine", "--json").stdout.splitlines()
    assert json.loads(lines[1]) == {
        "role": "system",
        "content": "Ada:\n> a cat",
        "name": "note",
    }
    assert "Note on forgotten turns" in run_in_process("session", "show", "mine").stdout
