"""Where sessions lie and what they may be called. Imports nothing heavy: a shell asks for names.

What is in a session is `session`'s business.
"""

import re
import stat
import unicodedata
from contextlib import AbstractContextManager
from pathlib import Path

from mlxchat import paths
from mlxchat.errors import SessionError
from mlxchat.files import reported_as

TRANSCRIPT = "transcript.jsonl"

MOST_NAME_CHARS = 100
MOST_NAME_BYTES = 250  # file systems take 255
_NAME = re.compile(r"\w(?:[\w .-]*[\w-])?")


def names_by_use() -> list[str]:
    """Names of all sessions, the one that was used last first. Raises SessionError."""
    found: list[tuple[int, str]] = []
    with plainly(f"list {paths.sessions_dir()}"):
        try:
            names = [path.name for path in paths.sessions_dir().iterdir()]
        except FileNotFoundError:
            return []
    for name in filter(is_name, names):
        try:
            found.append(((path_of(name) / TRANSCRIPT).lstat().st_mtime_ns, name))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            # It is there, and whoever reads it will be told what is wrong with it.
            found.append((0, name))
    return [name for _, name in sorted(found, reverse=True)]


def check_name(name: str) -> None:
    """Raises SessionError, saying what a name may be, for anything else."""
    if not is_name(name):
        raise SessionError(
            f"{name[:MOST_NAME_CHARS]!r} cannot be a session's name: letters, digits, spaces and "
            f"-_. are allowed, {MOST_NAME_CHARS} characters at most, beginning with a letter or "
            "digit and not ending with a space or dot"
        )


def is_name(name: str) -> bool:
    return (
        len(name) <= MOST_NAME_CHARS
        and _NAME.fullmatch(name) is not None
        and len(name.encode()) <= MOST_NAME_BYTES
    )


def path_of(name: str) -> Path:
    return paths.sessions_dir() / name


def as_saved(name: str) -> str:
    """The name as the session's directory spells it; without such a session, as it is.

    The file system of macOS takes names that differ in case alone, or in how an accent is encoded,
    for the same: so do we, everywhere. Raises SessionError.
    """
    with plainly(f"list {paths.sessions_dir()}"):
        try:
            found = [path.name for path in paths.sessions_dir().iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return name
    if name in found:
        return name
    return next((each for each in sorted(found) if _folded(each) == _folded(name)), name)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def directory_of(name: str) -> Path:
    """The directory of a session that exists, and lies where all of them do.

    Raises SessionError for no such name or session, and for a link to somewhere else.
    """
    check_name(name)
    directory = path_of(as_saved(name))
    try:
        mode = directory.lstat().st_mode
    except FileNotFoundError:
        raise SessionError(f"there is no session {name!r}") from None
    except OSError as error:
        raise SessionError(f"cannot look at session {name!r}: {error.strerror}") from error
    if not stat.S_ISDIR(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "no directory"
        raise SessionError(f"{directory} is {kind}, and so no session")
    return directory


def plainly(what: str) -> AbstractContextManager[None]:
    return reported_as(SessionError, what)
