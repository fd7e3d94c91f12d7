"""The chat's input: the line editor, plain input, and typing during a reply."""

import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from mlxchat.errors import InputError
from mlxchat.terminal.editor import LEAVING_HINT, Editor, EndOfInput, edit
from tests.pseudo_terminal import PseudoTerminal

CTRL_C, CTRL_D, CTRL_R = "\x03", "\x04", "\x12"
ALT_ENTER, UP, LEFT = "\x1b\r", "\x1b[A", "\x1b[D"
PROMPT, HINTED = "^>$", f"^> {LEAVING_HINT}$"

DRIVER = """
import itertools, os, sys
from pathlib import Path
from mlxchat.terminal.editor import Editor, EndOfInput, PlainInput

def editor():
    redraws = itertools.count(1)
    return Editor(
        history_file=Path("history"),
        commands={"/help": "what there is", "/hello": "greets", "/file PATH": "adds a file"},
        toolbar=lambda: f"redraw {next(redraws)}\\x1b[5m",
        suggest=lambda command, typed: ["two words"] if (command, typed) == ("/hello", "t") else [],
    )

def chat(lines, once=False):
    try:
        while True:
            print("got", ascii(lines.read()), flush=True)
            if once:
                raise EndOfInput
    except EndOfInput:
        print("the end", flush=True)
"""


@pytest.fixture(autouse=True)
def ordinary_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def keys() -> Iterator[PipeInput]:
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        yield pipe


def make_editor(history_file: Path) -> Editor:
    return Editor(history_file=history_file, commands={}, toolbar=lambda: "")


class Terminal(PseudoTerminal):
    """A chat that replies with its input."""

    def __init__(self, directory: Path, body: str) -> None:
        super().__init__([sys.executable, "-c", DRIVER + body], cwd=directory)

    def ends(self) -> int | None:
        self.shows("^the end$")
        return super().ends()


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("hello\r", "hello"),
        ("\r \r\rhello\r", " hello"),
        (f"one{ALT_ENTER}two\r", "one\ntwo"),
        ('"""one\rtwo"""\r', "one\ntwo"),
        ('"""\rone\r\rtwo\r"""\r', "one\n\ntwo"),
        ('""""""\r\x15x\r', "x"),
        ("\x1b[200~one\r\ntwo\rthree\n\x1b[201~\r", "one\ntwo\nthree"),
        ("\x1b[200~\x1b[31mred\x1b]0;title\x07\x1b[201~\r", "\x1b[31mred\x1b]0;title\x07"),
        (f"clear me{CTRL_C}kept\r", "kept"),
        (f"cd{LEFT}{LEFT}ab\r", "abcd"),
        (f"ab{LEFT}{CTRL_D}\r", "a"),
        (f"{CTRL_C}x\x7f{CTRL_C}again\r", "again"),
        (f"{CTRL_C}{LEFT}{CTRL_C}again\r", "again"),
        (f"text{CTRL_C}{CTRL_C}again\r", "again"),
        ("\x0fhello\x0f", "hello"),
        ("größe 😀\r", "größe 😀"),
    ],
)
def test_the_keys_typed_give_one_message(
    keys: PipeInput, tmp_path: Path, typed: str, message: str
) -> None:
    keys.send_text(typed)
    assert make_editor(tmp_path / "history").read() == message


@pytest.mark.parametrize("typed", [CTRL_D, CTRL_C + CTRL_C, f"text{CTRL_C}{CTRL_C}{CTRL_C}"])
def test_keys_that_leave_the_chat(keys: PipeInput, tmp_path: Path, typed: str) -> None:
    keys.send_text(typed)
    with pytest.raises(EndOfInput):
        make_editor(tmp_path / "history").read()


def test_invalid_bytes_do_not_reach_the_tokenizer(keys: PipeInput, tmp_path: Path) -> None:
    keys.send_bytes(b"a\xffb\r")
    assert make_editor(tmp_path / "history").read() == "a?b"


def test_a_message_of_several_lines_survives_in_a_private_history(
    keys: PipeInput, tmp_path: Path
) -> None:
    history = tmp_path / "new" / "directory" / "history"
    keys.send_text(f"one{ALT_ENTER}two\r")
    make_editor(history).read()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    for directory in history.parents[:2]:
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    keys.send_text(f"{CTRL_R}tw\r\r")
    assert make_editor(history).read() == "one\ntwo"


def test_ctrl_c_at_an_empty_prompt_says_how_to_leave(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "chat(editor())")
    terminal.shows(PROMPT)
    terminal.send(CTRL_C)
    terminal.shows(HINTED)
    terminal.send(LEFT)
    terminal.shows(PROMPT)
    terminal.send(CTRL_C)
    terminal.shows(HINTED)
    terminal.send(CTRL_C)
    terminal.ends()
    assert "Traceback" not in terminal.text()


def test_tab_completes_file_names_and_other_arguments_of_commands(
    tmp_path: Path, temporary_home: Path
) -> None:
    (temporary_home / "a_long_name.txt").write_text("")
    terminal = Terminal(tmp_path, "chat(editor())")
    terminal.shows(PROMPT)
    terminal.send("/file ~/a_l")
    terminal.shows("^> /file ~/a_l$")
    terminal.send("\t")
    terminal.shows(r"^> /file ~/a_long_name\.txt$")
    terminal.send("\r")
    terminal.shows(r"^got '/file ~/a_long_name\.txt'$")
    terminal.shows(PROMPT)
    terminal.send("/hello t")
    terminal.shows("^> /hello t$")
    terminal.send("\t")
    terminal.shows("^> /hello two words$")


def test_the_message_stays_on_the_screen_and_the_toolbar_does_not(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "chat(editor(), once=True)")
    terminal.shows("redraw")
    terminal.send("hello\r")
    terminal.ends()
    assert terminal.text().rstrip() == "> hello\ngot 'hello'\nthe end"


@pytest.mark.parametrize(
    ("editor", "complaint"),
    [
        ("false -x", "false -x exited with status 1: nothing was changed; set $VISUAL or $EDITOR"),
        ("no-such", "no-such exited with status 127: nothing was changed; set $VISUAL or $EDITOR"),
        ("vi '", "vi ' exited with status 2: nothing was changed; set $VISUAL or $EDITOR"),
        ("rm", "rm saved a file that is not UTF-8 text"),
        ("cp /bin/sh", "cp /bin/sh saved a file that is not UTF-8 text"),
    ],
)
def test_an_unusable_editor_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, editor: str, complaint: str
) -> None:
    monkeypatch.setenv("EDITOR", editor)
    with pytest.raises(InputError) as refused:
        edit("text")
    assert str(refused.value) == complaint


PLAIN = """
from mlxchat.terminal.worker import Worker

with Worker() as worker:
    chat(PlainInput(worker))
    os._exit(0)
"""


def test_a_dumb_terminal_gets_a_prompt_and_no_escape_sequences(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, PLAIN)
    terminal.shows(PROMPT)
    terminal.send("   \r")
    terminal.shows("^>\n>$")
    terminal.send('"""one\r')
    terminal.shows('^> """one\n$')
    terminal.waits_after("  ")
    terminal.send('two"""\r')
    terminal.shows(r'^  two"""\ngot .one\\ntwo.\n>$')
    terminal.send(CTRL_C)
    terminal.shows(f"^{LEAVING_HINT}\n>$")
    terminal.send("again\r")
    terminal.shows("^got 'again'\n>$")
    terminal.send(CTRL_C)
    terminal.shows(f"got 'again'\n.*\n{LEAVING_HINT}\n>$")
    terminal.send(CTRL_C)
    terminal.ends()
    assert "\x1b" not in terminal.written


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_termination_signal_leaves_the_prompt_in_any_state(number: int, tmp_path: Path) -> None:
    """A SIGHUP while the prompt was drawn was lost, and the user was asked to press Enter."""
    body = f"""
from mlxchat.terminal import Terminated
from mlxchat.terminal.editor import Editor
from mlxchat.terminal.worker import Worker

from mlxchat.terminal.worker import ending_by

sent = lambda: os.kill(os.getpid(), {number:d})
how = dict(history_file=None, commands={{}}, toolbar=lambda: sent() or "")
came = lambda: (number := worker.next_signal()) and ending_by(number)
try:
    with Worker() as worker:
        Editor(**how, ended_by=came).read()
except Terminated as terminated:
    print("ended with", int(terminated.status), flush=True)
"""
    Terminal(tmp_path, body).shows(f"^ended with {128 + number}$")


def test_an_ignored_signal_does_not_disturb_the_prompt(tmp_path: Path) -> None:
    """As under `nohup`."""
    body = """
import signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
lines = editor()
lines._session.bottom_toolbar = lambda: os.kill(os.getpid(), signal.SIGHUP) or ""
chat(lines)
"""
    terminal = Terminal(tmp_path, body)
    terminal.shows(PROMPT)
    terminal.send("still here\r")
    terminal.shows("^got 'still here'$")
