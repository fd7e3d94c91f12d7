"""Takes over the sessions of earlier versions, which had a directory each. Their files stay."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path

from mlxchat.errors import SessionError
from mlxchat.sessions.names import folded, is_name
from mlxchat.sessions.records import (
    SessionRecord,
    as_text,
    beginning,
    insert_session,
    insert_turn,
    now,
    size_bytes,
)
from mlxchat.sessions.saved import Saved, read_earlier
from mlxchat.sessions.serials import Serials

TRANSCRIPT = "transcript.jsonl"


def take_over(connection: sqlite3.Connection, directory: Path) -> None:
    """Insert every session in the directory. One that cannot be read is listed with the reason.
    Raises OSError."""
    taken: set[str] = set()
    for path in _transcripts(directory):
        name = next(each for each in _names(path.parent.name) if folded(each) not in taken)
        taken.add(folded(name))
        try:
            saved = read_earlier(path)
        except SessionError as error:
            insert_session(connection, SessionRecord(name, updated=now(), error=str(error)))
        else:
            insert_saved(connection, name, saved)


def insert_saved(connection: sqlite3.Connection, name: str, saved: Saved) -> None:
    """A new session with these turns. Raises sqlite3.IntegrityError if the name is taken."""
    updated = datetime.fromtimestamp(saved.updated_s, UTC)
    record = SessionRecord(
        name,
        updated=as_text(updated),
        system=saved.system,
        settings=saved.settings,
        serials=Serials.of(saved.serials),
        last_serial=saved.last_serial,
        forgotten=sum(turn.forgotten for turn in saved.turns),
        text_bytes=sum(map(size_bytes, saved.turns)),
        first=beginning(saved.turns),
    )
    id_ = insert_session(connection, record)
    for serial, turn in zip(saved.serials, saved.turns, strict=True):
        insert_turn(connection, id_, serial, turn)


def _transcripts(directory: Path) -> list[Path]:
    found: list[Path] = []
    with suppress(FileNotFoundError):
        for path in sorted(directory.iterdir()):
            transcript = path / TRANSCRIPT
            if is_name(path.name) and not path.is_symlink() and transcript.exists():
                found.append(transcript)
    return found


def _names(name: str) -> Iterator[str]:
    """The name, and others if another session has it in upper or lower case."""
    return chain([name], (f"{name}-{n}" for n in count(2)))
