"""A small SQLite database that several processes share. It may be lost: a damaged one is replaced
with an empty one."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from mlxchat.files import exclusive, open_file

# How long to wait for another process's transaction, which takes milliseconds.
BUSY_S = 10.0

T = TypeVar("T")


class Database:
    """The database in `file`, created on first use with the tables of `schema`. A database of
    another `format` counts as damaged. The directory must exist. Thread-safe."""

    def __init__(self, file: Path, schema: str, format: int) -> None:
        self._file = file
        self._schema = schema
        self._format = format
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        """Close it; any method opens it again."""
        with self._lock, suppress(sqlite3.Error):
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def do(self, work: Callable[[sqlite3.Connection], T], writing: bool = False) -> T:
        """Run the transaction. If the database is damaged, replace it and run again."""
        with self._lock:
            try:
                try:
                    return self._run(work, writing)
                except sqlite3.Error as error:
                    if not _is_damage(error):
                        raise
                    self._set_aside()
                    return self._run(work, writing)
            except sqlite3.Error as error:
                raise OSError(f"cannot use {self._file}: {error}") from error

    def _run(self, work: Callable[[sqlite3.Connection], T], writing: bool) -> T:
        if self._connection is None:
            # Only one process at a time may open, create or replace the database.
            with exclusive(self._file.parent):
                self._connection = self._opened()
        if not writing:
            return work(self._connection)
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            return work(self._connection)

    def _set_aside(self) -> None:
        self.close()
        with exclusive(self._file.parent):
            # Another process may have done this already.
            if not self._file.exists() or self._is_sound():
                return
            for suffix in ("-wal", "-shm"):
                Path(f"{self._file}{suffix}").unlink(missing_ok=True)
            self._file.replace(self._file.with_suffix(".damaged"))

    def _opened(self) -> sqlite3.Connection:
        """Open or create the database, private to its owner, as are SQLite's other files.

        Raises sqlite3.DatabaseError for another kind of file, or another format.
        """
        os.close(open_file(self._file, os.O_RDWR | os.O_CREAT))
        database = sqlite3.connect(
            self._file, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            database.execute("PRAGMA journal_mode = WAL")
            # A power cut may lose the last rows but nothing else, so no row waits for the disk.
            database.execute("PRAGMA synchronous = NORMAL")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version not in (0, self._format):
                raise sqlite3.DatabaseError(f"unknown format {version}")
            if version == 0:
                database.executescript(f"{self._schema} PRAGMA user_version = {self._format};")
        except BaseException:
            database.close()
            raise
        return database

    def _is_sound(self) -> bool:
        try:
            with closing(self._opened()) as database:
                return database.execute("PRAGMA quick_check(1)").fetchone() == ("ok",)
        except sqlite3.Error as error:
            if not _is_damage(error):
                raise
            return False


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether the file itself is damaged: SQLite's other errors are subclasses of this one."""
    return type(error) is sqlite3.DatabaseError
