"""The terminal: its size, its colours, its character encoding."""

import locale
import os
import shutil
import sys
from collections.abc import Iterator

from mlxchat.doctor.finding import Finding, ok, warning

MIN_COLUMNS = 40


def terminal() -> Iterator[Finding]:
    if sys.stdout is None or not sys.stdout.isatty():
        yield ok("terminal", "stdout is not a terminal: plain text")
    else:
        from mlxchat.terminal import is_dumb

        size = shutil.get_terminal_size()
        found = f"{size.columns} columns, {size.lines} lines, {_colours(is_dumb())}"
        if size.columns < MIN_COLUMNS:
            yield warning("terminal", found, "make it wider: tables are hard to read")
        elif is_dumb():
            yield warning("terminal", found, "set TERM correctly to get colours and line editing")
        else:
            yield ok("terminal", found)
    yield _characters()


def _colours(dumb: bool) -> str:
    if os.environ.get("NO_COLOR"):
        return "no colours: NO_COLOR is set"
    if dumb:
        return f"TERM={os.environ.get('TERM', '')}: no colours, plain input"
    if os.environ.get("COLORTERM", "") in ("truecolor", "24bit"):
        return "16 million colours"
    return "256 colours" if "256color" in os.environ.get("TERM", "") else "16 colours"


def _characters() -> Finding:
    encoding = locale.getencoding().lower()
    if encoding.replace("-", "") == "utf8":
        return ok("characters", "UTF-8")
    # Not every macOS has C.UTF-8, and not every Linux has en_US.UTF-8.
    utf8 = "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8"
    return warning(
        "characters",
        f"the locale's encoding is {encoding}, but models write UTF-8",
        f"export LANG={utf8}, or another UTF-8 locale",
    )
