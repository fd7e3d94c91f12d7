"""Copying a reply: with `pbcopy` on the user's own Mac, else through the terminal."""

import base64
import re
import sys
from pathlib import Path

import pytest

from mlxchat.terminal.screen import copy_to_clipboard
from scripts.tiny_model import CHAT_TEMPLATE
from tests.scripted_model import Scripted
from tests.terminal_chat import CTRL_D, Chat

pytestmark = pytest.mark.usefixtures("ordinary_terminal")


REPLY = b"Yes!"


def sent(size: int) -> str:
    return f"sent {size} characters to the terminal (OSC 52), which may not support it"


@pytest.fixture
def pbcopy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only command there is; it writes what it gets to `copied`, and its locale to `locale`."""
    directory = tmp_path / "commands"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    script = directory / "pbcopy"
    script.write_text(
        f'#!/bin/sh\necho "$LC_CTYPE" > {directory}/locale\n/bin/cat > {directory}/copied\n'
    )
    script.chmod(0o755)
    return directory


def test_pbcopy_gets_the_text_in_a_utf8_locale(
    pbcopy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a locale without UTF-8, which launchd and many ssh logins have, it garbled every
    non-English letter."""
    monkeypatch.setenv("LC_CTYPE", "C")
    assert copy_to_clipboard("größe\n\ud83d") == "copied 7 characters"
    assert (pbcopy / "copied").read_text() == "größe\n?"
    assert (pbcopy / "locale").read_text() == "UTF-8\n"


def test_over_ssh_the_terminal_gets_the_text_and_not_the_remote_clipboard(
    pbcopy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/copy` on a Mac over ssh printed "copied", but set the clipboard of the remote Mac."""
    monkeypatch.setenv("SSH_CONNECTION", "something")
    written: list[str] = []
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "write", written.append)
    assert copy_to_clipboard("größe") == sent(5)
    assert written == [f"\x1b]52;c;{base64.b64encode('größe'.encode()).decode()}\x07"]
    assert not (pbcopy / "copied").exists()


def test_copy_in_a_chat(tmp_path: Path) -> None:
    model = Scripted(CHAT_TEMPLATE, (), "Yes!<|im_end|>").write(tmp_path / "model")
    chat = Chat(str(model), program="tests.scripted_program")
    chat.says("/copy")
    chat.shows("^no messages yet$")
    chat.says("hello")
    chat.send("/copy\r")
    chat.shows(f"^> /copy\n{re.escape(sent(4))}\n>$")
    assert chat.written.count(f"\x1b]52;c;{base64.b64encode(REPLY).decode()}\x07") == 1
    chat.send(CTRL_D)
    assert chat.ends() == 0


def test_a_dumb_terminal_has_no_clipboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("SSH_CONNECTION", "something")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert copy_to_clipboard("x") == "no clipboard here: /export writes a file"
