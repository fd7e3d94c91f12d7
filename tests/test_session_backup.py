"""The daily backup of the sessions, and what it takes the place of."""

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlxchat.chat.state import Turn
from mlxchat.errors import SessionError
from mlxchat.sessions import backup
from mlxchat.sessions.database import Database, names_by_use
from mlxchat.sessions.listing import listing, read_session, remove, search
from mlxchat.sessions.records import update_session
from mlxchat.sessions.session import Session, existing
from tests.killed import kill
from tests.test_session_store import files

RESTORED = r"; its backup of [\d-]{10} [\d:]{5} replaces it, without anything later: try again$"


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


def turns() -> int:
    return len(read_session("mine").turns)


def destroy_a_page(database: Path) -> None:
    """The first of the turns."""
    # Another connection would bring the file up to date.
    with closing(sqlite3.connect(f"{database.as_uri()}?immutable=1", uri=True)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'turns'"
        (page,) = connection.execute(query).fetchone()
    with database.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)


# Restoring


@pytest.mark.parametrize(
    "harm",
    [
        destroy_a_page,
        lambda database: os.truncate(database, 30_000),
        lambda database: os.truncate(database, 0),
        Path.unlink,
    ],
)
def test_the_backup_replaces_a_file_that_is_damaged_or_missing(
    database: Path, harm: Callable[[Path], None]
) -> None:
    harm(database)
    left = database.read_bytes() if database.exists() else None
    (database.parent / "1.reply").write_text('[22, false, "half"]\n')
    (database.parent / "1.safetensors").write_bytes(b"state")
    with pytest.raises(SessionError, match=rf"sessions.db was [^;]+{RESTORED}"):
        turns()
    assert turns() == 20
    (aside,) = database.parent.glob("sessions.db.aside-*")
    if left is not None:
        assert (aside / "sessions.db").read_bytes() == left
    # What belongs to turns that are gone is not taken for that of later ones.
    assert files(database.parent) == ["sessions.db", aside.name, "sessions.db.backup"]
    assert (aside / "1.reply").exists()
    assert len(search("word")) == 20


@pytest.mark.parametrize("damage", [destroy_a_page, lambda path: path.write_bytes(b"")])
def test_a_damaged_backup_is_set_aside_with_the_database(database: Path, damage: Any) -> None:
    destroy_a_page(database)
    damage(backup.path_of(database))
    with pytest.raises(SessionError, match=r"was damaged .* starts empty: try again$"):
        turns()
    assert listing() == []
    assert len(list(database.parent.glob("sessions.db.aside-*/sessions.db.backup"))) == 1


def test_a_database_that_was_not_closed_is_checked(database: Path) -> None:
    other = Session.open("other", create=True)
    other.record(None, [Turn("a")])
    kill(other)
    destroy_a_page(database)
    # Completion shows nothing, so it sets nothing aside.
    with pytest.raises(SessionError, match=r"sessions.db was damaged$"):
        names_by_use()
    with pytest.raises(SessionError, match=RESTORED):
        listing()
    assert names_by_use() == ["mine"]
    listing()


def test_a_database_of_an_earlier_format_is_set_aside_once(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA user_version = 1")
    before = database.read_bytes()
    with pytest.raises(SessionError, match=r"had an earlier format .* starts empty: try again$"):
        listing()
    assert listing() == []
    (aside,) = database.parent.glob("sessions.db.aside-*")
    assert (aside / "sessions.db").read_bytes() == before


# Backing up


def test_a_backup_is_renewed_once_a_day(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, begun = backup.path_of(database), list[threading.Thread]()

    def thread(**options: Any) -> threading.Thread:
        begun.append(threading.Thread(**options))
        return begun[-1]

    def renewals() -> int:
        """How many there are of three chats in a row."""
        begun.clear()
        for _ in range(3):
            say("mine", "more")
            for each in begun:
                each.join()
        return len(begun)

    monkeypatch.setattr(backup, "threading", SimpleNamespace(Thread=thread))
    assert renewals() == 0
    with Database() as opened:
        record = replace(existing(opened, "mine"), created=1e9)
        opened.write(lambda connection: update_session(connection, record))
    assert renewals() == 0
    yesterday = time.time() - backup.EVERY_S - 1
    os.utime(copy, (yesterday, yesterday))
    assert renewals() == 1
    copy.unlink()
    assert renewals() == 1
    assert copy.stat().st_mode & 0o777 == 0o600


def test_chats_write_during_a_backup(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite begins a copy again after each change, unless one transaction reads all of it."""
    messages = iter(["one", "two"])

    def pause(_: float) -> None:
        for message in islice(messages, 1):
            say("mine", message)

    monkeypatch.setattr(backup, "STEP_PAGES", 1)
    monkeypatch.setattr(backup, "time", SimpleNamespace(sleep=pause, time=time.time))
    backup.back_up(database)
    assert turns() == 23
    database.unlink()
    with pytest.raises(SessionError, match=RESTORED):
        turns()
    assert turns() == 21


def test_the_older_backup_stays_unless_the_new_one_is_sound(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A destroyed page is copied without an error. The next removes what a killed one left."""
    copy = backup.path_of(database)
    before = copy.read_bytes()
    (database.parent / f".{copy.name}.k1ll3d").touch()
    destroy_a_page(database)
    check = backup._check

    def check_not_replaced(*arguments: Any) -> None:
        assert copy.read_bytes() == before
        check(*arguments)

    monkeypatch.setattr(backup, "_check", check_not_replaced)
    with pytest.raises(sqlite3.DatabaseError):
        backup.back_up(database)
    assert copy.read_bytes() == before
    assert not any(name.startswith(".") for name in files(database.parent))


def test_a_deleted_session_has_no_backup(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say("other", "a secret")
    backup.back_up(database)
    assert b"a secret" in backup.path_of(database).read_bytes()
    remove("other")
    assert b"a secret" not in backup.path_of(database).read_bytes()
    assert files(database.parent) == ["sessions.db", "sessions.db.backup"]
    # Not even if no other backup can be made.
    with monkeypatch.context() as patch:
        patch.setattr(backup, "_check", lambda *_: os.close(-1))
        with pytest.raises(SessionError, match="cannot renew the backup"):
            remove("mine")
    assert files(database.parent) == ["sessions.db"]
