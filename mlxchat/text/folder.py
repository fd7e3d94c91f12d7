"""The files that a path stands for if it is a folder or a pattern such as `src/**/*.py`.

As in a shell, hidden files have to be named. Links to folders are not followed, so no circle of
them is ever entered. Reading the files is left to `documents`.
"""

import fnmatch
import os
from collections.abc import Iterator
from pathlib import PurePath

from mlxchat.errors import InputError, UsageError

SPECIAL = frozenset("*?[")
ANY_DEPTH = "**"


def files_in(path: str) -> list[str] | None:
    """The files in the folder, or that match the pattern, in the order of their names; None if
    `path` is neither.

    Raises UsageError if there are none, InputError if the folder cannot be read.
    """
    if path.startswith("~") and not os.path.lexists(path):
        # The shell does not expand it in a quoted pattern.
        path = os.path.expanduser(path)  # noqa: PTH111
    if os.path.isdir(path):  # noqa: PTH112
        _check_readable(path)
        found, problem = _below("" if path == "." else path, [ANY_DEPTH]), "the folder has no files"
    elif not os.path.lexists(path) and not SPECIAL.isdisjoint(path):
        found, problem = _matches(path), "no file matches"
    else:
        return None
    files = sorted(set(found), key=lambda each: PurePath(each).parts)
    if not files:
        raise UsageError(f"{readable_name(path)}: {problem}")
    return files


def readable_name(path: str) -> str:
    """The path on one line: a name may contain anything but NUL and a slash."""
    return "".join(
        each if each.isprintable() else "\ufffd" if _is_undecoded(each) else _escaped(each)
        for each in path
    )


def _is_undecoded(character: str) -> bool:
    return "\ud800" <= character <= "\udfff"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _check_readable(folder: str) -> None:
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise InputError(f"cannot read {readable_name(folder)}: {error.strerror}") from error


def _matches(pattern: str) -> Iterator[str]:
    root = "/" if pattern.startswith("/") else ""
    parts = [part for part in pattern.split("/") if part]
    # Twice any depth is any depth.
    once = [part for at, part in enumerate(parts) if parts[at : at + 2] != [ANY_DEPTH] * 2]
    return _below(root, once)


def _below(folder: str, parts: list[str]) -> Iterator[str]:
    """Yield the files below the folder whose path matches the parts of a pattern, and the folders
    that cannot be read, so that reading them fails."""
    # A folder may be deeper than Python can recurse.
    waiting = [(folder, parts)]
    while waiting:
        folder, (part, *rest) = waiting.pop()
        if part != ANY_DEPTH and SPECIAL.isdisjoint(part):
            path = _join(folder, part)
            if not rest and os.path.lexists(path) and not os.path.isdir(path):  # noqa: PTH112
                yield path
            elif rest and os.path.isdir(path):  # noqa: PTH112
                waiting.append((path, rest))
            continue
        if part == ANY_DEPTH:
            waiting.append((folder, rest or ["*"]))
            rest = [part, *rest]
        try:
            entries = _entries(folder, part)
        except OSError:
            yield folder
            continue
        for path, is_folder in entries:
            if not is_folder and not rest:
                yield path
            elif is_folder and rest:
                waiting.append((path, rest))


def _entries(folder: str, part: str) -> list[tuple[str, bool]]:
    """The entries that match a part of a pattern, and whether they are folders. Any depth has no
    links to folders. Raises OSError."""
    found: list[tuple[str, bool]] = []
    with os.scandir(folder or ".") as entries:
        for entry in entries:
            if not _is_match(entry.name, part):
                continue
            is_folder = _is_folder(entry)
            if not (part == ANY_DEPTH and is_folder and entry.is_symlink()):
                found.append((_join(folder, entry.name), is_folder))
    return found


def _is_match(name: str, part: str) -> bool:
    if name.startswith(".") and not part.startswith("."):
        return False
    return fnmatch.fnmatchcase(name, part)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a circle of links
        return False


def _join(folder: str, name: str) -> str:
    return os.path.join(folder, name)  # noqa: PTH118
