"""The system's own commands: `pbcopy` copies a reply, and `caffeinate` keeps a Mac awake."""

import base64
import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mlxchat.platform import keep_awake
from mlxchat.terminal.screen import copy_to_clipboard
from tests.terminal import Terminal

pytestmark = pytest.mark.usefixtures("ordinary_terminal")

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Writes a script, the only command there is."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def write(name: str, does: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\ncd {tmp_path}\n{does}\n")
        (tmp_path / name).chmod(0o755)

    return write


def test_pbcopy_gets_the_text_in_a_utf8_locale_unless_it_is_another_machines(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a locale without UTF-8, which launchd and many ssh logins have, it garbled every
    non-English letter. Over ssh, it set the clipboard of the remote Mac."""
    install("pbcopy", '(echo "$LC_CTYPE"; exec /bin/cat) > copied')
    monkeypatch.setenv("LC_CTYPE", "C")
    assert copy_to_clipboard("größe\n\ud83d") == "copied 7 characters"
    assert (tmp_path / "copied").read_text() == "UTF-8\ngröße\n?"
    monkeypatch.setenv("SSH_CONNECTION", "something")
    terminal = Terminal()
    with terminal.opened() as patch:
        report = "sent 5 characters to the terminal (OSC 52), which may not support it"
        assert copy_to_clipboard("größe") == report
        assert terminal.written == f"\x1b]52;c;{base64.b64encode('größe'.encode()).decode()}\x07"
        patch.setenv("TERM", "dumb")
        assert copy_to_clipboard("x") == "no clipboard here: /export writes a file"
    assert (tmp_path / "copied").read_text() == "UTF-8\ngröße\n?"


children = psutil.Process().children


def test_a_mac_is_kept_awake_until_the_body_ends_or_fails(install: Install, tmp_path: Path) -> None:
    install("caffeinate", 'echo "$@" >new; /bin/mv new log; exec /bin/sleep 60')
    log, before = tmp_path / "log", children()
    with keep_awake("linux"):
        assert children() == before
    with pytest.raises(KeyboardInterrupt), keep_awake("darwin"):  # noqa: PT012
        while not log.exists():
            time.sleep(0.01)
        (started,) = (child for child in children() if child not in before)
        # The terminal's interrupt does not reach it.
        assert os.getpgid(started.pid) != os.getpgid(0)
        raise KeyboardInterrupt
    assert log.read_text() == f"-i -w {os.getpid()}\n"
    assert children() == before
