"""A Mac does not sleep while something long runs."""

import os
import time
from pathlib import Path

import psutil
import pytest

from mlxchat.platform import keep_awake


def children() -> list[psutil.Process]:
    return psutil.Process().children()


def test_a_mac_is_kept_awake_until_the_body_ends_or_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, log, before = tmp_path / "caffeinate", tmp_path / "log", children()
    program.write_text(f'#!/bin/sh\necho "$@" >{log}.new; mv {log}.new {log}\nexec sleep 60\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def interrupted() -> None:
        with keep_awake("darwin"):
            while not log.exists():
                time.sleep(0.01)
            (started,) = (child for child in children() if child not in before)
            # The terminal's interrupt does not reach it.
            assert os.getpgid(started.pid) != os.getpgid(0)
            raise KeyboardInterrupt

    with keep_awake("linux"):
        assert children() == before
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert log.read_text() == f"-i -w {os.getpid()}\n"
    assert children() == before
