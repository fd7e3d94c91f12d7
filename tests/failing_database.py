"""SQLite whose statements fail when a test wants them to."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import pytest

WRITING = ("BEGIN IMMEDIATE", "INSERT", "UPDATE", "DELETE", "COMMIT")


class FailingDatabase:
    """Records in `executed` what writes; the numbers in `failing` raise `error` or a full disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing: Sequence[int] = ()
        self.executed: list[str] = []
        self.error: BaseException | None = None
        # Whether a failing statement succeeds first, as far as the file is concerned.
        self.too_late = False
        database, real = self, sqlite3.connect

        class Failing(sqlite3.Connection):
            def execute(self, *arguments: Any) -> sqlite3.Cursor:
                return database.run(arguments[0], lambda: super(Failing, self).execute(*arguments))

        def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
            return real(*arguments, **options, factory=Failing)

        monkeypatch.setattr(sqlite3, "connect", connect)

    def run(self, statement: str, execute: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
        if not statement.startswith(WRITING):
            return execute()
        self.executed.append(statement)
        if len(self.executed) - 1 not in self.failing:
            return execute()
        if self.too_late:
            execute()
        if self.error is not None:
            raise self.error
        # A real error, with its code: this table can have no second page.
        with sqlite3.connect(":memory:") as full:
            full.execute("PRAGMA max_page_count = 1")
            full.execute("CREATE TABLE t (x)")
        raise AssertionError
