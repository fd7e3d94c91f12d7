"""Deleting sessions and caches: confirmed, complete, and all or nothing."""

import numpy as np
import pytest

from mlxchat import paths
from mlxchat.chat.state import Turn
from mlxchat.sessions.database import names_by_use
from mlxchat.sessions.records import QUESTION
from mlxchat.sessions.session import Session
from mlxchat.store.tensor_file import CacheFiles
from mlxchat.terminal import progress
from tests.in_process import run_in_process, run_quietly

KEYS = ["a1" * 20, "b2" * 20]


@pytest.fixture(autouse=True)
def cached() -> CacheFiles:
    """A cache of two files; and three sessions."""
    files = CacheFiles(paths.prefix_cache_dir())
    for key in KEYS:
        files.write(key, {"x": np.zeros(500, np.uint8)}, 1e9)
    for name in ("one", "two", "three"):
        with Session.open(name, create=True) as session:
            session.record(None, [Turn("Tell me about whales. " * 20, "Big.")])
    return files


@pytest.mark.parametrize(
    ("command", "status", "complaint"),
    [
        ("session rm one", 2, "not a terminal: pass --yes to confirm"),
        ("cache clear", 2, "not a terminal: pass --yes to confirm"),
        ("session prune --all --older-than 0.001s", 2, "not a terminal: pass --yes to confirm"),
        ("session rm -y one on", 1, "no session named 'on'; did you mean one?"),
    ],
)
def test_nothing_is_deleted_unless_it_is_confirmed_and_every_name_is_right(
    command: str, status: int, complaint: str, cached: CacheFiles
) -> None:
    """Sessions and caches went without a question, models asked for one."""
    done = run_in_process(*command.split())
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr == f"mlxchat: error: {complaint}\n"
    assert names_by_use() == ["three", "two", "one"]
    assert cached.present(KEYS) == 2


def test_a_terminal_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "terminal_question", lambda x: lambda q: progress._ask(x, q))
    with Session.open("one"):
        assert "? [y/N]" not in run_in_process("session", "rm", "one").stderr
    for answer, left in (("n", 3), ("", 3), ("y", 2)):
        done = run_in_process("session", "rm", "one", stdin=f"{answer}\n")
        refused = "mlxchat: nothing was deleted\n" * (left == 3)
        assert done.stderr.endswith(f"? [y/N] {refused}")
        assert done.returncode == (left == 3)
        assert names_by_use() == ["three", "two", "one"][:left]


def test_prune_deletes_old_questions_and_chats_only_if_asked_to_but_none_that_is_open() -> None:
    def prune(*arguments: str) -> str:
        return run_in_process("session", "prune", "--yes", *arguments).stdout

    with Session.new() as session:
        session.settings({QUESTION: True})
        session.record(None, [Turn("Why?", "So.")])
    assert prune() == prune("--all", "--older-than", "1h") == "nothing to delete\n"
    assert prune("--older-than", "0.001s") == "deleted 1 single question\n"
    assert names_by_use() == ["three", "two", "one"]
    with Session.open("one"):
        assert prune("--older-than", "0.001s", "--all") == "deleted 2 sessions\n"
    assert names_by_use() == ["one"]
    run = run_in_process("session", "prune", "--older-than", "30")
    assert "--older-than must be a" in run.stderr


def test_what_is_deleted_leaves_no_text_and_is_reported_in_one_line(cached: CacheFiles) -> None:
    """SQLite leaves what it deletes in the file, unless it has to overwrite it."""
    (database,) = paths.sessions_dir().iterdir()
    assert b"Tell me about whales" in database.read_bytes()
    written = run_quietly("session", "rm", "--yes", "one", "two", "one", "three")
    assert written == "deleted one, two, three\n"
    assert list(paths.sessions_dir().iterdir()) == [database]
    assert b"whales" not in database.read_bytes()
    paths.document_indexes_dir().mkdir(parents=True)
    (paths.document_indexes_dir() / "index.sqlite").write_text("whales")
    assert run_in_process("cache", "clear", "--yes").stdout.startswith("deleted ")
    assert [*paths.document_indexes_dir().iterdir()] == []
    assert cached.present(KEYS) == 0
