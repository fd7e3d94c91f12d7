"""A Mac does not sleep while something long runs."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mlxchat.platform import keep_awake

Install = Callable[[str], Path]


@pytest.fixture
def caffeinate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a script called caffeinate in the PATH; returns the path of its log."""

    def install(does: str) -> Path:
        program, log = tmp_path / "caffeinate", tmp_path / "log"
        program.write_text(f'#!/bin/sh\necho "$@" >{log}.new; mv {log}.new {log}\n{does}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        return log

    return install


def children() -> list[psutil.Process]:
    return psutil.Process().children()


def wait_for(path: Path) -> None:
    deadline_s = time.monotonic() + 100
    while not path.exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)


def test_a_mac_is_kept_awake_until_the_body_ends_or_fails(caffeinate: Install) -> None:
    log, before = caffeinate("exec sleep 60"), children()

    def interrupted() -> None:
        with keep_awake("darwin"):
            wait_for(log)
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
