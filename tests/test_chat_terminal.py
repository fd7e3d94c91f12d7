"""The chat as a user sees it: a real pseudo-terminal, a real model, every key."""

import re
import shutil
import signal
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from mlxchat.terminal.commands import as_command, run_command
from mlxchat.terminal.editor import EndOfInput
from scripts.tiny_model import CHAT_TEMPLATE
from tests.pseudo_terminal import PseudoTerminal
from tests.scripted_model import Scripted
from tests.terminal_chat import COLOUR, CTRL_C, CTRL_D, CTRL_G, PROMPT, Chat

pytestmark = pytest.mark.usefixtures("ordinary_terminal")


def tiny(model: Path, *arguments: str) -> Chat:
    return Chat(str(model), "-n", "8", *arguments)


@pytest.mark.model
def test_a_real_conversation(embedded_model: Path) -> None:
    chat = Chat(
        *[str(embedded_model), "--max-kv-size", "180", "-n", "12", "--stats"],
        *["-s", "You are a helpful assistant."],
    )
    chat.says("The capital of France is")
    chat.shows("Paris")
    chat.shows("^turn 1 ")
    # Ctrl-C in the middle of a reply keeps the text so far, and what was typed.
    chat.says("/set max-tokens 500")
    chat.send("Write a very long story about a whale.\r")
    chat.shows("story about a whale[^$]*\n.*[a-z]{3,} [a-z]+")
    chat.send("typed meanwhile" + CTRL_C)
    chat.shows("^stopped$")
    chat.shows_draft("typed meanwhile")
    chat.drops_draft()
    chat.says("/set max-tokens 12")
    chat.says("/retry")
    chat.shows("^> /retry[^$]*stopped at 12 tokens")
    chat.resize(60, 30)
    # The window overflows, and a rule shows the forgotten turns.
    chat.says("Tell me about bread, please, in a few words.")
    chat.says("Tell me about rope, please, in a few words.")
    chat.shows_rule(r'forgot turn 1 "The capital of France is" \(\d+ tokens\)')
    chat.says("/context")
    chat.shows("^ *[0-9]+  █+ +system prompt and template$")
    chat.says("/recall France")
    chat.shows(r"^#1 turn 1 \(forgotten\): The capital of France is$")
    chat.says("/recall France #1")
    chat.shows("^your next message will quote turn 1: The capital of France")
    chat.says("/stats")
    chat.shows("^> /stats\nturn 4 ")
    chat.send(CTRL_D)
    assert chat.ends() == 0
    assert COLOUR.search(chat.written)


CODE = "Of course:\n\n```python\ndef add(a, b):\n    return a + b\n```\n"


@pytest.mark.parametrize(
    ("options", "shown"),
    [((), r"^ *def add\(a, b\):$"), (("--plain",), r"^```python\ndef add\(a, b\):$")],
    ids=["rendered", "plain"],
)
def test_markdown_is_rendered_and_plain_output_is_unchanged(
    options: tuple[str, ...], shown: str, tmp_path: Path
) -> None:
    model = Scripted(CHAT_TEMPLATE, (), f"{CODE}<|im_end|>").write(tmp_path / "model")
    chat = Chat(str(model), *options, program="tests.scripted_program")
    chat.says("How do I add two numbers?")
    chat.shows("^Of course:$")
    chat.shows(shown)
    assert ("```" in chat.text()) == bool(options)
    chat.send(CTRL_D)
    assert chat.ends() == 0


def test_a_chat_starts_with_files_and_accepts_the_usual_words(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`exit` and `/bye` were sent to the model, or answered with an error."""
    (tmp_path / "a.md").write_text("Ada.")
    monkeypatch.chdir(tmp_path)
    chat = tiny(tiny_model, "-f", "a.md", "--no-save")
    chat.shows(r"^attached a\.md \(12 characters\)$")
    chat.says("/?")
    chat.shows("^/help +")
    chat.says("Who?")
    chat.send("/undo\r")
    chat.shows("^> # a\\.md\\s+Ada\\.\\s+Who\\?$")
    chat.send("/undo\r")
    chat.shows("^no messages yet$")
    chat.says("/reset")
    chat.shows_rule("new conversation")
    chat.send("exit\r")
    assert chat.ends() == 0


@pytest.mark.parametrize("line", ["/exit", "/bye", "/quit", "exit", "quit", " Quit "])
def test_every_usual_word_ends_the_chat(line: str) -> None:
    command = as_command(line)
    assert command is not None
    shown: Any = None
    with pytest.raises(EndOfInput):
        run_command(shown, command)


def test_what_is_typed_while_loading_and_replying_is_not_lost(tiny_model: Path) -> None:
    chat = tiny(tiny_model)
    chat.send("first\rsecond")
    chat.shows("^> second$")
    chat.send(" half\r")
    chat.shows(r"· 2 turns")
    chat.send(CTRL_D)
    assert chat.ends() == 0


def test_a_model_that_cannot_be_loaded_ends_it_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    chat = PseudoTerminal([sys.executable, "-m", "mlxchat", "-m", str(tmp_path)])
    chat.shows("^mlxchat: error: ")
    assert chat.ends() == 1


def test_a_window_too_small_for_the_template_ends_it_at_once(
    tiny_model: Path, tmp_path: Path
) -> None:
    """It was reported after every message, once the whole model had been loaded again."""
    model = shutil.copytree(tiny_model, tmp_path / "model")
    (model / "model.safetensors").unlink()
    chat = PseudoTerminal(
        [sys.executable, "-m", "mlxchat", "-m", str(model), "--max-kv-size", "16"]
    )
    chat.shows("^mlxchat: error: --max-kv-size 16 is too small for")
    assert chat.ends() == 2
    assert ">" not in chat.text()


LOADING_SLOWLY = """
import pathlib, sys, time
from mlxchat.app import opening
from mlxchat.cli import main

def load_when_allowed(*args, **kwargs):
    while not may_load.exists():
        time.sleep(0.01)
    return load(*args, **kwargs)

may_load = pathlib.Path(sys.argv.pop(1))
load, opening.load_model = opening.load_model, load_when_allowed
main()
"""


def test_keys_and_late_reports_during_a_command_are_not_echoed(
    tiny_model: Path, tmp_path: Path
) -> None:
    """On a slow line, the terminal's cursor report for one prompt arrived after it, and the answer
    began with `^[[3;1R`."""
    may_load = tmp_path / "may_load"
    command = [sys.executable, "-c", LOADING_SLOWLY, str(may_load), "-m", str(tiny_model)]
    chat = PseudoTerminal(command)
    chat.shows(PROMPT)
    chat.send("/undo\r")
    chat.shows("loading")
    chat.send("\x1b[3;1Rahead")
    may_load.touch()
    chat.shows("^no messages yet$")
    chat.shows("^> ahead$")
    assert "^[[" not in chat.written
    assert chat.written.count("ahead") == 1
    chat.send(CTRL_C + CTRL_D)
    assert chat.ends() == 0


def test_an_editor_started_by_a_command_gets_the_original_terminal_modes(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "what else?"; read line; echo "$line" >> "$1"\n')
    editor.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(editor))
    chat = tiny(tiny_model)
    chat.send("/edit one\r")
    chat.shows(r"^what else\?$")
    chat.send("two and\x7f\x7f\x7fthree\r")
    chat.shows("^two three$")
    chat.shows_draft("onetwo three")
    chat.drops_draft()
    chat.send(CTRL_D)
    assert chat.ends() == 0


def editor_script(directory: Path, commands: str) -> str:
    """An editor whose name contains a space, so that $VISUAL has to quote it."""
    script = directory / "my editor"
    script.write_text(f"#!/bin/sh\n{commands}\n")
    script.chmod(0o755)
    return f"'{script}' --wait"


def test_ctrl_g_opens_the_editor_and_the_text_stays_editable(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = editor_script(tmp_path, 'case "$2" in *.md) echo " added" >> "$2";; esac')
    monkeypatch.setenv("VISUAL", script)
    chat = tiny(tiny_model)
    chat.send(f"draft{CTRL_G}")
    chat.shows_draft("draft added")
    chat.send("!\r")
    chat.shows("^> draft added!\n[^$]*stopped at 8 tokens")


def test_ctrl_c_in_the_editor_goes_to_the_editor(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = editor_script(tmp_path, 'trap "" INT; echo up; read x; printf %s "$x" > "$2"')
    monkeypatch.setenv("EDITOR", script)
    chat = tiny(tiny_model)
    chat.send(CTRL_G)
    chat.shows("^up$")
    chat.send(CTRL_C)
    chat.shows(r"\^C")
    chat.send(CTRL_C)
    chat.shows(r"\^C\^C")
    chat.send("fine\r")
    chat.shows_draft("fine")


def test_ctrl_c_in_the_editor_does_not_clear_its_text_on_a_busy_machine(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = editor_script(
        tmp_path, 'trap "" INT; echo "up $(cat "$2")"; read x; printf %s "$x" > "$2"'
    )
    monkeypatch.setenv("EDITOR", script)
    chat = tiny(tiny_model)
    for turn in range(5):
        chat.send(f"{turn}{CTRL_G}")
        chat.shows(f"^up {turn}$")
        chat.child.kill(signal.SIGSTOP)
        chat.send(CTRL_C)
        chat.shows(r"\^C$")
        chat.send(f"new {turn}\r")
        chat.shows(rf"\^Cnew {turn}$")
        chat.child.kill(signal.SIGCONT)
        chat.shows_draft(f"new {turn}")
        chat.drops_draft()


def test_an_editor_that_fails_keeps_the_text(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISUAL", "false")
    chat = tiny(tiny_model)
    chat.send(f"draft{CTRL_G}")
    chat.shows("^false exited with status 1: nothing was changed")
    chat.shows_draft("draft")


INTERRUPTED = """
import os, signal
from mlxchat.cli import main
from mlxchat.terminal.editor import Editor

def read_interrupted(editor, draft=""):
    Editor.read = read
    os.kill(os.getpid(), signal.SIGINT)
    return read(editor, draft)

read, Editor.read = Editor.read, read_interrupted
main()
"""


def test_ctrl_c_just_before_the_prompt_does_not_end_the_chat(tiny_model: Path) -> None:
    """Ctrl-C just after the end of a reply ended the whole chat."""
    chat = PseudoTerminal([sys.executable, "-c", INTERRUPTED, "-m", str(tiny_model), "-n", "1"])
    chat.shows(PROMPT)
    chat.send("hello\r")
    chat.shows(r"· 1 turn\b")
    chat.send(CTRL_D)
    assert chat.ends() == 0


@pytest.mark.parametrize("variable", [("TERM", "dumb"), ("NO_COLOR", "1")], ids=["dumb", "plain"])
def test_a_dumb_terminal_can_stop_retry_undo_and_forget(
    variable: tuple[str, str], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(*variable)
    chat = Chat(str(tiny_model), "-n", "5", "--max-kv-size", "170")
    for text in ("first " + "x" * 60, "second " + "y" * 60):
        chat.send(f"{text}\r")
        chat.shows(f"^> {text}\n[^$]*stopped at 5 tokens[^$]*\n>$")
    chat.shows("forgot turn 1 ")
    chat.says("/context")
    chat.says("/set max-tokens 100000")
    chat.says("/set top-k 1")
    chat.send("/continue\r")
    chat.shows("^> /continue\n.")
    chat.send(CTRL_C)
    chat.shows("^(stopped|turn)[^$]*\n>$")
    chat.says("/set max-tokens 5")
    chat.send("/retry\r")
    chat.shows("^> /retry[^$]*stopped at 5 tokens[^$]*\n>$")
    chat.send("/undo\r")
    chat.shows("^removed")
    chat.shows_draft("second " + "y" * 60)
    chat.drops_draft()
    chat.send(CTRL_D)
    assert chat.ends() == 0
    assert "Traceback" not in chat.written
    assert not COLOUR.search(chat.written)
    assert ("\x1b" not in chat.written) == (variable[0] == "TERM")


def shell(tmp_path: Path, *chat: str) -> PseudoTerminal:
    """A shell with job control, which has started a chat."""
    terminal = PseudoTerminal(["bash", "--norc", "-i"], columns=250, lines=40)
    terminal.send(f"PS1='$ '; cd {tmp_path}; stty -a >before\r")
    terminal.send(f"{sys.executable} -m {' '.join(chat)} --temp 0 --no-save\r")
    terminal.shows(PROMPT)
    return terminal


def test_ctrl_z_at_the_prompt_suspends_the_chat(tiny_model: Path, tmp_path: Path) -> None:
    """It became a part of the message."""
    terminal = shell(tmp_path, "mlxchat", "-m", str(tiny_model), "-n", "3")
    for typed in ("half", " typed"):
        terminal.send(typed + "\x1a")
        terminal.waits_after("$ ")
        terminal.send("stty -a | cmp - before && echo same\r")
        terminal.shows("^same$")
        terminal.send("clear; fg\r")
        terminal.shows(f"^> half{typed.removeprefix('half')}$")
    terminal.send("\r")
    terminal.shows("^stopped at 3 tokens")
    terminal.shows(PROMPT)
    terminal.send(CTRL_D)
    terminal.waits_after("$ ")
    terminal.send("echo $?\r")
    terminal.shows("^0$")


def test_after_ctrl_z_in_a_reply_keys_are_not_echoed_into_it(tmp_path: Path) -> None:
    """The shell had switched the echo on. The lines below the reply were erased, and a part of it
    was written twice."""
    words = " ".join(f"w{number}" for number in range(300))
    Scripted(CHAT_TEMPLATE, (), f"{words}<|im_end|>").write(tmp_path / "model")
    terminal = shell(tmp_path, "tests.scripted_program", "-m", "model")
    terminal.send("hello\r")
    terminal.shows("w20 ")
    terminal.send("\x1a")
    terminal.waits_after("$ ")
    assert "w299" not in terminal.text()
    terminal.send("fg\r")
    terminal.shows("scripted_program[^$]*w")
    assert not termios.tcgetattr(terminal.child.child_fd)[3] & termios.ECHO
    terminal.send("ahead")
    terminal.shows("^> ahead$")
    text = terminal.text()
    reply = re.sub(r"\n.*(Stopped|scripted_program|no-save|\$ fg).*", "", text)
    assert re.sub(r"\s", "", words) in re.sub(r"\s", "", reply)
    assert text.count("ahead") == 1


def test_ctrl_z_without_a_shell_does_nothing(tiny_model: Path) -> None:
    chat = tiny(tiny_model)
    chat.send("half\x1a")
    chat.send(" typed\r")
    chat.shows("^> half typed\n")
    chat.shows(PROMPT)
    chat.send(CTRL_D)
    assert chat.ends() == 0


def test_a_chat_whose_stdout_is_not_the_terminal_is_refused(
    tiny_model: Path, tmp_path: Path
) -> None:
    chat = PseudoTerminal(
        ["sh", "-c", f"{sys.executable} -m mlxchat -m {tiny_model} > log"], cwd=tmp_path
    )
    chat.shows("^mlxchat: error: stdout is not a terminal: ")
    assert chat.ends() == 2
