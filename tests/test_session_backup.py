"""The daily backup of the sessions, and what it takes the place of."""

import os
import signal
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from mlxchat.chat.state import Turn
from mlxchat.errors import SessionError
from mlxchat.sessions import backup
from mlxchat.sessions.database import Database, names_by_use
from mlxchat.sessions.listing import listing, read_session, remove, search
from mlxchat.sessions.records import update_session
from mlxchat.sessions.session import Session, existing
from tests.elsewhere import run_elsewhere

RESTORED = (
    r"; its backup of \d{4}-\d\d-\d\d \d\d:\d\d replaces it, without anything later: try again$"
)


@pytest.fixture
def database(sessions: Path) -> Path:
    """A database that was backed up, and a turn that was said later."""
    database = sessions / "sessions.db"
    say("mine", *(f"{n} " + "word " * 2000 for n in range(20)))
    backup.back_up(database)
    say("mine", "later")
    return database


def say(name: str, *messages: str) -> None:
    with Session.open(name, create=True) as session:
        said = [Turn(message, "yes", finish_reason="stop") for message in messages]
        session.record(None, [*session.contents.turns, *said])


def turns(name: str = "mine") -> int:
    return len(read_session(name).turns)


def destroy_a_page(database: Path, table: str = "turns") -> None:
    """The first of a table."""
    # Another connection would bring the file up to date.
    address = f"{database.as_uri()}?immutable=1"
    with closing(sqlite3.connect(address, uri=True)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (page,) = connection.execute(query, (table,)).fetchone()
    with database.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)


def begin_long_ago() -> None:
    with Database() as database:
        record = replace(existing(database, "mine"), created=1e9)
        database.write(lambda connection: update_session(connection, record))


def files(database: Path) -> list[str]:
    return sorted(path.name for path in database.parent.iterdir())


# Restoring


def test_the_backup_replaces_a_database_with_a_destroyed_page(database: Path) -> None:
    destroy_a_page(database)
    damaged = database.read_bytes()
    (database.parent / "1.reply").write_text('[22, false, "half"]\n')
    (database.parent / "1.safetensors").write_bytes(b"state")
    with pytest.raises(SessionError, match=r"sessions.db was damaged and is now in \S+" + RESTORED):
        read_session("mine")
    assert turns() == 20
    (aside,) = database.parent.glob("sessions.db.aside-*")
    assert (aside / "sessions.db").read_bytes() == damaged
    # What belongs to turns that are gone is not taken for that of later ones.
    assert files(database) == ["sessions.db", aside.name, "sessions.db.backup"]
    assert {"1.reply", "sessions.db"} <= set(files(aside / "sessions.db"))
    assert len(search("word")) == 20


@pytest.mark.parametrize("left", [None, 0, 1, 100, 4096, 30_000])
def test_the_backup_replaces_a_file_that_is_cut_off_or_missing(
    database: Path, left: int | None
) -> None:
    if left is None:
        database.unlink()
    else:
        os.truncate(database, left)
    with pytest.raises(SessionError, match=f"sessions.db was .*{RESTORED}"):
        turns()
    assert turns() == 20


def test_a_damaged_backup_is_set_aside_with_the_database(database: Path) -> None:
    destroy_a_page(database)
    destroy_a_page(backup.path_of(database))
    with pytest.raises(SessionError, match=r"was damaged and is now in \S+: try again$"):
        turns()
    assert listing() == []
    assert len(list(database.parent.glob("sessions.db.aside-*/sessions.db.backup"))) == 1


def test_a_database_that_was_not_closed_is_checked(database: Path) -> None:
    """A power cut destroyed a page that nobody read for months."""
    program = """
Session.open("other", create=True).record(None, [Turn("a")])
os._exit(1)
"""
    assert run_elsewhere(program)[0] == 1
    destroy_a_page(database)
    # Completion shows nothing, so it sets nothing aside.
    with pytest.raises(SessionError, match=r"sessions.db was damaged$"):
        names_by_use()
    with pytest.raises(SessionError, match=RESTORED):
        listing()
    assert names_by_use() == ["mine"]
    listing()


def test_a_chat_that_has_said_nothing_yet_is_saved_in_the_restored_file(database: Path) -> None:
    with Session.open("other", create=True) as session:
        destroy_a_page(database)
        with pytest.raises(SessionError, match=RESTORED):
            turns()
        session.record(None, [Turn("hello", "yes", finish_reason="stop")])
    assert (turns("other"), turns("mine")) == (1, 20)


def test_a_database_of_an_earlier_format_is_set_aside_once(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA user_version = 1")
    before = database.read_bytes()
    with pytest.raises(SessionError, match=r"had an earlier format and is now in \S+: try again$"):
        listing()
    assert listing() == []
    (aside,) = database.parent.glob("sessions.db.aside-*")
    assert (aside / "sessions.db").read_bytes() == before


# Backing up


def test_the_backup_is_renewed_daily_in_the_background(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = backup.path_of(database)

    def renewals() -> int:
        """How many there are of three chats in a row."""
        before = [copy.stat().st_ino if copy.exists() else 0]
        others = threading.enumerate()
        for _ in range(3):
            say("mine", "more")
            for thread in threading.enumerate():
                if thread not in others:
                    thread.join()
            before.append(copy.stat().st_ino if copy.exists() else 0)
        return sum(one != other for one, other in pairwise(before))

    assert renewals() == 0
    begin_long_ago()
    assert renewals() == 0
    yesterday = time.time() - backup.EVERY_S - 1
    os.utime(copy, (yesterday, yesterday))
    assert renewals() == 1
    copy.unlink()
    assert renewals() == 1
    assert copy.stat().st_mode & 0o777 == 0o600
    database.unlink()
    with pytest.raises(SessionError, match=RESTORED):
        turns()
    assert turns() >= 27


def test_other_chats_write_while_a_backup_is_made(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite begins a copy again after each change, unless one transaction reads all of it."""
    monkeypatch.setattr(backup, "STEP_PAGES", 1)
    monkeypatch.setattr(backup, "PAUSE_S", 0.005)
    pages = database.stat().st_size // 4096
    thread = threading.Thread(target=backup.back_up, args=(database,))
    thread.start()
    waited_s: list[float] = []
    while thread.is_alive():
        begun_s = time.monotonic()
        say("mine", "meanwhile")
        waited_s.append(time.monotonic() - begun_s)
    assert len(waited_s) > 2
    assert sorted(waited_s)[len(waited_s) // 2] < pages * 0.005
    database.unlink()
    with pytest.raises(SessionError, match=RESTORED):
        turns()
    assert 21 <= turns() <= 23


def test_a_backup_that_is_killed_leaves_the_older_one(database: Path) -> None:
    copy = backup.path_of(database)
    before = copy.read_bytes()
    program = """
backup.STEP_PAGES = 1
backup._check = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
backup.back_up(directory / "sessions.db")
"""
    assert run_elsewhere(program)[0] == -signal.SIGKILL
    assert copy.read_bytes() == before
    assert len(files(database)) == 3
    backup.back_up(database)
    assert files(database) == ["sessions.db", "sessions.db.backup"]
    assert copy.read_bytes() != before


def test_a_copy_of_a_damaged_database_does_not_replace_the_backup(database: Path) -> None:
    """A destroyed page is copied without an error."""
    copy = backup.path_of(database)
    before = copy.read_bytes()
    destroy_a_page(database)
    with pytest.raises(sqlite3.DatabaseError):
        backup.back_up(database)
    assert copy.read_bytes() == before
    assert not any(name.startswith(".") for name in files(database))
    # The next chat reports it, whatever it reads.
    with pytest.raises(SessionError, match=RESTORED):
        listing()


def test_a_deleted_session_is_not_kept_in_the_backup(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say("other", "a secret")
    backup.back_up(database)
    assert b"a secret" in backup.path_of(database).read_bytes()
    remove("other")
    assert b"a secret" not in backup.path_of(database).read_bytes()
    assert files(database) == ["sessions.db", "sessions.db.backup"]
    # Not even if no other backup can be made.
    with monkeypatch.context() as patch:
        patch.setattr(backup, "_check", lambda *_: os.close(-1))
        with pytest.raises(SessionError, match="cannot renew the backup"):
            remove("mine")
    assert files(database) == ["sessions.db"]
    backup.back_up(database)
    database.unlink()
    with pytest.raises(SessionError, match=RESTORED):
        listing()
    assert listing() == []


def test_another_connection_of_the_same_process_does_not_end_its_locks(database: Path) -> None:
    """Closing a file ends all locks of a process on it. Another process then took itself for the
    last one, and deleted the log that the chat went on writing to."""
    with Session.open("mine") as session:
        said = session.contents.turns
        session.record(None, [*said, Turn("one")])
        assert names_by_use() == ["mine"]
        assert run_elsewhere("listing()")[0] == 0
        assert Path(f"{database}-wal").exists()
        session.record(None, [*said, Turn("one"), Turn("two")])
    assert turns() == 23
