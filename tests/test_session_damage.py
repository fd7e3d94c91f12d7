"""Damage to the database of sessions is named, and nothing that is not damaged is replaced."""

import random
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mlxchat import paths
from mlxchat.chat.state import Turn
from mlxchat.errors import SessionError
from mlxchat.sessions import backup
from mlxchat.sessions.listing import listing, read_session, search
from mlxchat.sessions.session import Session
from tests.conftest import examples

SESSIONS = ("one", "two", "three")
PAGE_BYTES = 4096
TURNS = 12


def turns_of(name: str) -> dict[str, Turn]:
    """By what is asked. Texts name their session and turn, and say so up to their end."""
    turns: dict[str, Turn] = {}
    for n, words in enumerate(random.Random(name).choices([3, 30, 300, 3_000], k=TURNS)):
        reply = " ".join(f"{name}{n}" for _ in range(words))
        ids, user = np.arange(words, dtype=np.int32), f"question {n} of {name}"
        turns[user] = Turn(user, reply, ids, finish_reason="stop")
    return turns


EVERYTHING = {user: turn for name in SESSIONS for user, turn in turns_of(name).items()}
THIRD = "WHERE value LIKE '%question 3 of two%'"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database of several sessions, with texts within a page and over many."""
    directory = tmp_path_factory.mktemp("sound") / "sessions"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "sessions_dir", lambda: directory)
        for name in SESSIONS:
            with Session.open(name, create=True) as session:
                session.settings({"model": "tiny"})
                session.record(f"You are {name}.", list(turns_of(name).values()))
    return (directory / "sessions.db").read_bytes()


def put(sessions: Path, data: bytes) -> None:
    shutil.rmtree(sessions, ignore_errors=True)
    sessions.mkdir()
    (sessions / "sessions.db").write_bytes(data)


def use_all() -> tuple[set[str], list[str]]:
    """Use every session in every way; return the messages of all turns that are left, which are as
    they were written, and everything that was said about the others."""
    said: list[str] = []
    # Finding damage ends a command; the next one has a new database.
    for _ in range(2):
        try:
            found, names = set[str](), [each.name for each in listing()]
            search("question")
            for name in names:
                with Session.open(name) as session:
                    session.record(None, [*session.contents.turns, Turn("more")])
                contents = read_session(name)
                said += contents.notices
                for turn in contents.turns:
                    if turn.user != "more":
                        whole = EVERYTHING[turn.user]
                        assert replace(turn, ids=None) == replace(whole, ids=None)
                        np.testing.assert_array_equal(turn.ids, whole.ids)
                        found.add(turn.user)
            return found, said
        except SessionError as error:
            said.append(str(error))
    return set(), said


def losses_are_named(found: set[str], said: list[str]) -> bool:
    """Each turn or, if SQLite cannot read it, the whole database."""
    text = "\n".join(said)
    lost = [each.split() for each in EVERYTHING.keys() - found]
    named = (f"turn {int(n) + 1} of session {name!r}" for _, n, _, name in lost)
    return "sessions.db" in text or all(each in text for each in named)


def set_aside(sessions: Path) -> list[Path]:
    return list(sessions.glob("sessions.db.aside-*/sessions.db"))


flips = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 7)), min_size=1, max_size=30)


@given(st.integers(0, 100) | flips)
@hypothesis_settings(max_examples=examples(20))
def test_a_page_of_zeros_and_flipped_bits_cost_what_is_named_and_change_no_turn(
    sound: bytes, harm: int | list[tuple[int, int]]
) -> None:
    data = bytearray(sound)
    if isinstance(harm, int):
        start = harm * PAGE_BYTES % len(data)
        data[start : start + PAGE_BYTES] = bytes(PAGE_BYTES)
    else:
        for place, bit in harm:
            data[place % len(data)] ^= 1 << bit
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        sessions = Path(directory) / "sessions"
        patch.setattr(paths, "sessions_dir", lambda: sessions)
        put(sessions, bytes(data))
        found, said = use_all()
        assert losses_are_named(found, said), (found, said)
        for kept in set_aside(sessions):
            assert said[0].startswith(f"{sessions / 'sessions.db'} was damaged and is now ")
            assert kept.parent.name in said[0]
            assert kept.read_bytes() == bytes(data)
            assert len(said) == 1


def test_a_damaged_database_in_which_a_chat_is_saved_stays(sessions: Path, sound: bytes) -> None:
    put(sessions, sound)
    with Session.open("two") as session:
        session.record(None, [])
        session._database.close()
        (sessions / "sessions.db").write_bytes(b"\xff" * 100 + sound[100:])
        with pytest.raises(SessionError, match=r"was damaged: end the chat in process \d+, then"):
            listing()
        with pytest.raises(SessionError, match=r"end the chat.*continues unsaved"):
            session.record(None, [Turn("lost")])
    assert set_aside(sessions) == []
    with pytest.raises(SessionError, match="was damaged and is now in"):
        listing()
    assert len(set_aside(sessions)) == 1


def test_several_that_notice_the_damage_set_it_aside_once(sessions: Path, sound: bytes) -> None:
    """It is no database any more: a new one begins."""
    damaged = b"\xff" * 100 + sound[100:]
    put(sessions, damaged)

    def notice(_: int) -> str:
        with suppress(SessionError):
            return str(listing())
        return "try again"

    with ThreadPoolExecutor() as readers:
        assert set(readers.map(notice, range(3))) <= {"try again", "[]"}
    assert listing() == []
    (aside,) = set_aside(sessions)
    assert aside.read_bytes() == damaged


def test_a_healthy_database_is_never_set_aside_for_an_error_of_its_repair(
    sessions: Path, sound: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its index is damaged, and another process is writing, or the disk is full."""
    put(sessions, sound)
    with sqlite3.connect(sessions / "sessions.db") as writing:
        writing.execute("DELETE FROM words_data WHERE id > 10")
        writing.commit()
        writing.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(backup, "BUSY_S", 0.0)
        with pytest.raises(SessionError, match="could not be set aside: database is locked"):
            search("question")
        writing.rollback()
    assert set_aside(sessions) == []
    assert use_all() == (EVERYTHING.keys(), [])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("DELETE FROM words_data WHERE id > 10", []),
        ("UPDATE words_data SET block = zeroblob(50) WHERE id > 10", []),
        # SQLite cannot even drop an index that it cannot open.
        ("UPDATE words_data SET block = x'0011223344' WHERE id = 10", []),
        ("DELETE FROM words_data", []),
        # A changed letter or number, which SQLite itself does not notice.
        (
            f"UPDATE turns SET value = replace(value, '3 of', '4 of') {THIRD}",
            ["turn 4 of session 'two' is damaged and is left out"],
        ),
        (
            f"UPDATE turns SET session = 1 {THIRD}",
            ["session 'two' lacks 1 turn", "turn 13 of session 'one' is damaged and is left out"],
        ),
    ],
)
def test_a_damaged_search_index_is_rebuilt_and_a_damaged_row_costs_one_turn(
    sessions: Path, sound: bytes, damage: str, said: list[str]
) -> None:
    put(sessions, sound)
    with sqlite3.connect(sessions / "sessions.db") as connection:
        connection.execute(damage)
    assert use_all() == (EVERYTHING.keys() - ({"question 3 of two"} if said else set()), said)
    # What is lost is named again, and its place stays empty.
    assert list(read_session("two").notices) == said[:1]
    assert next(each for each in listing() if each.name == "two").turns == TURNS + 1
    assert len(search("two7")) == 1
    assert set_aside(sessions) == []


def test_a_session_whose_own_row_is_damaged_keeps_its_turns(sessions: Path, sound: bytes) -> None:
    put(sessions, sound.replace(b"You are two.", b"You are 2222", 1))
    saved = read_session("two")
    assert len(saved.turns) == TURNS
    assert (saved.system, saved.settings) == (None, {})
    assert saved.notices == ("the system prompt and the settings of session 'two' are damaged",)
    assert "damaged" in str(next(each for each in listing() if each.name == "two").error)
    with Session.open("two") as session:
        session.record(None, [*saved.turns, Turn("more")])
        session.record(None, [*saved.turns, Turn("more")], remembered="[")
    assert [each.error for each in listing()] == [None] * 3
    saved = read_session("two")
    assert (len(saved.turns), saved.remembered) == (TURNS + 1, ())
    assert saved.notices == ("the remembered lines of session 'two' are damaged",)
