"""Output of commands that list things: a table for people, lines for programs."""

import json
import shutil
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any


def write(text: str) -> None:
    """To stdout. Raises OutputError."""
    from mlxchat.terminal.text_output import Stdout

    Stdout().write(text)


def write_json_lines(values: Iterable[dict[str, Any]]) -> None:
    write("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values))


def write_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    right_aligned: Collection[str] = (),
    cut: Collection[str] | None = None,
    *,
    paged: bool = False,
) -> None:
    """A table on a terminal, tab-separated lines in a pipe; nothing if there are no rows. With
    `paged`, a table longer than the terminal is shown in a pager. See `format_table` for `cut`."""
    from mlxchat.terminal.table import format_table
    from mlxchat.terminal.text_output import Stdout

    stdout = Stdout()
    if rows:
        for_terminal = stdout.is_terminal
        table = format_table(
            headers, rows, right_aligned=right_aligned, cut=cut, for_terminal=for_terminal
        )
        if paged and for_terminal and table.count("\n") >= shutil.get_terminal_size().lines:
            from mlxchat.terminal.manual_page import page

            page(table)
        else:
            stdout.write(table)


def minute(seconds: float) -> str:
    """A time in seconds since 1970, to the minute."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
