"""Deleting sessions and caches: asked for on a terminal, confirmed with --yes elsewhere."""

import sys
from pathlib import Path

import numpy as np
import pexpect
import pytest

from mlxchat import paths
from mlxchat.chat.state import Turn
from mlxchat.sessions.database import names_by_use
from mlxchat.sessions.session import Session
from mlxchat.store.tensor_file import CacheFiles
from tests.conftest import RunMlxchat

KEYS = ["a1" * 20, "b2" * 20]
NOT_A_TERMINAL = "mlxchat: error: not a terminal: pass --yes to confirm\n"
LONG = "2026-11-21-143058-a-chat-about-whales"


def record(*names: str) -> None:
    for name in names:
        with Session.open(name, create=True) as session:
            session.record(None, [Turn("Tell me about whales. " * 20, "Big.")])


@pytest.fixture
def sessions() -> list[str]:
    record("one", "two", LONG)
    return names_by_use()


@pytest.fixture
def cached() -> CacheFiles:
    files = CacheFiles(paths.prefix_cache_dir())
    for key in KEYS:
        files.write(key, {"x": np.zeros(500, np.uint8)}, 1e9)
    return files


def on_terminal(*arguments: str, answer: str | None = None, columns: int = 80) -> str:
    child = pexpect.spawn(
        sys.executable, ["-m", "mlxchat", *arguments], encoding="utf-8", dimensions=(24, columns)
    )
    if answer is not None:
        child.expect(r"\[y/N\]: ")
        child.sendline(answer)
    child.expect(pexpect.EOF, timeout=100)
    return str(child.before).replace("\r\n", "\n")


def test_deleting_without_a_terminal_needs_yes(
    sessions: list[str], cached: CacheFiles, run_mlxchat: RunMlxchat
) -> None:
    """Sessions and caches went without a question, models asked for one."""
    for command in (["session", "rm", "one"], ["cache", "clear"]):
        done = run_mlxchat(*command)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", NOT_A_TERMINAL)
    assert names_by_use() == sessions
    assert cached.present(KEYS) == 2


def test_a_deletion_is_reported_in_one_line(
    sessions: list[str], cached: CacheFiles, run_mlxchat: RunMlxchat
) -> None:
    def said(*command: str) -> str:
        done = run_mlxchat(*command)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert said("session", "rm", "-y", "one", "two", "one") == "deleted one, two\n"
    assert names_by_use() == [LONG]
    assert said("cache", "clear", "--yes").startswith("deleted ")
    assert cached.present(KEYS) == 0
    assert said("session", "rename", LONG, "three") == f"renamed {LONG} to three\n"


def test_nothing_is_deleted_if_a_name_is_wrong(
    sessions: list[str], run_mlxchat: RunMlxchat
) -> None:
    done = run_mlxchat("session", "rm", "--yes", "one", "onne")
    assert (done.returncode, done.stderr) == (
        1,
        "mlxchat: error: no session named 'onne'; did you mean one?\n",
    )
    assert names_by_use() == sessions


def test_a_terminal_is_asked(sessions: list[str]) -> None:
    assert on_terminal("session", "rm", "one", answer="n") == "n\n"
    assert names_by_use() == sessions
    assert on_terminal("session", "rm", "one", answer="y") == "y\ndeleted one\n"
    assert "one" not in names_by_use()


@pytest.mark.parametrize("columns", [60, 40])
def test_a_row_of_a_list_is_a_line_and_names_are_whole(sessions: list[str], columns: int) -> None:
    """Names were broken across lines, so that they could not be copied. At 60 columns, the time was
    shown instead of the message."""
    shown = on_terminal("session", "list", columns=columns).splitlines()
    assert [line.split()[0] for line in shown[2:]] == sessions
    assert all(("Tell" in line) == (columns > 40) for line in shown[2:])
    assert max(map(len, shown)) <= columns


def test_a_long_list_of_sessions_is_shown_in_a_pager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every question is a session. A hundred of them pushed the latest off the screen."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("PAGER", f"cat > {tmp_path / 'paged'}")
    record(*(f"s{n}" for n in range(21)))
    assert len(on_terminal("session", "list").splitlines()) == 23
    record("s21")
    assert on_terminal("session", "list") == ""
    assert len((tmp_path / "paged").read_text().splitlines()) == 24


def test_a_deleted_session_leaves_no_text(sessions: list[str], run_mlxchat: RunMlxchat) -> None:
    """SQLite leaves what it deletes in the file, unless it has to overwrite it."""
    (database,) = paths.sessions_dir().iterdir()
    assert b"Tell me about whales" in database.read_bytes()
    run_mlxchat("session", "rm", "--yes", *sessions)
    assert list(paths.sessions_dir().iterdir()) == [database]
    assert b"whales" not in database.read_bytes()
