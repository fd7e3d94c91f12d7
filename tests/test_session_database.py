"""The database of sessions: private, shared by processes, and read wherever it lies."""

import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from mlxchat.chat.state import Turn
from mlxchat.errors import SessionError
from mlxchat.sessions import database as database_module
from mlxchat.sessions.database import FORMAT, Database, names_by_use
from mlxchat.sessions.listing import listing, read_session, search
from mlxchat.sessions.session import Session
from tests.failing_database import FailingDatabase
from tests.killed import kill
from tests.test_session_store import make_session


def test_a_database_of_a_newer_version_is_refused_by_number(sessions: Path) -> None:
    version = FORMAT + 1
    make_session("mine")
    with sqlite3.connect(sessions / "sessions.db") as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    before = (sessions / "sessions.db").read_bytes()
    with pytest.raises(SessionError, match=f"in version {version} .* reads version {FORMAT}"):
        listing()
    with Session.new() as session, pytest.raises(SessionError, match="continues unsaved"):
        session.record(None, [Turn("hello")])
    assert (sessions / "sessions.db").read_bytes() == before


def test_a_session_on_a_full_disk_continues_unsaved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for the memory that SQLite shares, even reading failed."""
    make_session("mine")
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    monkeypatch.setattr(database_module, "connect", Mock(side_effect=error))
    unsaved = pytest.raises(SessionError, match="disk I/O error: the chat continues unsaved")
    with Session.open("mine") as session, unsaved:
        session.record(None, [*session.contents.turns, Turn("more")])
    assert [turn.user for turn in read_session("mine").turns] == ["hello"]


def test_chats_that_began_on_a_full_disk_get_a_row_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kept the id of a row that was rolled back: the second one emptied the first one's."""
    database = FailingDatabase(monkeypatch)
    with Session.open("paris", create=True) as one, Session.open("rome", create=True) as other:
        for session in (one, other):
            database.executed, database.failing = [], (2,)
            with pytest.raises(SessionError, match="continues unsaved"):
                session.record(None, [Turn(session.name)])
        database.failing = ()
        for session in (one, other):
            session.record(None, [Turn(session.name)])
    for name in ("paris", "rome"):
        assert [turn.user for turn in read_session(name).turns] == [name]


def test_what_a_killed_process_left_in_the_log_is_read_on_a_read_only_disk(
    sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session.open("mine", create=True)
    session.record(None, [Turn("hello")])
    session.show("half a reply")
    kill(session)
    assert (sessions / "sessions.db-wal").stat().st_size > 0
    before = {path.name: path.read_bytes() for path in sessions.iterdir()}
    # Even root cannot write.
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    assert read_session("mine").turns[0].reply == "half a reply"
    assert len(search("hello")) == 1
    assert {path.name: path.read_bytes() for path in sessions.iterdir()} == before


def test_a_turn_is_forced_out_of_the_drives_cache(sessions: Path) -> None:
    """SQLite does what these settings say: on macOS, F_FULLFSYNC instead of fsync."""
    full = 2
    with Database() as database:
        for setting, value in (("synchronous", full), ("fullfsync", 1)):
            query = f"PRAGMA {setting}"
            assert database.write(lambda c, query=query: c.execute(query).fetchone()) == (value,)


@pytest.mark.parametrize("kind", ["nfs4", "smbfs", "fuse.sshfs", "ext4", "apfs"])
def test_a_network_disk_gets_a_rollback_journal(
    sessions: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A write-ahead log needs memory that the processes share, which no network has."""
    nearest = SimpleNamespace(mountpoint=str(sessions.parent), fstype=kind)
    mounted = [SimpleNamespace(mountpoint="/", fstype="nfs"), nearest]
    monkeypatch.setattr("psutil.disk_partitions", lambda all: mounted)
    with Session.open("mine", create=True) as session:
        session.record(None, [Turn("hello")])
        assert (sessions / "sessions.db-wal").exists() == (kind in ("ext4", "apfs"))
        assert read_session("mine").turns[0].user == "hello"


def test_several_chats_create_and_fill_one_database(sessions: Path) -> None:
    def chat(name: str) -> None:
        with Session.open(name, create=True) as session:
            turns: list[Turn] = []
            for n in range(10):
                turns.append(Turn(str(n)))
                session.record(None, turns)
                session.show(name)
                turns[-1] = Turn(str(n), name, finish_reason="stop")
                session.record(None, turns)

    names = ["s0", "s1", "s2", "s3"]
    with ThreadPoolExecutor() as chats:
        list(chats.map(chat, names))
    assert sorted(names_by_use()) == names
    for name in names:
        saved = [(turn.user, turn.reply) for turn in read_session(name).turns]
        assert saved == [(str(n), name) for n in range(10)]


def test_a_database_put_in_place_of_the_open_one_is_noticed(sessions: Path) -> None:
    """Otherwise everything would be written to a file that nobody can open again."""
    with Session.open("mine", create=True) as session:
        turns = [Turn("hello", "yes", finish_reason="stop")]
        session.record(None, turns)
        session._database.close()
        copy = sessions / "copy"
        copy.write_bytes((sessions / "sessions.db").read_bytes())
        # Open it again.
        session._database.read(lambda connection: connection.execute("SELECT 1"), None)
        copy.replace(sessions / "sessions.db")
        turns.append(Turn("more"))
        session.record(None, turns)
    assert [turn.user for turn in read_session("mine").turns] == ["hello", "more"]


def test_a_transaction_does_not_write_into_a_file_that_another_has_replaced(sessions: Path) -> None:
    """Not even if that happens just before it begins: it waits for the lock meanwhile."""
    make_session("mine")
    copy = sessions / "copy"
    with Database() as database:
        database.write(lambda connection: copy.write_bytes(database.path.read_bytes()))
        database._is_replaced, real = lambda: False, database._is_replaced
        connection = database._current()
        copy.replace(database.path)
        database._current, database._is_replaced = lambda: connection, real
        with pytest.raises(OSError, match="was replaced by another process"):
            database.write(lambda connection: connection.execute("DELETE FROM turns"))
    assert len(read_session("mine").turns) == 1
