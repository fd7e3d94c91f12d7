"""Copying a reply: with `pbcopy` on the user's own Mac, else through the terminal."""

import base64
from pathlib import Path

import pytest

from mlxchat.terminal.screen import copy_to_clipboard
from tests.terminal import Terminal

pytestmark = pytest.mark.usefixtures("ordinary_terminal")


@pytest.fixture
def pbcopy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only command there is; it writes what it gets to `copied`, and its locale to `locale`."""
    directory = tmp_path / "commands"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
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


def test_over_ssh_the_terminal_gets_the_text_unless_it_is_dumb(
    pbcopy: Path, monkeypatch: pytest.MonkeyPatch
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
    assert not (pbcopy / "copied").exists()
