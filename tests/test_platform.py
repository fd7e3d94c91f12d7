"""What differs between machines, tested on this one."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from mlxchat import platform
from mlxchat.errors import UsageError


def test_a_missing_gpu_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "gpu_available", lambda: False)
    with pytest.raises(UsageError, match="no GPU"):
        platform.select_device("gpu")
    assert platform.select_device("auto") == "cpu"


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


@pytest.mark.parametrize("name", ["mlx", "mlx-lm", "huggingface-hub", "typer"])
def test_what_breaks_in_small_releases_has_an_upper_bound(name: str) -> None:
    """mlx and mlx-lm have broken cache classes in patch releases."""
    pyproject = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())
    requirements = map(Requirement, pyproject["project"]["dependencies"])
    bounds = [each.specifier for each in requirements if each.name == name]
    assert bounds
    assert all(any(bound.operator == "<" for bound in each) for each in bounds)
