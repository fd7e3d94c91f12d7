"""The tables of the database of sessions, and the checksum that each row carries.

SQLite notices damage to its own structures, but not to the texts in them. Light, because shell
completion imports it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence

# The columns of each table after its id, in order. The checksum is of all before it.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    # `settings` is JSON; from `turns` on, for lists.
    "sessions": (
        *("name TEXT NOT NULL", "created TEXT", "updated TEXT", "system TEXT"),
        *("settings TEXT NOT NULL", "turns INTEGER NOT NULL"),
        *("forgotten INTEGER NOT NULL", "text_bytes INTEGER NOT NULL", "first TEXT NOT NULL"),
        "folded TEXT NOT NULL UNIQUE",
    ),
    # `ids` are little-endian int32, `later_thoughts` JSON.
    "turns": (
        *("user TEXT NOT NULL", "reply TEXT NOT NULL", "ids BLOB", "exact INTEGER NOT NULL"),
        *("pinned INTEGER NOT NULL", "forgotten INTEGER NOT NULL", "finish_reason TEXT NOT NULL"),
        *("thought TEXT NOT NULL", "later_thoughts TEXT NOT NULL", "time TEXT NOT NULL"),
        "session INTEGER NOT NULL",
    ),
}
NAMES: Mapping[str, tuple[str, ...]] = {
    table: (*(column.split()[0] for column in columns), "checksum")
    for table, columns in COLUMNS.items()
}
# The words of each turn, by its id, found in all their forms.
INDEX = "CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='porter unicode61')"

SCHEMA = (
    *(
        f"CREATE TABLE {table} (id INTEGER PRIMARY KEY AUTOINCREMENT, {', '.join(columns)}, "
        "checksum INTEGER NOT NULL)"
        for table, columns in COLUMNS.items()
    ),
    "CREATE INDEX turns_by_session ON turns (session)",
    "CREATE INDEX sessions_by_use ON sessions (updated)",
    INDEX,
)

Value = str | int | bytes | None


INSERTION = {
    table: f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
    for table, names in NAMES.items()
}
UPDATE = {
    table: f"UPDATE {table} SET {', '.join(f'{name} = ?' for name in names)} WHERE id = ?"
    for table, names in NAMES.items()
}
# The id, and the columns in order.
SELECTION = {table: f"SELECT id, {', '.join(names)} FROM {table}" for table, names in NAMES.items()}


def sealed(table: str, values: Sequence[Value]) -> tuple[Value, ...]:
    """The values with their checksum."""
    return (*values, _checksum(table, values))


def is_sound(table: str, row: Sequence[object]) -> bool:
    """Whether the row, without its id, is as it was `sealed`."""
    *values, checksum = row
    try:
        return len(row) == len(NAMES[table]) and checksum == _checksum(table, values)
    except TypeError:
        return False


def _checksum(table: str, values: Sequence[object]) -> int:
    return zlib.crc32(json.dumps([table, *values], default=bytes.hex).encode())
