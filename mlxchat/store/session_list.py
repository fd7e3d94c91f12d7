"""All sessions: list, read and search them, and rename or delete closed ones.

Nothing here needs a model. `session` is for a chat in progress.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mlxchat.errors import SessionError
from mlxchat.files import Lock, holder, remove_unfinished
from mlxchat.store.saved import Saved, read
from mlxchat.store.session import FILES, LOCK, SNAPSHOT, move
from mlxchat.store.session_names import (
    TRANSCRIPT,
    directory_of,
    names_by_use,
    path_of,
    session_errors,
)

FIRST_CHARS = 200


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A summary of a session. `updated` is in seconds since 1970, `bytes` its size on the disk,
    `first` the start of the first message or, if that is long, of the question at its end after the
    documents, `open_in` the process that has it open. If it cannot be
    read, `error` is the reason, and everything from the transcript is missing."""

    name: str
    turns: int
    forgotten: int
    updated: float
    bytes: int
    first: str
    model: str | None
    open_in: int | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Find:
    """A line that contains the word. Turns count from 1; `role` is "user" or "assistant"."""

    name: str
    turn: int
    role: str
    line: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A session that could not be searched, and why."""

    name: str
    error: str


def latest() -> str | None:
    """The most recently used session. Raises SessionError."""
    return next((name for name in names_by_use() if not path_of(name).is_symlink()), None)


def listing() -> list[SessionInfo]:
    """All sessions, most recently used first. Raises SessionError."""
    return [_info(name) for name in names_by_use()]


def read_session(name: str) -> Saved:
    """Read a session, even if it is open. Raises SessionError."""
    return read(directory_of(name) / TRANSCRIPT)


def rename(old: str, new: str) -> None:
    """Raises SessionError: not found, open, or the new name is taken or invalid."""
    with _locked(old):
        move(old, new)


def remove(name: str) -> None:
    """Delete a session permanently. Raises SessionError, and deletes nothing, if it is open or its
    directory contains other files."""
    with _locked(name) as directory, session_errors(f"remove session {name!r}"):
        remove_unfinished(directory / SNAPSHOT)
        _remove_files(directory)
        directory.rmdir()


def search(word: str) -> Iterator[Find | Unreadable]:
    """Every line that contains the word, ignoring case, most recent session first."""
    wanted = word.casefold()
    for name in names_by_use():
        try:
            saved = read_session(name)
        except SessionError as error:
            yield Unreadable(name, str(error))
            continue
        for number, turn in enumerate(saved.turns, start=1):
            for role, text in (("user", turn.user), ("assistant", turn.reply)):
                for line in text.splitlines():
                    if wanted in line.casefold():
                        yield Find(name, number, role, line.strip())


def prune_snapshots(keep: int = 10) -> int:
    """Delete all snapshots except those of the `keep` most recently used sessions; return how many.

    Snapshots can be made again. One that cannot be deleted is left for the next time.
    """
    pruned = 0
    for name in names_by_use()[keep:]:
        if not os.path.lexists(path_of(name) / SNAPSHOT):
            continue
        with suppress(SessionError, OSError), _locked(name) as directory:
            remove_unfinished(directory / SNAPSHOT)
            (directory / SNAPSHOT).unlink()
            pruned += 1
    return pruned


def _info(name: str) -> SessionInfo:
    directory = path_of(name)
    error: str | None = None
    try:
        saved = read_session(name)
    except SessionError as raised:
        saved, error = Saved(updated_s=_changed_s(directory / TRANSCRIPT)), str(raised)
    model = saved.settings.get("model")
    return SessionInfo(
        name=name,
        turns=len(saved.turns),
        forgotten=sum(turn.forgotten for turn in saved.turns),
        updated=saved.updated_s,
        bytes=_bytes_in(directory),
        first=_question(saved.turns[0].user)[:FIRST_CHARS] if saved.turns else "",
        model=model if isinstance(model, str) else None,
        open_in=holder(directory / LOCK),
        error=error,
    )


def _question(message: str) -> str:
    if len(message) <= FIRST_CHARS:
        return message
    _, blank, end = message.rstrip().rpartition("\n\n")
    return f"… {end}" if blank else message


def _changed_s(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _bytes_in(directory: Path) -> int:
    total = 0
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


@contextmanager
def _locked(name: str) -> Iterator[Path]:
    """The directory of a session, locked so that no other process has it open or can open it."""
    directory = directory_of(name)
    with session_errors(f"lock session {name!r}"):
        lock = Lock(directory / LOCK, f"session {name!r}")
    try:
        yield directory
    finally:
        lock.release()


def _remove_files(directory: Path) -> None:
    # Through a descriptor, so that a link to another directory cannot take its place.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with os.scandir(descriptor) as entries:
            names = [entry.name for entry in entries]
        strangers = [each for each in names if each not in FILES]
        if strangers:
            some = ", ".join(map(repr, sorted(strangers)[:5]))
            raise SessionError(f"{directory} is not deleted: it contains other files: {some}")
        for each in sorted(names, key=LOCK.__eq__):
            os.unlink(each, dir_fd=descriptor)
    finally:
        os.close(descriptor)
