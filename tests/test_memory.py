"""Memory limits: simulated Macs and containers, and the models that fit them."""

import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import psutil
import pytest

from mlxchat import platform
from mlxchat.errors import ModelError
from mlxchat.models import catalog
from mlxchat.models import load as loading
from mlxchat.models import model as models_module
from mlxchat.models.model import automatic_window, check_window
from mlxchat.models.skeleton import held_bytes
from tests.test_load import load

GIB = 2**30


@dataclass(frozen=True)
class Machine:
    """`recommended` is Metal's working set in bytes, `cgroup` a container's limit."""

    total: int
    available: int
    wired: int = 0
    recommended: int | None = None
    cgroup: int | None = None

    @property
    def system(self) -> str:
        return "linux" if self.recommended is None else "darwin"


# Metal recommends two thirds of the memory up to 36 GB, three quarters above. On a Mac in use
# for a while, psutil reports about a third of it as available.
MAC_8 = Machine(8 * GIB, 2 * GIB, wired=2 * GIB, recommended=5_726 * 10**6)
MAC_16 = Machine(16 * GIB, 5 * GIB, wired=5 * GIB // 2, recommended=11_453 * 10**6)
MAC_64 = Machine(64 * GIB, 24 * GIB, wired=4 * GIB, recommended=51_539 * 10**6)
CONTAINER = Machine(25 * GIB, 22 * GIB, cgroup=6 * GIB)


class Metal:
    """MLX on that machine: the memory in use can be set."""

    def __init__(self, machine: Machine, monkeypatch: pytest.MonkeyPatch, cgroup: Path) -> None:
        self.active, self.cached = 0, 0
        info = {"max_recommended_working_set_size": machine.recommended}
        ram = SimpleNamespace(total=machine.total, available=machine.available, wired=machine.wired)
        monkeypatch.setattr(sys, "platform", machine.system)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: ram)
        monkeypatch.setattr(platform, "on_gpu", lambda: machine.system == "darwin")
        monkeypatch.setattr(platform, "CGROUP", cgroup)
        monkeypatch.setattr(mx, "device_info", lambda: info if machine.recommended else {})
        monkeypatch.setattr(mx, "get_active_memory", lambda: self.active)
        monkeypatch.setattr(mx, "get_cache_memory", lambda: self.cached)
        if machine.cgroup is not None:
            (cgroup / "memory.max").write_text(f"{machine.cgroup}\n")
            (cgroup / "memory.current").write_text("0\n")


@pytest.fixture
def metal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    return lambda machine: Metal(machine, monkeypatch, tmp_path)


def _model(gigabytes: float, parameters: int, kv_bytes: int) -> catalog.KnownModel:
    return catalog.KnownModel("", "", round(gigabytes * 1e9), parameters, kv_bytes)


# Of common sizes, in 4 bits: Llama 3.2, 3.1 and 3.3.
SIZES = (
    _model(0.713, 1_235_814_400, 32_768),
    _model(4.527, 8_030_261_248, 131_072),
    _model(39.7, 70_553_706_496, 327_680),
)
CONTEXT = 131_072

# The outcome for each model's weights, and the automatic window. Here they are float32 if they fit.
Outcome = tuple[str, int | None]
FITS: Outcome = ("fits", CONTEXT)
TIGHT: Outcome = ("warned", 512)
REFUSED: Outcome = ("refused", None)
OUTCOMES: dict[str, tuple[Machine, list[Outcome]]] = {
    "macOS, 8 GB": (MAC_8, [("fits", 107_008), ("fits", 6_144), TIGHT]),
    "macOS, 16 GB": (MAC_16, [FITS, ("fits", 36_864), TIGHT]),
    "macOS, 64 GB": (MAC_64, [FITS, FITS, ("fits", 25_088)]),
    "Linux, 6 GiB": (CONTAINER, [("fits", 15_872), ("noticed", 9_728), REFUSED]),
}


def outcome(
    machine: Machine, size: catalog.KnownModel, metal: Any, patch: pytest.MonkeyPatch
) -> tuple[str, int | None]:
    """The result of loading such a model and choosing its window."""
    fake = metal(machine)
    noted: list[str] = []
    try:
        dtype = loading._target_dtype("auto", size.parameters, size.download_bytes, noted.append, 1)
    except ModelError:
        return "refused", None
    stored = dtype is None
    weights = size.download_bytes if stored else 4 * size.parameters
    token_bytes = size.kv_bytes_per_token * (1 if stored else 2)
    said = "fits" if not noted else "noticed" if machine.system == "linux" else "warned"
    # On Linux the weights reduce the free memory; on a Mac, MLX reports them.
    if machine.cgroup is None:
        fake.active = weights
    else:
        (platform.CGROUP / "memory.current").write_text(f"{weights}\n")
    patch.setattr(models_module, "kv_bytes_per_token", lambda *_: token_bytes)
    model: Any = SimpleNamespace(
        network=None,
        dtype=dtype,
        context_length=CONTEXT,
        free_memory_bytes=platform.free_memory_bytes,
    )
    return said, automatic_window(model, noted.append)


@pytest.mark.parametrize("name", OUTCOMES)
def test_the_outcome_for_each_model_on_each_machine(
    name: str, metal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Mac refused models that fit: psutil's "available" excludes what macOS would free."""
    machine, expected = OUTCOMES[name]
    assert [outcome(machine, model, metal, monkeypatch) for model in SIZES] == expected


def test_weights_are_counted_once_before_and_after_reading(tiny_model: Path, metal: Any) -> None:
    """Otherwise a window chosen before lazy weights are read would leave no room for them."""
    model = load(tiny_model, "stored")
    weights = held_bytes(model.network)
    fake = metal(MAC_16)
    free = platform.free_memory_bytes()
    assert model.free_memory_bytes() == free - weights
    fake.active = weights
    assert model.free_memory_bytes() == free - weights


def test_a_window_that_does_not_fit_is_a_warning_on_macos(tiny_model: Path, metal: Any) -> None:
    model = load(tiny_model, "stored")
    fake = metal(MAC_8)
    assert MAC_8.recommended is not None
    fake.active = MAC_8.recommended - 10_000
    notices: list[str] = []
    check_window(model, 1000, notices.append)
    assert notices == [
        "a window of 1,000 tokens needs 256 kB with this model, but only 10.0 kB is free: use "
        "--max-kv-size auto or a smaller window"
    ]
    check_window(model, 10, notices.append)
    assert len(notices) == 1
    assert automatic_window(model, notices.append) == 512
    assert notices[1].startswith("the weights leave memory for only 27 tokens")


def test_free_memory_is_the_minimum_of_system_and_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(platform, "CGROUP", tmp_path)
    assert platform.free_memory_bytes() > 100_000_000
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert platform.free_memory_bytes() == 4_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert platform.free_memory_bytes() > 100_000_000
