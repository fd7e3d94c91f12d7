"""The names and directories of sessions. Light, because shell completion imports it.

`session` decides what a session contains.
"""

import re
import stat
import unicodedata
from contextlib import AbstractContextManager
from difflib import get_close_matches
from pathlib import Path

from mlxchat import paths
from mlxchat.errors import SessionError
from mlxchat.files import reported_as

TRANSCRIPT = "transcript.jsonl"

MAX_NAME_CHARS = 100
MAX_NAME_BYTES = 250  # file systems take 255
_NAME = re.compile(r"\w(?:[\w .-]*[\w-])?")


def names_by_use() -> list[str]:
    """Names of all sessions, most recently used first. Raises SessionError."""
    found: list[tuple[int, str]] = []
    with session_errors(f"list {paths.sessions_dir()}"):
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
            # List it: reading it will report what is wrong.
            found.append((0, name))
    return [name for _, name in sorted(found, reverse=True)]


def check_name(name: str) -> None:
    """Raises SessionError, describing valid names, for an invalid one."""
    if not is_name(name):
        raise SessionError(
            f"invalid session name {name[:MAX_NAME_CHARS]!r}: use letters, digits, spaces and "
            f"-_., at most {MAX_NAME_CHARS} characters, starting with a letter or digit and not "
            "ending with a space or dot"
        )


def already_exists(name: str) -> SessionError:
    return SessionError(f"session {name!r} already exists: choose another name")


def is_name(name: str) -> bool:
    return (
        len(name) <= MAX_NAME_CHARS
        and _NAME.fullmatch(name) is not None
        and len(name.encode()) <= MAX_NAME_BYTES
    )


def path_of(name: str) -> Path:
    return paths.sessions_dir() / name


def as_saved(name: str) -> str:
    """The name as the session's directory spells it; unchanged if there is no such session.

    Names that differ only in case or in the encoding of accents are the same, on every system,
    because the file system of macOS treats them so. Raises SessionError.
    """
    with session_errors(f"list {paths.sessions_dir()}"):
        try:
            found = [path.name for path in paths.sessions_dir().iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return name
    if name in found:
        return name
    return next((each for each in sorted(found) if _folded(each) == _folded(name)), name)


def _folded(name: str) -> str:
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def not_found(name: str) -> SessionError:
    """The error for a missing session, with the name most like it."""
    near = get_close_matches(name, names_by_use(), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return SessionError(f"no session named {name!r}{hint}")


def directory_of(name: str) -> Path:
    """The directory of an existing session.

    Raises SessionError for an invalid name, a missing session, and a link to somewhere else.
    """
    check_name(name)
    directory = path_of(as_saved(name))
    try:
        mode = directory.lstat().st_mode
    except FileNotFoundError:
        raise not_found(name) from None
    except OSError as error:
        raise SessionError(f"cannot access session {name!r}: {error.strerror}") from error
    if not stat.S_ISDIR(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "not a directory"
        raise SessionError(f"{directory} is {kind}, so it is not a session")
    return directory


def session_errors(action: str) -> AbstractContextManager[None]:
    return reported_as(SessionError, action)
