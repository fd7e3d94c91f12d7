"""Copying a reply: with a desktop's command if one works, else through the terminal."""

import base64
import os
import re
import sys
import time
from pathlib import Path

import pytest

from mlxchat.terminal import clipboard
from mlxchat.terminal.clipboard import copy_to_clipboard
from tests.terminal_chat import CTRL_C, CTRL_D, Chat
from tests.thinking_model import ANSWER, write_thinking_model

pytestmark = pytest.mark.usefixtures("ordinary_terminal")

DESKTOPS = {
    "pbcopy": {},
    "wl-copy": {"WAYLAND_DISPLAY": "wayland-0"},
    "xclip": {"DISPLAY": ":0"},
    "xsel": {"DISPLAY": ":0"},
}
NO_CLIPBOARD = "no clipboard here: /export writes a file"


def sent(size: object) -> str:
    return f"sent {size} characters to the terminal (OSC 52), which may not support it"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory in which commands are found."""
    directory = tmp_path / "commands"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return directory


def put_command(commands: Path, name: str, *lines: str) -> None:
    script = commands / name
    script.write_text("\n".join(["#!/bin/sh", "PATH=/usr/bin:/bin", *lines, ""]))
    script.chmod(0o755)


def put_in_a_desktop(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for variable, value in DESKTOPS[name].items():
        monkeypatch.setenv(variable, value)


@pytest.mark.parametrize("name", DESKTOPS)
def test_each_desktops_command_gets_the_text(
    name: str, commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_command(commands, name, f"cat > {commands}/copied")
    if DESKTOPS[name]:
        assert copy_to_clipboard("größe\n😀") == NO_CLIPBOARD
    put_in_a_desktop(monkeypatch, name)
    assert copy_to_clipboard("größe\n😀") == "copied 7 characters"
    assert (commands / "copied").read_text() == "größe\n😀"


def test_a_command_that_keeps_running_is_not_waited_for(
    commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """xclip does this: it keeps its output open until another program copies."""
    put_in_a_desktop(monkeypatch, "xclip")
    put_command(commands, "xclip", f"cat > {commands}/copied", "sleep 20 & echo $! > $0.child")
    begun_s = time.monotonic()
    assert copy_to_clipboard("text") == "copied 4 characters"
    assert time.monotonic() - begun_s < 10
    child = int((commands / "xclip.child").read_text())
    # Ctrl-C in the chat must not reach it.
    assert os.getpgid(child) != os.getpgid(0)
    os.kill(child, 9)


@pytest.mark.parametrize(
    "lines", [["cat", "exit 1"], ["sleep 20"], ["exec sleep 20"]], ids=["fails", "hangs", "is hung"]
)
def test_a_command_that_fails_or_hangs_is_skipped(
    lines: list[str], commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clipboard, "PATIENCE_S", 0.3)
    put_in_a_desktop(monkeypatch, "xclip")
    put_command(commands, "xclip", *lines)
    # More than fits in a pipe.
    text = "x" * 200_000
    assert copy_to_clipboard(text) == NO_CLIPBOARD
    put_command(commands, "xsel", f"cat > {commands}/copied")
    assert copy_to_clipboard(text) == "copied 200,000 characters"
    assert (commands / "copied").read_text() == text


def test_a_command_that_cannot_be_run_is_skipped(commands: Path) -> None:
    broken = commands / "pbcopy"
    broken.write_bytes(b"\x7fELF and nothing more")
    broken.chmod(0o755)
    assert copy_to_clipboard("text") == NO_CLIPBOARD


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pieces written to the terminal."""
    written: list[str] = []
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "write", written.append)
    return written


def osc52(text: str) -> str:
    return f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\x07"


def test_pbcopy_is_run_in_a_utf8_locale(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a locale without UTF-8, which launchd and many ssh logins have, it garbled every
    non-English letter."""
    monkeypatch.setenv("LC_CTYPE", "C")
    put_command(commands, "pbcopy", f'echo "$LC_CTYPE" > {commands}/locale', "cat > /dev/null")
    assert copy_to_clipboard("größe") == "copied 5 characters"
    assert (commands / "locale").read_text() == "UTF-8\n"


@pytest.mark.parametrize("variable", ["SSH_CONNECTION", "SSH_TTY"])
@pytest.mark.parametrize("name", DESKTOPS)
def test_over_ssh_the_terminal_gets_the_text_and_not_the_remote_clipboard(
    name: str,
    variable: str,
    commands: Path,
    terminal: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`/copy` on a Mac over ssh printed "copied", but set the clipboard of the remote Mac."""
    monkeypatch.setenv(variable, "something")
    put_in_a_desktop(monkeypatch, name)
    put_command(commands, name, f"cat > {commands}/copied")
    assert copy_to_clipboard("größe") == sent(5)
    assert terminal == [osc52("größe")]
    assert not (commands / "copied").exists()


def test_a_display_forwarded_by_ssh_is_the_local_one(
    commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "something")
    monkeypatch.setenv("DISPLAY", "localhost:10.0")
    put_command(commands, "xclip", f"cat > {commands}/copied")
    assert copy_to_clipboard("text") == "copied 4 characters"


def test_within_tmux_the_text_goes_through_it(
    commands: Path, terminal: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """tmux ignores OSC 52 from programs unless `set-clipboard` is `on`."""
    monkeypatch.setenv("TMUX", "/tmp/tmux-0/default,1,0")
    put_command(commands, "tmux", f'echo "$@" > {commands}/given', f"cat > {commands}/copied")
    assert copy_to_clipboard("größe").startswith("copied 5 characters to tmux")
    assert (commands / "copied").read_text() == "größe"
    assert (commands / "given").read_text() == "load-buffer -w -\n"
    assert terminal == []
    # Versions before 3.2 cannot do it.
    put_command(commands, "tmux", "exit 1")
    assert copy_to_clipboard("größe") == sent(5)
    assert terminal == [osc52("größe")]


def test_text_too_long_for_a_terminal_is_not_sent(terminal: list[str], commands: Path) -> None:
    assert not list(commands.iterdir())
    assert copy_to_clipboard("x" * 74_994) == sent("74,994")
    assert len(terminal.pop()) <= 100_000
    assert copy_to_clipboard("x" * 74_995).endswith(
        "do not fit in a terminal's clipboard: /export writes a file"
    )
    assert terminal == []


def test_an_unpaired_surrogate_is_copied_as_a_question_mark(commands: Path) -> None:
    put_command(commands, "pbcopy", f"cat > {commands}/copied")
    assert copy_to_clipboard("a\ud83d") == "copied 2 characters"
    assert (commands / "copied").read_text() == "a?"


def test_copy_in_a_chat(tmp_path: Path, commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    model = write_thinking_model(tmp_path / "thinking")
    chat = Chat(str(model), "--think", "off")
    chat.says("/copy")
    chat.shows("^no messages yet$")
    chat.says("hello")
    # Only the terminal has a clipboard.
    chat.send("/copy\r")
    chat.shows(f"^> /copy\n{re.escape(sent(4))}\n>$")
    written = f"\x1b]52;c;{base64.b64encode(ANSWER.encode()).decode()}\x07"
    assert chat.written.count(written) == 1
    put_command(commands, "xclip", f"cat > {commands}/copied")
    chat.send("/copy\r")
    chat.shows("^> /copy\ncopied 4 characters\n>$")
    assert (commands / "copied").read_text() == ANSWER
    # A command that hangs can be stopped, and the chat continues.
    put_command(commands, "xclip", f"echo > {commands}/begun", "exec sleep 20")
    chat.send("/copy\r")
    while not (commands / "begun").exists():
        time.sleep(0.01)
    chat.send(CTRL_C)
    chat.shows(r"^stopped\n> /copy$")
    put_command(commands, "xclip", "exit 1")
    chat.send("\r")
    chat.shows(rf"^stopped\n> /copy\n{re.escape(sent(4))}$")
    assert chat.written.count(written) == 2
    chat.says("again")
    chat.send(CTRL_D)
    assert chat.ends() == 0


def test_a_dumb_terminal_has_no_clipboard(
    tmp_path: Path, commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not list(commands.iterdir())
    monkeypatch.setenv("TERM", "dumb")
    chat = Chat(str(write_thinking_model(tmp_path / "thinking")), "--think", "off")
    chat.says("hello")
    chat.says("/copy")
    chat.shows(f"^> /copy\n{NO_CLIPBOARD}\n>$")
    chat.send(CTRL_D)
    assert chat.ends() == 0
    assert "\x1b" not in chat.written
