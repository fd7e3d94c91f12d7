"""Notes in a chat: saved and resumed, shown, edited and exported."""

import json
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import pytest

from mlxchat.app.chat import Chat
from mlxchat.chat.rendering import NOTE_BEGINS
from mlxchat.errors import UsageError, WindowTooSmall
from mlxchat.request import ChatOptions, Setup
from mlxchat.sessions.listing import import_messages, read_session
from mlxchat.settings import GenerationSettings
from mlxchat.terminal.chat_screen import ChatScreen, ScreenOptions
from mlxchat.terminal.commands import screen_with_commands
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.screen import Screen
from mlxchat.terminal.slash import run_command
from tests.in_process import run_in_process
from tests.test_config_command import editor_that

MESSAGES = ("My cat is Ada.", "I am Bo.", "I am at sea.")
Run = Callable[[str], str]


def options_of(model: Path, window: int = 1600) -> ChatOptions:
    setup = Setup(str(model), window=window, keep=0, prefill_step_size=64, seed=7)
    return ChatOptions(setup, generation=GenerationSettings(max_tokens=6, ignore_eos=True))


def talked(chat: Chat) -> Chat:
    for message in MESSAGES:
        list(chat.say(message))
    return chat


@pytest.fixture
def shown(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatScreen]:
    """A chat of three turns on a terminal without a cursor."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")
    with Chat.open(options_of(tiny_model), session="mine") as chat:
        yield screen_with_commands(talked(chat), ScreenOptions(), Messages())


@pytest.fixture
def run(shown: ChatScreen, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command; its answer."""

    def run(line: str) -> str:
        answer = StringIO()
        monkeypatch.setattr(shown, "screen", Screen(answer))
        run_command(shown, line)
        return answer.getvalue()

    return run


def test_a_note_is_saved_with_what_it_made_the_window_forget(tiny_model: Path) -> None:
    with Chat.open(options_of(tiny_model), session="mine") as chat:
        compacted = talked(chat).compact()
        assert compacted is not None
        # As a kill would find it.
        saved = read_session("mine")
        assert saved.note == compacted.note
        assert [turn.forgotten for turn in saved.turns] == [True, True, False]
    with Chat.open(options_of(tiny_model), session="mine") as chat:
        conversation = chat.conversation
        assert conversation.note == compacted.note
        list(chat.say("go on"))
        assert NOTE_BEGINS in conversation.model.tokenizer.decode(conversation.held_ids)
        conversation.set_note(None)
        chat.save()
        assert read_session("mine").note is None


def test_a_note_is_restored_to_the_bit_after_the_next_turn(tiny_model: Path) -> None:
    with Chat.open(options_of(tiny_model), session="mine") as chat:
        talked(chat).compact()
        list(chat.say("go on"))
        held = chat.conversation.held_ids.tolist()
    with Chat.open(options_of(tiny_model), session="mine") as chat:
        assert chat.conversation.held_ids.tolist() == held
        assert chat.notices == []


def test_leaving_right_after_a_note_resumes_from_the_transcript(tiny_model: Path) -> None:
    with Chat.open(options_of(tiny_model), session="mine") as chat:
        list(talked(chat).say("four"))
    with Chat.open(options_of(tiny_model), session="mine") as chat:
        chat.compact()
    with Chat.open(options_of(tiny_model), session="mine") as chat:
        chat.begin()
        (notice,) = chat.notices
        assert notice.endswith(
            "a different system prompt or note: your next message reads the transcript again"
        )
        list(chat.say("go on"))
        assert NOTE_BEGINS in chat.conversation.model.tokenizer.decode(chat.conversation.held_ids)


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


def test_the_note_can_be_edited_and_removed(
    shown: ChatScreen, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert shown.conversation.note == "Ada is a cat."
    assert run("/compact off") == "removed the note\n"
    assert shown.conversation.note is None
    assert len(shown.conversation.forgotten) == 2


def test_exports_have_the_note_and_imports_restore_it(
    shown: ChatScreen, run: Run, tmp_path: Path
) -> None:
    shown.conversation.set_system("Be kind.")
    shown.conversation.set_note("Ada:\n> a cat")
    shown.chat.save()
    for name in ("a.jsonl", "a.md"):
        run(f"/{'save' if name.endswith('l') else 'export'} {tmp_path / name}")
        exported = tmp_path / f"exported-{name}"
        assert run_in_process("session", "export", "mine", str(exported)).returncode == 0
        assert exported.read_text() == (tmp_path / name).read_text()
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
