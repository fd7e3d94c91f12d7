"""What differs between machines, tested on this one."""

from pathlib import Path

import pytest

from mlxchat import platform


def test_free_memory_is_the_minimum_of_system_and_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(platform, "CGROUP", tmp_path)
    unbounded = platform.free_memory_bytes()
    assert unbounded > 100_000_000
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert platform.free_memory_bytes() == 4_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert platform.free_memory_bytes() > 100_000_000
