"""Slash commands in process: what they answer, what Tab suggests after them; and notes."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import partial
from io import StringIO
from pathlib import Path
from shutil import copytree
from unittest.mock import patch

import pytest

from mlxchat.app.chat import Chat
from mlxchat.chat.state import State, Turn
from mlxchat.errors import OutputError, UsageError
from mlxchat.request import ChatOptions, Setup
from mlxchat.request.commands import ChatShown
from mlxchat.sessions.session import Session
from mlxchat.settings import GenerationSettings
from mlxchat.terminal.chat_screen import ChatScreen
from mlxchat.terminal.commands import as_command, run_command, suggestions
from mlxchat.terminal.screen import Screen
from mlxchat.terminal.settable import as_in_chat
from mlxchat.terminal.worker import Worker
from tests.in_process import run_in_process
from tests.test_session_store import make_session

Run = Callable[[str], str]
MESSAGES = ("My cat is Ada.", "I am Bo.", "I am at sea.")


@pytest.fixture
def shown(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatScreen]:
    """A chat on a terminal without a cursor, which needs no line editor."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")
    setup = Setup(str(tiny_model), window=1600, keep=0, seed=7)
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
    """The newest find was put into the prompt unasked, and the next Enter sent it."""
    shown.conversation.add(
        Turn("My name is Ada.\nI live in Paris.", "Hello Ada!", forgotten=True),
        Turn("Who am I?", "You are called ADA.", thought="ada it was"),
    )
    assert run("/recall ada") == (
        "#1 turn 1, user (forgotten): My name is Ada.\n"
        "#2 turn 1, reply (forgotten): Hello Ada!\n"
        "#3 turn 2, thought: ada it was\n"
        "#4 turn 2, reply: You are called ADA.\n"
        "/recall ada #4 quotes the last one in your next message\n"
    )
    assert run("/recall Náme, ada #1") == "your next message will quote turn 1: My name is Ada.\n"
    for words in ("Rome\nagain", '"'):
        assert run(f"/recall {words}").endswith(f"no match for {words!r}\n")
    with pytest.raises(UsageError, match="no match #5: found 4 matches"):
        run("/recall ada #5")
    shown.say("Right?" + " séa" * 60)
    assert run("/recall sea").splitlines()[2].endswith(" s…")
    assert shown.conversation.turns[-1].user == "> My name is Ada.\n\nRight?" + " séa" * 60


def test_what_cannot_be_done_is_refused_and_names_what_can(run: Run) -> None:
    for line, message in {
        "/usr/lib is a directory": "unknown command /usr/lib: see /help, or send it as //usr/…",
        "/regen": "unknown command /regen: use /retry",
        "/comp": "unknown command /comp: did you mean /compact?",
        "/temp 0.5": "unknown command /temp: use /set temp",
        "/file off b.md": "b.md is not attached",
        "/set parameter num_predict 5": "unknown option 'parameter': use /set max-tokens",
        "/set --max-kv-size 9": "unknown option '--max-kv-size': start mlxchat with --max-kv-…",
        "/set tmp 1": "unknown option 'tmp': did you mean temp?",
        "/set temp -1": "temp must be at least 0, got -1.0: the nearest is 0",
        "/exit\nnow": "/exit takes no argument",
        "/recall": "usage: /recall WORDS …",
        "/compact edit": "no note yet: /compact writes one",
        "/load smollm2": "smollm2 is a model, not a session: use /model smollm2",
    }.items():
        with pytest.raises(UsageError) as caught:
            run(line)
        assert fnmatch(str(caught.value), message.replace("…", "*"))


def test_set_shows_changes_and_takes_all_options_of_tab(shown: ChatScreen, run: Run) -> None:
    assert run("/set seed 5") == "seed 5 (was 7)\n"
    shown.say("hi")
    shown.say("ho")
    end = min(shown.conversation.model.tokenizer.eos_ids)
    assert run(f"/set logit_bias {end}=999") == f"logit-bias {end}=999 (was none)\n"
    run("/forget 1")
    assert "nothing added: the reply stays" in run("/continue")
    assert run("/undo") + run("/undo")[:12] == 'undid /forget: its turns are back\nremoved "ho"'
    for _ in range(2):
        shown.conversation.set_note("Same.", [1])
    assert run("/undo").startswith("undid /compact")
    assert "lookup on ·\ntemp 0.8 · top-p 0.95" in run("/set")
    assert run("/set temperature=0.5") == "temp 0.5 (was 0.8)\n"
    run("/set max-tokens 5")
    run("/set template-arg a=1")
    for line, changed in {
        "temp default": "temp 0.8 (was 0.5)",
        "seed default": "seed random (was 5)",
        "max-tokens default": "max-tokens off (was 5)",
        "logit-bias off": f"logit-bias none (was {end}=999)",
        "template-arg off": "template-arg none (was a=1)",
    }.items():
        assert run(f"/set {line}") == f"{changed}\n"
    for name in suggestions(shown, "/set", ""):
        assert f": /set {name}" in run(f"/set {name}").replace("\n", " ")


def test_options_are_named_as_in_a_chat() -> None:
    said = "--schema needs --max-tokens: see `mlxchat --file`, --until"
    assert as_in_chat(said) == said.replace("--schema", "/schema").replace("--max", "max")


def test_several_lines_that_begin_with_no_command_are_a_message() -> None:
    """A comment in pasted code was an unknown command, or lost its first character."""
    for text in ("/* one */\nint a;", "/usr/bin is\na folder", "//help", "// a\nb", "/ is", "\n\n"):
        assert as_command(text) is None
    assert as_command("/edit one\ntwo") == "/edit one\ntwo"


def test_lists_fit_a_narrow_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    make_session("a-long-name", Turn("A long first message " * 5))
    monkeypatch.setenv("COLUMNS", "40")
    for line in ("/sessions", "/help"):
        assert 36 <= max(map(len, run(line).splitlines())) <= 40


def test_tab_suggests_arguments(shown: ChatScreen) -> None:
    for name in ("old", "2026-11-27-014509"):
        with Session.open(name, create=True) as session:
            session.record(None, [Turn("hello", "hi")], question=True)
    shown.conversation.add(Turn("one", forgotten=True), Turn("two"), Turn("three", pinned=True))
    for typed, suggested in {
        "/set TOP": ["top-p ", "top-k "],
        "/set temp ": ["temp default"],
        "/set lookup ": ["lookup on", "lookup off", "lookup default"],
        "/load ": ["old"],
        "/pin ": ["2"],
    }.items():
        assert list(suggestions(shown, *typed.split(" ", 1))) == suggested


def test_load_shows_the_last_message_and_which_turns_a_smaller_window_will_hold(
    shown: ChatScreen, run: Run
) -> None:
    shown.conversation.add(Turn("> Hi.\n\nHo?", documents=7))
    run("/undo")
    shown.attached["/a.md"] = "a.md", "It is."
    make_session("old", *[Turn("a" * 184 + "b\n" * 150, documents=184)] * 4)
    assert run("/load 'old'") == (
        "dropped what belonged to a message of the chat before\n"
        "-- old: 4 turns; the last one --\n"
        "> … " + "b\n  " * 100 + " … (300 characters)\n"
        "no reply: /retry asks again\n"
        "not all turns fit the window: your next message leaves at most turns 3 and 4\n"
    )
    assert [*shown.attached] == ["/a.md"]
    make_session("full", Turn("a" * 1_539, "b", finish_reason="length"))
    assert run("/load full").endswith(")\nthat reply was stopped: /continue continues it\n")
    assert "no room for earlier turns" in run(f"/system {'s' * 99}")
    assert run("/undo").startswith("undid /system")


def test_model_and_think_change_the_conversation_that_goes_on(
    shown: ChatScreen, run: Run, tiny_model: Path, tmp_path: Path
) -> None:
    shown.say("hello")
    before = shown.conversation.model
    run(f"/model {tiny_model}")
    assert shown.conversation.model is before
    run(f"/model {copytree(tiny_model, tmp_path / 'other')}")
    assert shown.conversation.model is not before
    assert run("/think off") == run("/think") == "thoughts: off\n"
    assert shown.conversation.rendering.variables["enable_thinking"] is False
    assert run("/think on") == "thoughts: on\n"
    assert "thinking" not in shown.conversation.rendering.variables
    run("/set template-arg enable_thinking=false")
    assert run("/think") == "thoughts: off\n"
    without = patch.object(type(shown.conversation.model.tokenizer), "thinks", False)
    with without, pytest.raises(UsageError, match="this model's replies have no thoughts"):
        run("/think on")
    assert [turn.user for turn in shown.conversation.turns] == ["hello"]


def test_the_rows_of_context_add_up_whatever_was_done_before(shown: ChatScreen, run: Run) -> None:
    shown.attached["notes"] = "notes", "some notes"
    changes = ("/system Be kind.", "/remember Rhyme.", "/pin 2", "/undo", "/forget 1", "/clear")
    for line in ("one", "two", "three", *changes, "four"):
        *rows, summary = run("/context").replace(",", "").splitlines()
        *used, free = (int(row.split()[0]) for row in rows)
        assert sum(used) == int(summary.split(" of ")[0]) == 1600 - free
        assert any("attached to your next" in row for row in rows) == bool(shown.attached)
        (run if line.startswith("/") else shown.say)(line)


def test_a_file_is_attached_once_and_names_neither_the_turn_nor_a_session(
    shown: ChatScreen, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.md").write_text("Ada.")
    (tmp_path / "z.md").symlink_to("a.md")
    listed = "(4 characters) 1 attachment: /file PATH adds one, /file off [PATH] drops them"
    for spelled in ("*.md", "./a.md", ".", f"{tmp_path}/./a.md"):
        assert " ".join(run(f"/file {spelled}").split()).endswith(f"a.md {listed}")
    for dropped in (" a.m?", "", " './a.md'", f" {tmp_path}", " *.md"):
        assert run(f"/file off{dropped}").startswith("0 attachments: /file PATH ")
        assert run("/file a.md").split() == ["a.md", *listed.split()]
    (tmp_path / "b.md").write_text("Bob.")
    run("/file b.md")
    assert run("/file off b.md").split() == ["a.md", *listed.split()]
    shown.say("Who\nis it?")
    assert shown.conversation.turns[-1].user == "# a.md\n\nAda.\n\nWho\nis it?"
    assert "  1: Who is it?\n" in run("/context")
    shown.retry()
    run("/undo")
    assert run("/file").split() == ["a.md", *listed.split()]
    # Of an earlier process.
    shown.conversation.add(Turn("# a.md\n\nAda.\n\nWhere?", documents=14))
    run("/undo")
    assert run("/file").startswith('attachments of "Where?" (12 characters)\n1 attachment')
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("Ada.")
    (tmp_path / "docs/link.md").symlink_to("../b.md")
    assert "4 attachments" in (run("/file docs") and run("/file a.md"))
    assert "\n3 attachments: /file" in run("/file off a.md")
    assert "\n2 attachments: /file" in run('/file off attachments of "Where?"')
    assert run("/file off ./docs/").startswith("0 attachments: /file PATH ")


def test_what_was_sent_with_a_message_returns_with_it_alone(shown: ChatScreen, run: Run) -> None:
    shown.conversation.add(Turn("/one"))
    shown.attached["b"] = "b.md", "Bob."
    shown.say("two")
    shown.attached["c"] = "c.md", "Cleo."
    run("/undo")
    assert [*shown.attached] == ["b", "c"]
    assert run_command(shown, "/undo") == "//one"
    for said, typed in (("/clear it\nall", " /clear it\nall"), ("/", "//")):
        shown.conversation.add(Turn(said))
        assert run_command(shown, "/undo") == typed
    assert [*shown.attached] == ["c"]


def test_ctrl_c_before_the_worker_begins_is_for_the_message(shown: ChatScreen) -> None:
    shown.worker.start(partial(time.sleep, 0.2))
    signal.raise_signal(signal.SIGINT)
    assert not shown.say("hello")
    assert shown.conversation.turns == ()


def test_undo_says_that_the_note_may_speak_of_the_turn(shown: ChatScreen, run: Run) -> None:
    shown.conversation.resume(State(note="Cats.", turns=(Turn("a", forgotten=True), Turn("b"))))
    assert ["the note" in run("/undo") for _ in range(2)] == [False, True]


def test_a_single_question_is_a_chat_once_more_is_said(shown: ChatScreen, run: Run) -> None:
    run("/save 2026-01-01-000000")
    shown.chat.mark_question(is_one=True)
    assert (session := shown.chat.session) is not None
    assert session.is_question
    shown.say("hi")
    assert not session.is_question


def test_an_empty_reply_is_reported(
    shown: ChatScreen, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shown.conversation.model.tokenizer, "eos_ids", frozenset(range(1000)))
    shown.say("hello")
    assert capsys.readouterr().out.endswith("the reply is empty: /retry asks again\n")


def test_schema_constrains_the_next_answer_only(shown: ChatScreen, run: Run) -> None:
    run("/set think-budget 0")
    assert run('/schema {"enum": [7]}') == "your next message gets an answer in JSON\n"
    shown.say("how many?")
    assert run("/undo").endswith("send it again with the schema\n")
    shown.say("how many?")
    shown.retry()
    with pytest.raises(UsageError, match="an answer in JSON is not continued: /retry"):
        run("/continue")
    notice = "stopped: the reply repeats itself"
    shown.screen, shown.chat.notices[:] = Screen(answer := StringIO()), [notice]
    shown.say_notices()
    assert answer.getvalue() == f"{notice}: /retry answers again\n"
    shown.say("again")
    assert [turn.reply == "7" for turn in shown.conversation.turns] == [True, False]
    run('/schema {"enum": [7]}')
    assert run("/undo").endswith("send it again with the schema\n")
    assert "ordinary answer" in run("/schema off")
    with pytest.raises(UsageError, match="strin"):
        run('/schema {"type": "strin"}')
    assert run("/schema") == "your next message gets an ordinary answer\n"


def test_what_is_remembered_is_listed_removed_taken_back_and_offered(
    shown: ChatScreen, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second /undo after two lines removed the last turn."""
    assert run("/remember") == "remembered 0 lines (0 of 200 tokens): /remember TEXT adds one\n"
    for message in ("Always rhyme.", "My name is Ada.", f"Never {'y' * 300}."):
        shown.say(message)
    assert run("/remember 1").startswith("1: Always rhyme.\nremembered 1 line (")
    assert run("/remember Be \x1b[1mkind.").splitlines()[1] == "2: Be ␛[1mkind."
    for wrong, words in (
        *(("9", "no turn 9"), ("-1", "no turn -1")),
        ("off 3", "no line 3: /remember lists them"),
        *((off, "usage: /remember off N") for off in ("off", "off x", "off 1 2", "off -1")),
        ("Always rhyme.", "remembered already"),
        ("y" * 300, r"it has 303 tokens, and \d+ of 200 are free: remove a line .*, or use a"),
    ):
        with pytest.raises(UsageError, match=words):
            run(f"/remember {wrong}")
    for undone in range(2):
        assert run("/undo").startswith(f"undid /remember: {1 - undone} line")
        assert len(shown.conversation.state.remembered) == 1 - undone
    run("/remember off the record")
    run("/remember 1")
    assert run("/forget \uff13") == "turns 1 to 3 leave the window with your next message\n"
    run("/system Be kind.")
    with pytest.raises(UsageError, match="usage: /forget N"):
        run(f"/forget {'9' * 5_000}")
    monkeypatch.setattr(shown, "screen", Screen(answer := StringIO()))
    shown.conversation.recalls = 1
    shown.say("What is my name?")
    recalled = '-- recalled turn 2 "My name is Ada." (*) --'
    changes = f"-- forgot turns 1 to 3 (*) · /remember 2 keeps *{recalled}*"
    assert fnmatch(answer.getvalue(), changes)
    assert run("/clear") == "-- new conversation, with 2 remembered lines --\n"
    assert run("/undo") == "undid /clear: the chat is as before\n"
    assert shown.conversation.state.last is not None
    run("/clear")
    shown.conversation.set_note("Ada is a cat.")
    for line in ("/clear", "/compact off"):
        run(line)
        assert run("/undo") == "the note is back\n"


def test_the_note_can_be_edited_and_removed(
    shown: ChatScreen, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for message in MESSAGES:
        shown.say(message)
    run("/compact")
    script = tmp_path / "editor.py"
    monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")

    def edit(text: str) -> str:
        script.write_text(f"import pathlib, sys\npathlib.Path(sys.argv[1]).write_text({text!r})")
        return run("/compact edit")

    assert edit("Ada is a cat.") == "note: Ada is a cat.\n"
    assert edit("Ada is a cat. \n\n") == "the note is unchanged\n"
    with pytest.raises(UsageError, match="the note is empty"):
        edit("")
    assert run("/compact off") == "removed the note\n"
    assert shown.conversation.state.note is None


def test_an_export_is_what_session_show_prints(shown: ChatScreen, run: Run, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="empty"):
        run(f"/export {tmp_path}/a.md")
    shown.say("I am Bo.")
    shown.conversation.set_note("Ada:\n> a cat")
    run("/remember Be kind.")
    with pytest.raises(OutputError, match="No such file or directory"):
        run(f"/export {tmp_path}/no\0ne/a.md")
    for name, form in (("a.jsonl", ["--json"]), ("a.md", [])):
        run(f"/export {tmp_path / name}")
        written = run_in_process("session", "show", "mine", *form).stdout
        assert written == (tmp_path / name).read_text()
    assert written.startswith("Always keep in mind:\n\n- Be kind.\n\n<details><summary>Note on")
