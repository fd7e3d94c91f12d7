"""An index of stored pages of keys and values: a tree of prefixes, in a small database.

A page is a child of the page before it, so prompts with the same beginning share its pages.
`prefix_cache` knows what a page's file contains. Several processes may use a directory at the same
time. No problem here should stop a generation: every failure is an OSError, and a damaged database
is replaced with an empty one.

Source: blocks named by a hash of their tokens and of the block before them, from vLLM's automatic
prefix caching (Kwon et al., 2023); evicting the least recently used leaves of a prefix tree, from
SGLang's RadixAttention (Zheng et al., 2023).
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mlxchat.files import make_private_directory
from mlxchat.store.database import Database

if TYPE_CHECKING:
    import numpy as np

FORMAT = 3
SUFFIX = ".safetensors"
ROOT = ""  # the parent of a text's first page

# Kinds of rows: a page of a prefix, or a block, which has no parent and no children.
PAGE, BLOCK = "page", "block"

# Younger files without a row may be in the process of being written.
STRAY_AFTER_S = 600.0

SCHEMA = """
CREATE TABLE IF NOT EXISTS pages (
    key TEXT PRIMARY KEY, parent TEXT NOT NULL, depth INT NOT NULL, bytes INT NOT NULL,
    used REAL NOT NULL, model TEXT NOT NULL, has_state INT NOT NULL, kind TEXT NOT NULL,
    label TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS children ON pages (parent);
"""
BELOW = """
WITH RECURSIVE below (key) AS (
    SELECT ? UNION SELECT pages.key FROM pages JOIN below ON pages.parent = below.key)
SELECT key FROM below
"""
MODELS = """
SELECT page.model, COUNT(*), SUM(page.depth - COALESCE(parent.depth, 0)), SUM(page.bytes),
    MAX(page.used)
FROM pages page LEFT JOIN pages parent ON parent.key = page.parent
GROUP BY page.model ORDER BY MAX(page.used) DESC
"""
ALONE = """
SELECT parent, (SELECT COUNT(*) FROM pages WHERE parent = ?) FROM pages WHERE key = ?
"""
LEAVES = """
SELECT key, model, depth, used, kind, label FROM pages page
WHERE NOT EXISTS (SELECT 1 FROM pages WHERE parent = page.key) ORDER BY used DESC, key
"""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page:
    """A row. `depth` counts tokens up to the end of this page; `used` is in seconds since 1970;
    `model` is a readable name; `has_state` is whether the page includes recurrent states; `kind`
    is PAGE or BLOCK; `label` is the file's name or the start of the text.
    """

    key: str
    parent: str
    depth: int
    bytes: int
    used: float
    model: str
    has_state: bool
    kind: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """Totals of one model. A page counts once, however many prefixes share it."""

    model: str
    pages: int
    tokens: int
    bytes: int
    used: float


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """A prefix that is not part of a longer one, with the key of its last page; or a block."""

    key: str
    model: str
    tokens: int
    used: float
    kind: str
    label: str = ""


def page_keys(model_print: str, ids: np.ndarray, page_tokens: int) -> list[str]:
    """The keys of the complete pages of `ids: (T,)`, in order."""
    keys: list[str] = []
    parent = ROOT
    for end in range(page_tokens, len(ids) + 1, page_tokens):
        digest = hashlib.blake2b(f"{model_print}\n{parent}\n".encode(), digest_size=20)
        digest.update(ids[end - page_tokens : end].astype("<i4").tobytes())
        parent = digest.hexdigest()
        keys.append(parent)
    return keys


class PrefixIndex:
    """The pages in `directory`, which is created on first use. `clock` returns seconds since 1970.

    Thread-safe. Each method is one transaction, and raises OSError if the disk or the database
    fails.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        self._pages = directory / "pages"
        self._database = Database(directory / "index.sqlite", SCHEMA, FORMAT)
        self._clock = clock

    def path_of(self, key: str) -> Path:
        """Path of the page's file. Its directory exists once any method has been called."""
        return self._pages / f"{key}{SUFFIX}"

    def chain(self, keys: Iterable[str]) -> list[Page]:
        """The rows of the first keys, up to the first missing one."""

        def walk(database: sqlite3.Connection) -> list[Page]:
            rows: list[Page] = []
            for key in keys:
                row = database.execute("SELECT * FROM pages WHERE key = ?", (key,)).fetchone()
                if row is None:
                    break
                *page, has_state, kind, label = row
                rows.append(Page(*page, has_state=bool(has_state), kind=kind, label=label))
            return rows

        return self._do(walk)

    def touch(self, keys: Iterable[str]) -> None:
        """Mark the pages as used now."""
        now = self._clock()
        rows = [(now, key) for key in keys]
        statement = "UPDATE pages SET used = MAX(used, ?) WHERE key = ?"
        self._do(lambda database: database.executemany(statement, rows), writing=True)

    def add(
        self,
        key: str,
        parent: str,
        *,
        depth: int,
        size_bytes: int,
        model: str,
        has_state: bool = False,
        kind: str = PAGE,
        label: str = "",
    ) -> bool:
        """Add a page whose file has just been written.

        Returns False if another process has deleted the file or the parent page. Then this page
        could not be reached, and its file is deleted.
        """
        page = Page(key, parent, depth, size_bytes, self._clock(), model, has_state, kind, label)

        def enter(database: sqlite3.Connection) -> bool:
            found = database.execute("SELECT 1 FROM pages WHERE key = ?", (parent,)).fetchone()
            if (parent != ROOT and found is None) or not self.path_of(key).exists():
                self.path_of(key).unlink(missing_ok=True)
                return False
            row = astuple(page)
            database.execute("INSERT OR REPLACE INTO pages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            return True

        return self._do(enter, writing=True)

    def store(
        self, key: str, parent: str, write: Callable[[Path], int], *, limit_bytes: int, **row: Any
    ) -> bool:
        """Call `write` to write the page's file and return its size, then enforce the limit. `row`
        are the other arguments of `add`. Returns what `add` returns."""
        added = self.add(key, parent, size_bytes=write(self.path_of(key)), **row)
        if self.total_bytes() > limit_bytes:
            self.prune(limit_bytes)
        return added

    def remove(self, key: str) -> None:
        """Delete a page and all its descendants, with their files."""

        def forget(database: sqlite3.Connection) -> None:
            self._delete(database, [row[0] for row in database.execute(BELOW, (key,)).fetchall()])

        self._do(forget, writing=True)

    def remove_prefix(self, key: str) -> None:
        """Delete the prefix with this last page, except for pages shared with other prefixes."""

        def forget(database: sqlite3.Connection) -> None:
            alone: list[str] = []
            following = key
            while following != ROOT:
                row = database.execute(ALONE, (following, following)).fetchone()
                if row is None or row[1] > len(alone[:1]):
                    break
                alone.append(following)
                following = row[0]
            self._delete(database, alone)

        self._do(forget, writing=True)

    def total_bytes(self) -> int:
        """Total size of all pages' files."""
        statement = "SELECT COALESCE(SUM(bytes), 0) FROM pages"
        return self._do(lambda database: database.execute(statement).fetchone()[0])

    def prune(self, limit_bytes: int) -> int:
        """Delete the least recently used leaves until the rest is within the limit, and all rows
        without files and files without rows. Return how many pages were deleted."""

        def work(database: sqlite3.Connection) -> int:
            rows = database.execute("SELECT key, parent, bytes, used FROM pages").fetchall()
            doomed = _doomed([_Node(*row) for row in rows], self._files(), limit_bytes)
            self._delete(database, doomed)
            self._delete_strays({row[0] for row in rows})
            return len(doomed)

        return self._do(work, writing=True)

    def clear(self) -> int:
        """Delete all pages; return how many there were."""
        return self.prune(-1)

    def models(self) -> list[StoredModel]:
        """Totals of each model, most recently used first."""
        return self._do(lambda database: [StoredModel(*row) for row in database.execute(MODELS)])

    def prefixes(self) -> list[StoredPrefix]:
        """The longest stored prefixes, and all blocks, most recently used first."""
        return self._do(lambda database: [StoredPrefix(*row) for row in database.execute(LEAVES)])

    def close(self) -> None:
        """Close it; any method opens it again."""
        self._database.close()

    def _do(self, work: Callable[[sqlite3.Connection], T], writing: bool = False) -> T:
        make_private_directory(self._pages)
        return self._database.do(work, writing)

    # Files

    def _files(self) -> set[str]:
        """Keys of the pages that have files."""
        return {path.name.removesuffix(SUFFIX) for path in self._pages.iterdir()}

    def _delete(self, database: sqlite3.Connection, keys: Sequence[str]) -> None:
        # Within the transaction: a process that adds a page checks for its file in another one.
        database.executemany("DELETE FROM pages WHERE key = ?", [(key,) for key in keys])
        for key in keys:
            self.path_of(key).unlink(missing_ok=True)

    def _delete_strays(self, keys: set[str]) -> None:
        """Delete files without a row, left by a kill or a replaced database."""
        written_before = self._clock() - STRAY_AFTER_S
        for path in self._pages.iterdir():
            if path.name.removesuffix(SUFFIX) not in keys:
                with suppress(OSError):
                    if path.lstat().st_mtime < written_before:
                        path.unlink()


@dataclass(frozen=True, slots=True)
class _Node:
    key: str
    parent: str
    bytes: int
    used: float


def _doomed(nodes: Sequence[_Node], files: set[str], limit_bytes: int) -> list[str]:
    """Keys to delete, in this order: first what cannot be reached, then leaf by leaf."""
    kept = _reachable(nodes, files)
    last_used = {key: node.used for key, node in kept.items()}
    from_leaves = list(reversed(kept.values()))
    for node in from_leaves:
        if node.parent != ROOT:
            # A page is deleted after all its descendants.
            last_used[node.parent] = max(last_used[node.parent], last_used[node.key])
    doomed = [node.key for node in nodes if node.key not in kept]
    total = sum(node.bytes for node in from_leaves)
    for node in sorted(from_leaves, key=lambda node: last_used[node.key]):
        if total <= limit_bytes:
            break
        doomed.append(node.key)
        total -= node.bytes
    return doomed


def _reachable(nodes: Sequence[_Node], files: set[str]) -> dict[str, _Node]:
    """Nodes that an unbroken chain of pages with files leads to, by key, each after its parent."""
    below: dict[str, list[_Node]] = {}
    for node in nodes:
        if node.key in files:
            below.setdefault(node.parent, []).append(node)
    reached: dict[str, _Node] = {}
    waiting = below.get(ROOT, [])
    while waiting:
        node = waiting.pop()
        reached[node.key] = node
        waiting.extend(below.get(node.key, []))
    return reached
