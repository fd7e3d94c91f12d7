"""The database of sessions: private, shared by processes, and read wherever it lies."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from mlxchat import platform
from mlxchat.chat.state import Turn
from mlxchat.errors import SessionError
from mlxchat.sessions import database as database_module
from mlxchat.sessions.database import FORMAT, Database, names_by_use
from mlxchat.sessions.listing import listing, read_session, search
from mlxchat.sessions.session import Session
from tests.elsewhere import elsewhere, run_elsewhere


def make_session() -> None:
    with Session.open("mine", create=True) as session:
        session.record(None, [Turn("hello", "yes", finish_reason="stop")])


# Formats


def test_a_database_of_a_newer_version_is_refused_by_number(sessions: Path) -> None:
    version = FORMAT + 1
    make_session()
    with sqlite3.connect(sessions / "sessions.db") as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    before = (sessions / "sessions.db").read_bytes()
    with pytest.raises(SessionError, match=f"in version {version} .* reads version {FORMAT}"):
        listing()
    with Session.new() as session, pytest.raises(SessionError, match="continues unsaved"):
        session.record(None, [Turn("hello")])
    assert (sessions / "sessions.db").read_bytes() == before


# Disks


def test_a_session_on_a_full_disk_is_read_and_continues_unsaved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without room for the memory that SQLite shares, even reading failed."""
    make_session()

    def fail(*_: object) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
        raise error

    monkeypatch.setattr(database_module, "connect", fail)
    with Session.open("mine") as session:
        turns = [*session.contents.turns, Turn("more")]
        with pytest.raises(SessionError, match="disk I/O error: the chat continues unsaved"):
            session.record(None, turns)
    assert [turn.user for turn in read_session("mine").turns] == ["hello"]


def test_what_a_killed_process_left_in_the_log_is_read_on_a_read_only_disk(
    sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
session = Session.open("mine", create=True)
session.record(None, [Turn("hello")])
session.show("half a reply")
os.kill(os.getpid(), signal.SIGKILL)
"""
    run_elsewhere(program)
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


def test_a_network_disk_gets_a_rollback_journal(
    sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write-ahead log needs memory that the processes share, which no network has."""
    monkeypatch.setattr(platform, "on_network_disk", lambda path: True)
    with Session.open("mine", create=True) as session:
        session.record(None, [Turn("hello")])
        session.show("yes")
        assert not (sessions / "sessions.db-wal").exists()
        assert read_session("mine").turns[0].reply == "yes"
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("kind", "is_network"),
    [("nfs4", True), ("smbfs", True), ("fuse.sshfs", True), ("ext4", False), ("apfs", False)],
)
def test_the_nearest_file_system_says_whether_a_disk_is_on_the_network(
    kind: str, is_network: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psutil

    mounted = [
        SimpleNamespace(mountpoint="/", fstype="nfs"),
        SimpleNamespace(mountpoint=str(tmp_path), fstype=kind),
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounted)
    assert platform.on_network_disk(tmp_path / "a" / "b.db") == is_network


# Several processes


def test_several_processes_create_and_fill_one_database(sessions: Path) -> None:
    program = """
with Session.open(sys.argv[2], create=True) as session:
    turns = []
    for n in range(20):
        turns.append(Turn(f"{sys.argv[2]} {n}"))
        session.record(None, turns)
        for _ in range(10):
            session.show("x")
        turns[-1] = Turn(turns[-1].user, "x" * 10, finish_reason="stop")
        session.record(None, turns)
"""
    processes = [elsewhere(program, f"s{n}") for n in range(4)]
    for process in processes:
        _, stderr = process.communicate()
        assert (process.returncode, stderr) == (0, "")
    assert sorted(names_by_use()) == ["s0", "s1", "s2", "s3"]
    for name in names_by_use():
        turns = read_session(name).turns
        assert [turn.user for turn in turns] == [f"{name} {n}" for n in range(20)]
        assert {turn.reply for turn in turns} == {"x" * 10}


KILLER = """
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int synced(int descriptor, long call) {
    static int syncs;
    const char *last = getenv("KILLED_AT_SYNC");
    if (last && ++syncs == atoi(last)) kill(getpid(), SIGKILL);
    return syscall(call, descriptor);
}
int fsync(int descriptor) { return synced(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return synced(descriptor, SYS_fdatasync); }
"""
CHAT = """
with Session.open(sys.argv[2], create=True) as session:
    turns = []
    for line in sys.stdin:
        turns.append(Turn(f"{len(turns)} {line}"))
        session.record(None, turns)
        turns[-1] = Turn(turns[-1].user, line, finish_reason="stop")
        session.record(None, turns)
        print("saved", flush=True)
"""


@pytest.fixture
def killer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are killed at the sync whose number is in KILLED_AT_SYNC, before it returns."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("needs Linux and a C compiler")
    source, library = tmp_path / "killer.c", tmp_path / "killer.so"
    source.write_text(KILLER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))


@pytest.mark.usefixtures("killer")
@pytest.mark.parametrize(
    "syncs", [(3, 5), pytest.param(range(1, 20), marks=pytest.mark.slow, id="all")]
)
def test_a_chat_killed_while_it_syncs_costs_neither_session_anything(
    sessions: Path, monkeypatch: pytest.MonkeyPatch, syncs: Sequence[int]
) -> None:
    """Afterwards, frames of the dead process follow those of the living one in SQLite's log. That
    was taken for damage, and the database was replaced while the living chat was writing to it."""
    message = "long " * 6000
    living = elsewhere(CHAT, "living")
    assert living.stdin is not None
    assert living.stdout is not None
    for said, sync in enumerate(syncs, start=1):
        monkeypatch.setenv("KILLED_AT_SYNC", str(sync))
        dying = elsewhere(CHAT, f"dying {sync}")
        reported, stderr = dying.communicate(f"{message}\n" * 4)
        living.stdin.write("short\n")
        living.stdin.flush()
        assert living.stdout.readline() == "saved\n"
        names = names_by_use()
        assert "living" in names
        saved = read_session(f"dying {sync}").turns if f"dying {sync}" in names else []
        assert [turn.reply.strip() for turn in saved][: reported.count("saved")] == [
            message.strip()
        ] * reported.count("saved")
        contents = read_session("living")
        assert [turn.user for turn in contents.turns] == [f"{n} short\n" for n in range(said)]
        assert contents.notices == ()
        if dying.returncode == 0:
            break
        assert (dying.returncode, stderr) == (-signal.SIGKILL, "")
    else:
        assert len(syncs) == 2
    assert living.communicate("") == ("", "")
    assert [path.name for path in sessions.glob("sessions.db*")] == ["sessions.db"]


def test_a_database_put_in_place_of_the_open_one_is_noticed(
    sessions: Path,
) -> None:
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
