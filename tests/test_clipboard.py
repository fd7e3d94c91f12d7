"""Copying a reply: with `pbcopy` on the user's own Mac, else through the terminal."""

import base64
from pathlib import Path

import pytest

from mlxchat.terminal.screen import copy_to_clipboard
from tests.terminal import Terminal

pytestmark = pytest.mark.usefixtures("ordinary_terminal")


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the only command there is, `pbcopy`, writes its locale and what it gets."""
    script, copied = tmp_path / "pbcopy", tmp_path / "copied"
    script.write_text(f'#!/bin/sh\n(echo "$LC_CTYPE"; exec /bin/cat) > {copied}\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return copied


def test_pbcopy_gets_the_text_in_a_utf8_locale(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a locale without UTF-8, which launchd and many ssh logins have, it garbled every
    non-English letter."""
    monkeypatch.setenv("LC_CTYPE", "C")
    assert copy_to_clipboard("größe\n\ud83d") == "copied 7 characters"
    assert copied.read_text() == "UTF-8\ngröße\n?"


def test_over_ssh_the_terminal_gets_the_text_unless_it_is_dumb(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/copy` on a Mac over ssh printed "copied", but set the clipboard of the remote Mac."""
    monkeypatch.setenv("SSH_CONNECTION", "something")
    terminal = Terminal()
    with terminal.opened() as patch:
        assert copy_to_clipboard("größe") == (
            "sent 5 characters to the terminal (OSC 52), which may not support it"
        )
        assert terminal.written == f"\x1b]52;c;{base64.b64encode('größe'.encode()).decode()}\x07"
        patch.setenv("TERM", "dumb")
        assert copy_to_clipboard("x") == "no clipboard here: /export writes a file"
    assert not copied.exists()
