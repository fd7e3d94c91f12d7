"""Files that may be lost: least recently used first, whichever process wrote them."""

import os
import random
from pathlib import Path

import numpy as np
import pytest

from mlxchat import files as files_module
from mlxchat.store import tensor_file
from mlxchat.store.tensor_file import CacheFiles

CONTENT = np.zeros(100, np.uint8)


class Clock:
    def __init__(self) -> None:
        self.now = 4e9

    def time(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(tensor_file, "time", clock)
    monkeypatch.setattr(files_module, "time", clock)
    return clock


@pytest.fixture
def files(tmp_path: Path, clock: Clock) -> CacheFiles:
    return CacheFiles(tmp_path / "prefixes")


def prefixes(text: str) -> list[str]:
    return [text[:end] for end in range(1, len(text) + 1)]


def add(files: CacheFiles, text: str) -> None:
    """A text of pages named by all letters up to their end."""
    keys = prefixes(text)
    now = tensor_file.time.time()
    files.touch(keys, now)
    for place, key in enumerate(keys):
        if not files.present([key]):
            files.write(key, {"x": CONTENT}, now - place * tensor_file.OLDER_S)


def keys_of(files: CacheFiles) -> set[str]:
    return {path.stem for path in files.directory.glob("*.safetensors")}


def size_of(files: CacheFiles, key: str = "a") -> int:
    return files.path_of(key).stat().st_size


def test_pages_are_found_up_to_the_first_missing_one(files: CacheFiles) -> None:
    assert files.present(["a"]) == 0
    assert not files.directory.exists()
    add(files, "abc")
    assert [files.present(prefixes(text)) for text in ("abcd", "abx", "x")] == [3, 2, 0]


def test_the_least_recently_used_text_loses_its_last_page_first(files: CacheFiles) -> None:
    for text in ("abc", "abd", "xy"):
        add(files, text)
    files.touch(prefixes("abc"))
    left = []
    while keys_of(files):
        files.prune(files.size_bytes() - 1)
        left.append(sorted(keys_of(files)))
    assert left == [
        ["a", "ab", "abc", "x", "xy"],
        ["a", "ab", "abc", "x"],
        ["a", "ab", "abc"],
        ["a", "ab"],
        ["a"],
        [],
    ]


def test_after_any_use_the_rest_fits_and_can_be_reached(files: CacheFiles) -> None:
    chance = random.Random(1)
    for _ in range(30):
        add(files, "".join(chance.choice("ab") for _ in range(chance.randrange(1, 8))))
        if chance.random() < 0.3:
            limit = chance.randrange(20) * size_of(files, next(iter(keys_of(files))))
            files.prune(limit)
            assert files.size_bytes() <= limit
            assert all(key[:-1] in keys_of(files) | {""} for key in keys_of(files))


def test_what_a_killed_process_left_is_deleted(files: CacheFiles, clock: Clock) -> None:
    add(files, "a")
    for name, age_s in (
        (".a.safetensors.k1ll3d", files_module.STRAY_AFTER_S + 100),
        (".a.safetensors.new", 0),
    ):
        path = files.directory / name
        path.touch()
        os.utime(path, (clock.now - age_s, clock.now - age_s))
    files.prune(1 << 20)
    assert {path.name for path in files.directory.iterdir()} == {
        "a.safetensors",
        ".a.safetensors.new",
    }
