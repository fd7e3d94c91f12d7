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
from tests.test_journal import saved_state, state


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> FailingDatabase:
    return FailingDatabase(monkeypatch)


@pytest.fixture
def chat(database: FailingDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A little of everything, while statements fail; returns the errors, and how many recoveries.

    What is interrupted, except a piece, is called again. After each step the session can be read,
    and never loses what could already be read; once the disk works again, everything is there."""

    def run(*failing: int) -> tuple[list[str], int]:
        directory = Path(mkdtemp(dir=tmp_path)) / "sessions"
        monkeypatch.setattr(paths, "sessions_dir", lambda: directory)
        database.executed.clear()
        database.failing = failing
        complaints, recoveries = list[str](), list[bool]()
        turns, seen = list[Turn](), dict[str, str]()

        def call(method: Callable[..., None], *arguments: Any) -> None:
            database.failing = failing
            try:
                method(*arguments)
            except SessionError as error:
                complaints.append(str(error))
            except KeyboardInterrupt:
                if method != session.show:
                    method(*arguments)
            if method == session.record:
                recoveries.append(session.recovered)
            database.failing, written, found = (), len(database.executed), dict[str, str]()
            if names_by_use():
                found = {turn.user: turn.reply for turn in read_session("mine").turns}
            del database.executed[written:]
            for turn in turns:
                assert turn.user in found or turn.user not in seen
                assert found.get(turn.user, "").startswith(seen.get(turn.user, ""))
                assert turn.reply.startswith(found.get(turn.user, ""))
            seen.update(found)

        with Session.open("mine", create=True) as session:
            call(session.settings, {"model": "tiny"})
            for n in range(2):
                turns.append(Turn(f"message {n}"))
                call(session.record, "Be kind.", turns)
                for piece in ("some", " thing"):
                    turns[-1] = replace(turns[-1], reply=turns[-1].reply + piece)
                    call(session.show, piece)
                turns[-1] = replace(turns[-1], ids=np.array([n, 2]), finish_reason="stop")
                call(session.record, "Be kind.", turns)
                call(session.settings, {"window": n})
            del turns[0]
            call(session.record, "Be kind.", turns)
            turns[0] = replace(turns[0], forgotten=True)
            call(session.record, None, turns)
            failing = ()
            turns.append(Turn("and in the end", "yes", finish_reason="stop"))
            call(session.record, None, turns)
        assert saved_state() == state(None, turns)
        assert read_session("mine").settings == {"model": "tiny", "window": 1}
        assert names_by_use() == ["mine"]
        return complaints, sum(recoveries)

    return run


@pytest.mark.parametrize("length", [1, 5, 1000])
def test_a_full_disk_damages_nothing_and_is_reported_once(
    length: int, chat: Any, database: FailingDatabase
) -> None:
    chat()
    # The very last one erases words, and may fail.
    last = [n for n, each in enumerate(database.executed) if each == "BEGIN IMMEDIATE"][-2]
    for first in range(last):
        (complaint,), recoveries = chat(*range(first, first + length))
        assert complaint.endswith("database or disk is full: the chat continues unsaved")
        assert recoveries == 1


@pytest.mark.parametrize(("too_late", "first"), [(False, 0), (False, 1), (True, 0), (True, 1)])
def test_an_interruption_at_any_statement_does_no_harm(
    too_late: bool, first: int, chat: Any, database: FailingDatabase
) -> None:
    """Ctrl-C between the end of a transaction and the next line of Python."""
    chat()
    database.error, database.too_late = KeyboardInterrupt(), too_late
    for number in range(first, len(database.executed), 2):
        assert chat(number)[0] == []
