"""The files that a path stands for if it is a folder or a pattern such as `src/**/*.py`.

As in a shell, hidden files have to be named. Links to folders are not followed, so no circle of
them is ever entered. Reading the files is left to `documents`.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePath

from mlxchat.errors import InputError, UsageError
from mlxchat.units import printable

SPECIAL = frozenset("*?[")


def files_in(path: str) -> list[str] | None:
    """The files in the folder, or that match the pattern, in the order of their names; None if
    `path` is neither.

    Raises UsageError if there are none, InputError if the folder cannot be read.
    """
    if path.startswith("~") and not os.path.lexists(path):
        # The shell does not expand it in a quoted pattern.
        path = os.path.expanduser(path)  # noqa: PTH111
    if Path(path).is_dir():
        _check_readable(path)
        found, problem = _below(path), "the folder has no files"
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
    return printable(re.sub("[\ud800-\udfff]", "\ufffd", path))


def _check_readable(folder: str) -> None:
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise InputError(f"cannot read {readable_name(folder)}: {error.strerror}") from error


def _below(root: str) -> Iterator[str]:
    """Yield the files in the folder, and the folders in it that cannot be read, so that reading
    them fails."""
    unreadable: list[OSError] = []
    for folder, folders, names in os.walk(root, onerror=unreadable.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (str(Path(folder, name)) for name in names if not name.startswith("."))
    yield from (error.filename for error in unreadable)


def _matches(pattern: str) -> Iterator[str]:
    parts = PurePath(pattern).parts
    if parts[-1] == "**":
        parts = (*parts, "*")
    root = Path(parts[0]) if parts[0] == "/" else Path()
    names_hidden = any(part.startswith(".") for part in parts)
    for path in root.glob(os.path.join(*parts[root != Path() :])):  # noqa: PTH118
        if not path.is_dir() and (names_hidden or not any(p.startswith(".") for p in path.parts)):
            yield str(path)
