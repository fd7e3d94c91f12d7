"""Files that may be lost: least recently used first, whichever process wrote them."""

import os
from itertools import count, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxchat import files as files_module
from mlxchat.store import tensor_file
from mlxchat.store.tensor_file import CacheFiles

NOW_S = 4_000_000_000


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """At each look, a second later."""
    clock = SimpleNamespace(time=count(NOW_S).__next__)
    monkeypatch.setattr(tensor_file, "time", clock)
    monkeypatch.setattr(files_module, "time", clock)


def prefixes(text: str) -> list[str]:
    return [text[:end] for end in range(1, len(text) + 1)]


def add(files: CacheFiles, text: str) -> None:
    """A text of pages named by all letters up to their end."""
    keys = prefixes(text)
    now = tensor_file.time.time()
    files.touch(keys, now)
    for place, key in enumerate(keys):
        if not files.present([key]):
            files.write(key, {"x": np.zeros(100, np.uint8)}, now - place * tensor_file.OLDER_S)


@given(st.lists(st.tuples(st.text("ab", min_size=1, max_size=5), st.none() | st.integers(0, 8))))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_least_used_text_loses_its_last_page_first(used: list[tuple[str, int | None]]) -> None:
    with TemporaryDirectory() as directory:
        files, by_use = CacheFiles(Path(directory) / "prefixes"), list[str]()
        for text, left in used:
            add(files, text)
            by_use = [*prefixes(text), *(key for key in by_use if key not in prefixes(text))]
            if left is not None:
                files.prune(left * files.path_of(text[0]).stat().st_size)
                by_use = by_use[:left]
            assert {path.stem for path in files.directory.iterdir()} == set(by_use)
            found = takewhile(by_use.__contains__, prefixes(f"{text}x"))
            assert files.present(prefixes(f"{text}x")) == len([*found])


def test_what_a_killed_process_left_is_deleted(tmp_path: Path) -> None:
    files = CacheFiles(tmp_path / "prefixes")
    add(files, "a")
    for name, age_s in ((".a.k1ll3d", files_module.STRAY_AFTER_S + 100), (".a.new", 0)):
        path = files.directory / name
        path.touch()
        os.utime(path, (NOW_S - age_s, NOW_S - age_s))
    files.prune(1 << 20)
    assert {path.name for path in files.directory.iterdir()} == {"a.safetensors", ".a.new"}
