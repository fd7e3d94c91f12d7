"""The tree of stored prefixes: looked up page by page, pruned from its leaves, self-repairing."""

import multiprocessing
import os
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mlxchat.store import database
from mlxchat.store.prefix_index import (
    ROOT,
    STRAY_AFTER_S,
    PrefixIndex,
    StoredModel,
    StoredPrefix,
    page_keys,
)

SIZE = 100


class Clock:
    """Advances a second each time, long after any file was written."""

    def __init__(self, now: float = 4e9) -> None:
        self.now = now

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def index(tmp_path: Path, clock: Clock) -> Iterator[PrefixIndex]:
    index = PrefixIndex(tmp_path / "prefixes", clock)
    yield index
    index.close()


def add(index: PrefixIndex, key: str, parent: str = ROOT, *, model: str = "m") -> bool:
    """Add a page of ten tokens. Keys spell paths: "abc" is a child of "ab"."""
    index.chain([])
    index.path_of(key).write_bytes(bytes(SIZE))
    depth = 10 * len(key)
    return index.add(key, parent, depth=depth, size_bytes=SIZE, model=model, has_state=False)


def add_text(index: PrefixIndex, text: str, **options: str) -> None:
    """Add all pages of a text, one per letter."""
    for end in range(1, len(text) + 1):
        assert add(index, text[:end], text[: end - 1], **options)


def prefixes(text: str) -> list[str]:
    return [text[:end] for end in range(1, len(text) + 1)]


def found(index: PrefixIndex, text: str) -> str:
    chain = index.chain(prefixes(text))
    return chain[-1].key if chain else ""


def rows_and_files(index: PrefixIndex) -> tuple[set[str], set[str]]:
    with sqlite3.connect(index._database._file) as database:
        rows = {row[0] for row in database.execute("SELECT key FROM pages")}
    database.close()
    return rows, index._files()


def test_a_key_identifies_the_model_the_page_and_all_earlier_pages() -> None:
    ids = np.arange(12, dtype=np.int32)
    keys = page_keys("print", ids, 4)
    assert len(set(keys)) == 3
    assert page_keys("print", ids[:11].astype(np.int64), 4) == keys[:2]
    assert page_keys("print", ids[:3], 4) == []
    assert not set(page_keys("other", ids, 4)) & set(keys)
    changed = page_keys("print", np.where(ids == 5, 99, ids), 4)
    assert changed[0] == keys[0]
    assert not set(changed[1:]) & set(keys)


def test_the_chain_ends_at_the_first_missing_page(index: PrefixIndex) -> None:
    add_text(index, "abc")
    assert found(index, "abcd") == "abc"
    assert found(index, "abx") == "ab"
    assert found(index, "x") == ""
    (page, *_) = index.chain(["a"])
    assert (page.depth, page.bytes, page.model, page.has_state) == (10, SIZE, "m", False)


def test_adding_a_page_twice_keeps_the_latest_row(index: PrefixIndex) -> None:
    add(index, "a")
    assert index.add("a", ROOT, depth=10, size_bytes=7, model="m", has_state=True)
    assert index.total_bytes() == 7
    assert index.chain(["a"])[0].has_state


def test_a_page_without_its_parent_or_file_is_not_added(index: PrefixIndex) -> None:
    assert not add(index, "ab", "a")
    assert not index.path_of("ab").exists()
    assert not index.add("x", ROOT, depth=10, size_bytes=1, model="m", has_state=False)
    assert rows_and_files(index) == (set(), set())


def test_removing_a_page_removes_its_descendants(index: PrefixIndex) -> None:
    for text in ("abcd", "abx", "ay"):
        add_text(index, text)
    index.remove("ab")
    assert rows_and_files(index) == ({"a", "ay"}, {"a", "ay"})
    index.remove("never there")


def test_pruning_deletes_the_least_recently_used_leaves(index: PrefixIndex) -> None:
    for text in ("abc", "abd", "xy"):
        add_text(index, text)
    index.touch(prefixes("abc"))
    left = []
    for pages in range(5, -1, -1):
        assert index.prune(pages * SIZE + SIZE // 2) == 1
        left.append(sorted(rows_and_files(index)[0]))
    assert left == [
        ["a", "ab", "abc", "x", "xy"],
        ["a", "ab", "abc", "x"],
        ["a", "ab", "abc"],
        ["a", "ab"],
        ["a"],
        [],
    ]


def test_a_parent_outlives_its_children_even_if_it_seems_older(index: PrefixIndex) -> None:
    add_text(index, "abc")
    add_text(index, "x")
    index.touch(["c", "abc"])
    assert index.prune(3 * SIZE) == 1
    assert rows_and_files(index)[0] == {"a", "ab", "abc"}


def test_after_pruning_any_tree_the_rest_fits_and_can_be_reached(
    index: PrefixIndex, clock: Clock
) -> None:
    chance = random.Random(1)
    for _ in range(30):
        text = "".join(chance.choice("ab") for _ in range(chance.randrange(1, 8)))
        add_text(index, text)
        index.touch(prefixes(text)[: chance.randrange(8)])
        if chance.random() < 0.3:
            limit = chance.randrange(20) * SIZE
            before = len(rows_and_files(index)[0])
            index.prune(limit)
            rows, files = rows_and_files(index)
            assert rows == files
            assert len(rows) == min(before, limit // SIZE)
            assert all(key[:-1] in rows | {ROOT} for key in rows)


def test_pruning_deletes_rows_without_files_and_files_without_rows(
    index: PrefixIndex, clock: Clock
) -> None:
    add_text(index, "abc")
    add_text(index, "ax")
    index.path_of("ab").unlink()
    for name in ("stray.safetensors", ".page.safetensors.k1ll3d", "young.safetensors"):
        path = index.path_of("a").with_name(name)
        path.write_bytes(b"left")
        age_s = 0 if "young" in name else STRAY_AFTER_S + 100
        os.utime(path, (clock.now - age_s, clock.now - age_s))
    assert index.prune(100 * SIZE) == 2
    rows, files = rows_and_files(index)
    assert rows == {"a", "ax"}
    assert files == {"a", "ax", "young"}


def test_unreachable_pages_are_deleted(index: PrefixIndex) -> None:
    """However the database got into this state, they could never be reached."""
    add_text(index, "abc")
    with sqlite3.connect(index._database._file) as database:
        database.execute("UPDATE pages SET parent = 'abc' WHERE key = 'a'")
    database.close()
    assert index.prune(100 * SIZE) == 3
    assert rows_and_files(index) == (set(), set())


def test_clearing_leaves_nothing(index: PrefixIndex) -> None:
    add_text(index, "abc")
    add_text(index, "xy")
    assert index.clear() == 5
    assert rows_and_files(index) == (set(), set())
    assert index.total_bytes() == 0
    assert index.models() == []


def test_the_listing_has_each_model_and_its_longest_prefixes(
    index: PrefixIndex, clock: Clock
) -> None:
    clock.now = 4e9
    add_text(index, "abc", model="llama")
    add_text(index, "abd", model="llama")
    add_text(index, "x", model="gemma")
    assert index.models() == [
        StoredModel("gemma", 1, 10, SIZE, 4e9 + 7),
        StoredModel("llama", 4, 40, 4 * SIZE, 4e9 + 6),
    ]
    assert index.prefixes() == [
        StoredPrefix("x", "gemma", 10, 4e9 + 7, "page"),
        StoredPrefix("abd", "llama", 30, 4e9 + 6, "page"),
        StoredPrefix("abc", "llama", 30, 4e9 + 3, "page"),
    ]


def damage(path: Path, kind: str) -> None:
    data = path.read_bytes()
    if kind == "nonsense":
        path.write_bytes(b"nonsense " * 1000)
    elif kind == "cut off":
        path.write_bytes(data[: len(data) // 2])
    elif kind == "overwritten":
        path.write_bytes(data[:200] + b"\xff" * (len(data) - 200))
    elif kind == "a later format":
        with sqlite3.connect(path) as database:
            database.execute("PRAGMA user_version = 99")
        database.close()


@pytest.mark.parametrize("kind", ["nonsense", "cut off", "overwritten", "a later format"])
def test_a_damaged_index_is_replaced_with_an_empty_one(
    kind: str, index: PrefixIndex, clock: Clock
) -> None:
    add_text(index, "abc")
    index.close()
    damage(index._database._file, kind)
    assert found(index, "abc") == ""
    assert index._database._file.with_suffix(".damaged").exists()
    add_text(index, "xy")
    assert found(index, "xy") == "xy"
    assert rows_and_files(index) == ({"x", "xy"}, {"a", "ab", "abc", "x", "xy"})
    clock.now += STRAY_AFTER_S
    index.prune(100 * SIZE)
    assert rows_and_files(index) == ({"x", "xy"}, {"x", "xy"})


def test_a_process_with_an_open_index_continues_when_another_replaces_it(
    index: PrefixIndex, clock: Clock
) -> None:
    add_text(index, "abc")
    other = PrefixIndex(index._database._file.parent, clock)
    assert found(other, "abc") == "abc"
    other.close()
    index.close()
    damage(index._database._file, "nonsense")
    assert found(other, "abc") == found(index, "abc") == ""
    add_text(index, "ab")
    assert found(other, "ab") == "ab"
    other.close()


def test_an_index_replaced_by_another_process_is_not_replaced_again(
    index: PrefixIndex, clock: Clock
) -> None:
    """Both may find the damage at the same time."""
    other = PrefixIndex(index._database._file.parent, clock)
    add_text(index, "ab")
    other._database._set_aside()
    assert found(other, "ab") == found(index, "ab") == "ab"
    assert not index._database._file.with_suffix(".damaged").exists()
    other.close()


def test_a_locked_or_unwritable_index_is_an_oserror(
    tmp_path: Path, index: PrefixIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        PrefixIndex(tmp_path / "file").chain(["a"])
    monkeypatch.setattr(database, "BUSY_S", 0.05)
    add_text(index, "a")
    holder = sqlite3.connect(index._database._file, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(OSError, match=r"cannot use .*index\.sqlite: database is locked"):
        index.touch(["a"])
    # Reading does not wait.
    assert found(index, "a") == "a"
    holder.close()
    index.touch(["a"])


def test_the_index_is_private_to_its_owner(index: PrefixIndex) -> None:
    before = os.umask(0)
    try:
        index.chain([])
        modes = {
            path.name: path.stat().st_mode & 0o777
            for path in index._database._file.parent.iterdir()
        }
    finally:
        os.umask(before)
    assert modes.pop("pages") == 0o700
    assert index._database._file.parent.stat().st_mode & 0o777 == 0o700
    assert set(modes) >= {"index.sqlite"}
    assert set(modes.values()) == {0o600}


def test_a_closed_index_is_opened_again(index: PrefixIndex) -> None:
    index.close()
    add_text(index, "a")
    index.close()
    index.close()
    assert found(index, "a") == "a"


def fill_and_prune(directory: Path, seed: int) -> None:
    index = PrefixIndex(directory)
    chance = random.Random(seed)
    for _ in range(60):
        text = "".join(chance.choice("ab") for _ in range(6))
        for key in prefixes(text):
            if not index.chain([key]) and not add(index, key, key[:-1]):
                break
        index.touch(prefixes(text)[:3])
        index.prune(20 * SIZE)
    index.close()


def test_concurrent_filling_and_pruning_leaves_a_valid_tree(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=fill_and_prune, args=(tmp_path / "prefixes", seed))
        for seed in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    index = PrefixIndex(tmp_path / "prefixes")
    assert index.prune(20 * SIZE) == 0
    rows, files = rows_and_files(index)
    assert rows == files
    assert 0 < len(rows) <= 20
    index.close()
