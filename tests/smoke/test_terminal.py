"""A chat in a real terminal: the kernel's settings, its signal keys and the shell's job control."""

import re
import signal
import sys
import termios
import time
from pathlib import Path

import pytest

from scripts.tiny_model import CHAT_TEMPLATE
from tests.scripted_model import Scripted
from tests.smoke.pseudo_terminal import PseudoTerminal
from tests.terminal import CTRL_C, CTRL_D, CTRL_G, CTRL_U, PROMPT

pytestmark = pytest.mark.usefixtures("ordinary_terminal")

CTRL_Z = "\x1a"
WORDS = " ".join(f"w{number}" for number in range(600))
PROGRAM = [sys.executable, "-m", "tests.scripted_program", "-m"]


@pytest.fixture
def scripted(tmp_path: Path) -> str:
    """A model that says many words."""
    return str(Scripted(CHAT_TEMPLATE, (), f"{WORDS}<|im_end|>").write(tmp_path / "model"))


def started(model: str, *options: str) -> PseudoTerminal:
    """A chat that waits at its first prompt."""
    chat = PseudoTerminal([*PROGRAM, model, *options], columns=90, lines=40)
    chat.shows(PROMPT)
    return chat


def test_keys_typed_while_it_is_busy_are_neither_lost_nor_echoed(scripted: str) -> None:
    """On a slow line, the terminal's cursor report for one prompt arrived after it, and the answer
    began with `^[[3;1R`. Ctrl-C in a reply discarded what had been typed."""
    chat = started(scripted, "--no-save")
    # Without a shell there is nothing to suspend it.
    chat.send("hel" + CTRL_Z, shows="^> hel$")
    chat.send("lo\r", shows="^> hello\nw0 [^$]*w20 ")
    chat.send("\x1b[3;1Rahead" + CTRL_C, shows="^stopped\n> ahead$")
    assert chat.written.count("ahead") == 1
    assert "^[[" not in chat.written
    chat.send(CTRL_U + CTRL_D)
    assert chat.ends() == 0


def test_a_dumb_terminal_gets_no_sequences(scripted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    chat = started(scripted, "-n", "5")
    chat.send("   \r", shows="^>\n>$")
    chat.send('"""one\r')
    chat.waits_after("  ")
    chat.send('two"""\r', shows='^> """one\n  two"""\nw0[^$]*stopped at 5 tokens[^$]*\n>$')
    chat.send("/set max-tokens 100000\r", shows="^> /set max-tokens 100000\n[^$]*\n>$")
    chat.send("/retry\r", shows="^> /retry\nw0 .*w20 ")
    chat.send(CTRL_C, shows="^stopped\n>$")
    chat.send("/undo\r", shows="^one\ntwo\n\\(Enter sends this, another message replaces it\\)\n>$")
    chat.send("/file\r", shows="^0 attachments: [^>]*\none\ntwo\n\\(Enter sends [^>]*\n>$")
    chat.send(CTRL_C, shows="^Ctrl-C again or Ctrl-D to leave\n>$")
    chat.send(CTRL_C)
    assert chat.ends() == 0
    assert "\x1b" not in chat.written


def test_the_users_editor_has_the_terminal_to_itself(
    scripted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the editor cleared its text on a busy machine; and afterwards it still works."""
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\ntrap "" INT; echo "up $(cat "$1")"; read x; echo "$x" > "$1"\n')
    editor.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(editor))
    chat = started(scripted, "--no-save")
    chat.send(f"one{CTRL_G}", shows="^up one$")
    chat.child.kill(signal.SIGSTOP)
    chat.send(CTRL_C, shows=r"\^C$")
    # The terminal edits lines again.
    chat.send("two and\x7f\x7f\x7fthree\r", shows=r"\^Ctwo three$")
    chat.child.kill(signal.SIGCONT)
    chat.shows("^> two three$")
    chat.send("\r", shows="w20 ")
    chat.send(CTRL_C, shows="^stopped\n>$")
    chat.send(CTRL_D)
    assert chat.ends() == 0


def shell(directory: Path, *options: str) -> PseudoTerminal:
    """A shell with job control, which has started a chat."""
    terminal = PseudoTerminal(["bash", "--norc", "-i"], columns=250, lines=40)
    terminal.send(f"PS1='$ '; cd {directory}; stty -a >before\r")
    terminal.send(f"{' '.join([*PROGRAM, 'model', '--no-save', *options])}\r", shows=PROMPT)
    return terminal


def test_ctrl_z_at_the_prompt_suspends_the_chat(scripted: str, tmp_path: Path) -> None:
    """It became a part of the message."""
    terminal = shell(tmp_path, "-n", "3")
    for typed in ("half", " typed"):
        terminal.send(typed + CTRL_Z)
        terminal.waits_after("$ ")
        terminal.send("stty -a | cmp - before && echo same\r", shows="^same$")
        terminal.send("clear; fg\r", shows=f"^> half{typed.removeprefix('half')}$")
    terminal.send("\r", shows="^stopped at 3 tokens")
    terminal.shows(PROMPT)
    terminal.send(CTRL_D)
    terminal.waits_after("$ ")
    terminal.send("echo $?\r", shows="^0$")


def test_after_ctrl_z_in_a_reply_keys_are_not_echoed_into_it(scripted: str, tmp_path: Path) -> None:
    """The shell had switched the echo on: lines below were erased, and text was written twice."""
    terminal = shell(tmp_path)
    terminal.send("hello\r", shows="w20 ")
    terminal.send("touch run\r" + CTRL_Z)
    terminal.waits_after("$ ")
    assert not (tmp_path / "run").exists()
    assert "w599" not in terminal.text()
    terminal.send("fg\r", shows=r"^\$ fg\n.*scripted_program.*\n.*w")
    while termios.tcgetattr(terminal.child.child_fd)[3] & termios.ECHO:
        time.sleep(0.01)
    terminal.send("ahead", shows="^> ahead$")
    text = terminal.text()
    reply = re.sub(r"\n.*(Stopped|scripted_program|no-save|\$ fg).*", "", text)
    assert re.sub(r"\s", "", WORDS) in re.sub(r"\s", "", reply)
    assert text.count("ahead") == 1


def test_a_run_in_the_background_draws_nothing(tiny_model: Path, tmp_path: Path) -> None:
    terminal = PseudoTerminal(["bash", "--norc", "-i"], columns=250, lines=40)
    run = f"{sys.executable} -m mlxchat generate --ignore-eos -m {tiny_model} -o {tmp_path}/out hi"
    terminal.send(f"PS1='$ '; {run}\r", shows="writing [1-9]")
    terminal.send(CTRL_Z, shows=r"^\$$")
    before = terminal.written.count("writing ")
    terminal.send("bg; sleep 1; kill %1; wait; echo en''ded\r", shows="^ended$")
    assert terminal.written.count("writing ") <= before + 1  # half drawn when it was stopped
