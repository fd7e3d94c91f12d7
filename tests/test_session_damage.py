"""Damage to the database of sessions costs what is damaged, and is named."""

import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mlxchat import paths
from mlxchat.chat.turn import Turn
from mlxchat.errors import SessionError
from mlxchat.sessions.listing import listing, read_session, search
from mlxchat.sessions.repair import repair
from mlxchat.sessions.session import Session
from mlxchat.sessions.tables import PAGE_BYTES
from tests.conftest import examples

SESSIONS = ("one", "two", "three")
TURNS = 12


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database of several sessions, with texts within a page and over many."""
    directory = tmp_path_factory.mktemp("sound") / "sessions"
    before, paths.sessions_dir = paths.sessions_dir, lambda: directory
    chance = random.Random(0)
    try:
        for name in SESSIONS:
            with Session.open(name, create=True) as session:
                session.journal.settings({"model": "tiny"})
                session.journal.record(f"You are {name}.", turns_of(name, chance))
    finally:
        paths.sessions_dir = before
    return (directory / "sessions.db").read_bytes()


def turns_of(name: str, chance: random.Random) -> list[Turn]:
    """Every text names its session and turn, and says so up to its end."""
    turns: list[Turn] = []
    for n in range(TURNS):
        words = chance.choice([3, 30, 300, 3_000])
        reply = " ".join(f"{name}{n}" for _ in range(words))
        ids = np.arange(words, dtype=np.int32)
        turns.append(Turn(f"question {n} of {name}", reply, ids, True, finish_reason="stop"))
    return turns


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "sessions"
    monkeypatch.setattr(paths, "sessions_dir", lambda: directory)
    return directory


def put(sessions: Path, data: bytes, log: bytes = b"") -> None:
    shutil.rmtree(sessions, ignore_errors=True)
    sessions.mkdir()
    (sessions / "sessions.db").write_bytes(data)
    if log:
        (sessions / "sessions.db-wal").write_bytes(log)


def use_all() -> tuple[set[str], list[str]]:
    """Use every session in every way; return the messages of all turns that are left, and
    everything that was said about the others. Nothing but SessionError may be raised."""
    said: list[str] = []
    # Each use may find the damage, and repair the database; sessions may have other names then.
    for _ in range(3):
        try:
            return use_each(said), said
        except SessionError as error:
            said.append(str(error))
    return set(), said


def use_each(said: list[str]) -> set[str]:
    found: set[str] = set()
    names = [each.name for each in listing()]
    search("question")
    for name in names:
        with Session.open(name) as session:
            turns = session.journal.contents.turns
            session.journal.record(None, [*turns, Turn("more")])
        contents = read_session(name)
        said += contents.notices
        for turn in contents.turns:
            check_whole(turn)
            found.add(turn.user)
    return found - {"more"}


def check_whole(turn: Turn) -> None:
    """A turn is as it was written, or missing."""
    if turn.user == "more":
        return
    _, n, _, name = turn.user.split()
    words = turn.reply.split()
    assert set(words) == {f"{name}{n}"}
    assert turn.ids is not None
    assert turn.ids.tolist() == list(range(len(words)))
    assert turn.finish_reason == "stop"


EVERYTHING = {f"question {n} of {name}" for name in SESSIONS for n in range(TURNS)}


def lost_are_named(found: set[str], said: list[str]) -> bool:
    """By the session's name, unless that is damaged, too."""
    text = "\n".join(said)
    renamed = re.search(r"'(recovered|damaged)-\d", text) is not None
    lost = [each.split() for each in EVERYTHING - found]
    return renamed or all(
        f"turn {int(n) + 1} of session {name!r}" in text for _, n, _, name in lost
    )


def test_an_undamaged_database_is_read_completely(sessions: Path, sound: bytes) -> None:
    put(sessions, sound)
    assert use_all() == (EVERYTHING, [])


def test_a_page_of_zeros_costs_the_turns_in_it(sessions: Path, sound: bytes) -> None:
    pages = len(sound) // PAGE_BYTES
    whole = 0
    for page in range(pages):
        data = bytearray(sound)
        data[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = bytes(PAGE_BYTES)
        put(sessions, bytes(data))
        found, said = use_all()
        # A page of long texts' beginnings holds a few turns.
        assert len(found) >= len(EVERYTHING) - 8
        assert lost_are_named(found, said)
        whole += found == EVERYTHING
        if said and "repaired" in said[0]:
            (kept,) = (path for path in sessions.iterdir() if path.name.endswith(said_suffix(said)))
            assert kept.read_bytes() == bytes(data)
    assert whole > 0


def said_suffix(said: list[str]) -> str:
    return said[0].partition("sessions.db.damaged")[2].partition(";")[0]


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 7)), min_size=1, max_size=30))
@hypothesis_settings(max_examples=examples(40), deadline=None, derandomize=True)
def test_flipped_bits_never_change_a_turn(
    sound: bytes, tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]]
) -> None:
    data = bytearray(sound)
    for place, bit in flips:
        data[place % len(data)] ^= 1 << bit
    directory = tmp_path_factory.mktemp("flipped") / "sessions"
    before, paths.sessions_dir = paths.sessions_dir, lambda: directory
    try:
        put(directory, bytes(data))
        found, said = use_all()
        # A bit of the format's version says so itself.
        assert lost_are_named(found, said) or "newer mlxchat" in said[0], (found, said)
    finally:
        paths.sessions_dir = before
        shutil.rmtree(directory.parent)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.7, 0.99])
@pytest.mark.parametrize("more", [0, 1, 100])
def test_what_is_left_of_a_truncated_database_is_read(
    sessions: Path, sound: bytes, share: float, more: int
) -> None:
    data = sound[: int(share * len(sound)) // PAGE_BYTES * PAGE_BYTES + more]
    put(sessions, data)
    # A session's state shows that an empty file was not always empty.
    (sessions / "1.safetensors").write_bytes(b"state")
    found, said = use_all()
    assert said
    assert lost_are_named(found, said) or "no session could be read" in said[0]
    if share == 0.99:
        assert len(found) > len(EVERYTHING) // 2


def test_a_destroyed_header_costs_nothing(sessions: Path, sound: bytes) -> None:
    put(sessions, b"\xff" * 100 + sound[100:])
    found, said = use_all()
    assert found == EVERYTHING
    assert said[0].startswith(f"{sessions / 'sessions.db'} was damaged and has been repaired: ")
    assert "nothing is lost; the damaged file is kept as " in said[0]
    assert len(said) == 1


@pytest.mark.parametrize("name", [b"turns", b"sessions", b"pieces", b"words", b"folded", b"serial"])
@pytest.mark.parametrize("changed", [b"x", b"\xce"])
def test_a_damaged_name_of_a_table_or_column_costs_nothing(
    sessions: Path, sound: bytes, name: bytes, changed: bytes
) -> None:
    """SQLite's message about it was not text, or the table was never found again."""
    page = sound[:PAGE_BYTES].replace(name, changed + name[1:])
    put(sessions, page + sound[PAGE_BYTES:])
    assert use_all()[0] == EVERYTHING


def test_a_changed_letter_costs_one_turn(sessions: Path, sound: bytes) -> None:
    """SQLite itself does not notice it."""
    put(sessions, sound.replace(b"question 3 of two", b"question 4 of two", 1))
    found, said = use_all()
    assert found == EVERYTHING - {"question 3 of two"}
    assert said == ["turn 4 of session 'two' is damaged and is left out"]
    # It is named again, and its place stays empty.
    assert list(read_session("two").notices) == said
    assert next(each for each in listing() if each.name == "two").turns == TURNS + 1


def test_a_session_whose_own_row_is_damaged_keeps_its_turns(sessions: Path, sound: bytes) -> None:
    put(sessions, sound.replace(b"You are two.", b"You are 2222", 1))
    saved = read_session("two")
    assert len(saved.turns) == TURNS
    assert (saved.system, saved.settings) == (None, {})
    assert saved.notices == ("the system prompt and the settings of session 'two' are damaged",)
    assert "damaged" in str(next(each for each in listing() if each.name == "two").error)


def test_pages_in_the_log_are_recovered_too(sessions: Path, sound: bytes) -> None:
    """After a kill, the latest turns are only there."""
    put(sessions, sound)
    program = """
import os, signal, sys
from pathlib import Path
from mlxchat import paths
from mlxchat.chat.turn import Turn
from mlxchat.sessions.session import Session

paths.sessions_dir = lambda: Path(sys.argv[1])
session = Session.open("new", create=True)
session.journal.record(None, [Turn("only in the log", "yes", finish_reason="stop"), Turn("next")])
session.journal.show("half a reply")
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program, str(sessions)], check=False)
    log = (sessions / "sessions.db-wal").read_bytes()
    assert b"only in the log" not in (sessions / "sessions.db").read_bytes()
    put(sessions, b"\xff" * 100 + sound[100:], log)
    report = repair(sessions / "sessions.db")
    assert report.startswith("nothing is lost")
    saved = read_session("new")
    assert [turn.user for turn in saved.turns] == ["only in the log", "next"]
    assert saved.turns[1].reply == "half a reply"
    assert len(listing()) == len(SESSIONS) + 1


@pytest.mark.parametrize("place", [3, 20, 30, *range(40, 100_000, 7_001)])
def test_a_flipped_bit_in_the_log_costs_at_most_what_is_in_its_page(
    sessions: Path, place: int
) -> None:
    """SQLite takes a damaged frame for the end of the log, and drops what was committed later."""
    program = """
import os, signal, sys
from pathlib import Path
from mlxchat import paths
from mlxchat.chat.turn import Turn
from mlxchat.sessions.session import Session

paths.sessions_dir = lambda: Path(sys.argv[1])
session = Session.open("mine", create=True)
turns = []
for n in range(12):
    turns.append(Turn(f"question {n} of mine", f"mine{n} " * 30, finish_reason="stop"))
    session.journal.record(None, turns)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program, str(sessions)], check=False)
    log = sessions / "sessions.db-wal"
    data = bytearray(log.read_bytes())
    assert len(data) > 100_000
    data[place] ^= 16
    log.write_bytes(data)
    with pytest.raises(SessionError, match="has been repaired"):
        listing()
    saved = read_session("mine")
    assert len(saved.turns) + len(saved.notices) >= 12
    # A page of the log has several versions of the same turns.
    assert len(saved.turns) >= 8


def test_a_log_cut_off_in_its_last_transaction_is_not_damaged(sessions: Path, sound: bytes) -> None:
    """A power cut may leave half of what was never committed."""
    put(sessions, sound)
    program = """
import os, signal, sys
from pathlib import Path
from mlxchat import paths
from mlxchat.chat.turn import Turn
from mlxchat.sessions.session import Session

paths.sessions_dir = lambda: Path(sys.argv[1])
session = Session.open("mine", create=True)
session.journal.record(None, [Turn("one", "yes", finish_reason="stop")])
session.journal.record(None, [Turn("two", "yes", finish_reason="stop")])
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program, str(sessions)], check=False)
    log = sessions / "sessions.db-wal"
    whole = log.read_bytes()
    for cut in range(0, 3 * PAGE_BYTES, 1_001):
        put(sessions, sound, whole[: len(whole) - cut])
        assert [turn.user for turn in read_session("mine").turns] in (["one"], ["two"])


def test_turns_without_their_session_get_a_name_that_is_free(sessions: Path, sound: bytes) -> None:
    put(sessions, sound)
    with Session.open("recovered-2", create=True) as session:
        session.journal.record(None, [Turn("mine", "yes", finish_reason="stop")])
    data = (sessions / "sessions.db").read_bytes()
    put(sessions, b"\xff" * 100 + data[100:].replace(b"You are two.", b"You are 2222"))
    with pytest.raises(SessionError, match="has been repaired"):
        listing()
    assert {each.name for each in listing()} == {"one", "three", "recovered-2", "recovered-2_"}
    assert len(read_session("recovered-2_").turns) == TURNS


def test_two_processes_that_notice_the_damage_repair_it_once(sessions: Path, sound: bytes) -> None:
    put(sessions, b"\xff" * 100 + sound[100:])
    program = """
import sys
from pathlib import Path
from mlxchat import paths
from mlxchat.errors import SessionError
from mlxchat.sessions.listing import listing

paths.sessions_dir = lambda: Path(sys.argv[1])
for _ in range(3):
    try:
        print(len(listing()))
        break
    except SessionError as error:
        assert "repaired" in str(error), error
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(sessions)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    assert [process.communicate()[0] for process in processes] == [f"{len(SESSIONS)}\n"] * 3
    assert len([path for path in sessions.iterdir() if "damaged" in path.name]) == 1


@pytest.mark.parametrize("moves", range(5))
def test_a_repair_that_is_killed_while_it_moves_files_loses_nothing(
    sessions: Path, sound: bytes, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    """With the damaged database moved away and the new one not there yet, an empty one was made."""
    put(sessions, b"\xff" * 100 + sound[100:], log=b"not a log")
    done: list[Path] = []

    def move(path: Path, target: Path) -> Path:
        if len(done) == moves:
            raise KeyboardInterrupt
        done.append(target)
        return real(path, target)

    real = Path.replace
    with monkeypatch.context() as context:
        context.setattr(Path, "replace", move)
        with pytest.raises((KeyboardInterrupt, SessionError)):
            listing()
    assert use_all()[0] == EVERYTHING
    assert len([path for path in sessions.iterdir() if "damaged" in path.name]) >= 1


def test_a_repair_that_runs_out_of_space_changes_nothing(
    sessions: Path, sound: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"\xff" * 100 + sound[100:]
    put(sessions, data)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr("mlxchat.sessions.repair.reindex", fail)
        with pytest.raises(SessionError, match="could not be repaired: No space left on device"):
            listing()
    assert (sessions / "sessions.db").read_bytes() == data
    assert use_all()[0] == EVERYTHING
