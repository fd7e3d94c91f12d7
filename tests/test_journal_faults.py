"""A session whose disk is full for a while, or whose writing is interrupted, loses nothing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest

from mlxchat import paths
from mlxchat.chat.state import Turn
from mlxchat.errors import SessionError
from mlxchat.sessions.database import names_by_use
from mlxchat.sessions.listing import read_session
from mlxchat.sessions.session import Session
from tests.failing_database import FailingDatabase
from tests.test_journal import answered, saved_state, state


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> FailingDatabase:
    return FailingDatabase(monkeypatch)


@pytest.fixture
def chat(database: FailingDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `chat_with_faults` in a fresh place."""

    def run(*failing: int) -> "Observed":
        directory = Path(mkdtemp(dir=tmp_path)) / "sessions"
        monkeypatch.setattr(paths, "sessions_dir", lambda: directory)
        database.executed.clear()
        database.failing = failing
        return chat_with_faults(database)

    return run


class Observed:
    """Calls the session and counts its errors and recoveries; what is interrupted, except a piece,
    is called again."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.complaints: list[str] = []
        self.recoveries = 0

    def call(self, method: Callable[..., None], *arguments: Any) -> None:
        try:
            method(*arguments)
        except SessionError as error:
            self.complaints.append(str(error))
        except KeyboardInterrupt:
            if method != self.session.show:
                method(*arguments)
        if method == self.session.record:
            self.recoveries += self.session.recovered


def chat_with_faults(database: FailingDatabase) -> Observed:
    """A little of everything. After each step the session can be read, and never loses what could
    already be read; once the disk works again, everything is there."""
    with Session.open("mine", create=True) as session:
        observed = Observed(session)
        turns: list[Turn] = []
        seen: dict[str, str] = {}

        def call(method: Callable[..., None], *arguments: Any) -> None:
            observed.call(method, *arguments)
            failing, database.failing = database.failing, ()
            count = len(database.executed)
            found: dict[str, str] = {}
            if names_by_use():
                found = {turn.user: turn.reply for turn in read_session("mine").turns}
            del database.executed[count:]
            database.failing = failing
            for turn in turns:
                assert turn.user in found or turn.user not in seen
                assert found.get(turn.user, "").startswith(seen.get(turn.user, ""))
                assert turn.reply.startswith(found.get(turn.user, ""))
            seen.update(found)

        call(session.settings, {"model": "tiny"})
        for n in range(2):
            turns.append(Turn(f"message {n}"))
            call(session.record, "Be kind.", turns)
            for piece in ("some", " thing"):
                turns[-1] = replace(turns[-1], reply=turns[-1].reply + piece)
                call(session.show, piece)
            ids = np.array([n, 2])
            turns[-1] = replace(turns[-1], ids=ids, finish_reason="stop")
            call(session.record, "Be kind.", turns)
            call(session.settings, {"window": n})
        del turns[0]
        call(session.record, "Be kind.", turns)
        turns[0] = replace(turns[0], forgotten=True)
        call(session.record, None, turns)
        database.failing = ()
        turns.append(answered("and in the end"))
        call(session.record, None, turns)
    assert saved_state() == state(None, turns)
    assert read_session("mine").settings == {"model": "tiny", "window": 1}
    assert names_by_use() == ["mine"]
    return observed


@pytest.mark.parametrize("length", [1, 5, 1000])
def test_a_full_disk_damages_nothing_and_is_reported_once(
    length: int, chat: Any, database: FailingDatabase
) -> None:
    chat()
    last = [n for n, each in enumerate(database.executed) if each == "BEGIN IMMEDIATE"][-1]
    for first in range(last):
        observed = chat(*range(first, first + length))
        assert (len(observed.complaints), observed.recoveries) == (1, 1)
        assert "database or disk is full" in observed.complaints[0]
        assert observed.complaints[0].endswith(": the chat continues unsaved")


@pytest.mark.parametrize("too_late", [False, True])
def test_an_interruption_at_any_statement_does_no_harm(
    too_late: bool, chat: Any, database: FailingDatabase
) -> None:
    """Ctrl-C between the end of a transaction and the next line of Python."""
    chat()
    database.error, database.too_late = KeyboardInterrupt(), too_late
    for number in range(len(database.executed)):
        assert chat(number).complaints == []
