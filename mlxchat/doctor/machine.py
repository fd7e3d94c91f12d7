"""The machine: versions, device, memory, BLAS."""

import platform as system
import sys
from collections.abc import Iterator

from mlxchat import platform
from mlxchat.about import __version__
from mlxchat.doctor.finding import Finding, ok, problem, warning
from mlxchat.errors import ModelUnsupported
from mlxchat.settings import DEFAULT_PREFILL_STEP_SIZE
from mlxchat.units import format_bytes

# With less memory, not even the embedded model has room for its weights and a window.
MIN_MEMORY_BYTES = 1_000_000_000

INSTALL_MLX = "pip install 'mlx[cpu]'" if sys.platform == "linux" else "pip install mlx"


def versions() -> Iterator[Finding]:
    yield ok("mlxchat", __version__)
    yield ok("python", f"{system.python_version()}, {sys.executable}")
    tested = platform.tested_ranges()
    for name in ("mlx", "mlx-lm"):
        yield _version(name, tested.get(name))


def device() -> Iterator[Finding]:
    if sys.platform == "darwin" and system.machine() == "x86_64":
        yield problem(
            "device",
            "this Python is built for Intel processors",
            "install mlxchat with a Python for Apple silicon: MLX requires one",
        )
        return
    try:
        platform.require_supported_system()
    except ModelUnsupported as error:
        yield problem("device", str(error), INSTALL_MLX)
        return
    found = f"{platform.backend_name()}, {platform.device_name()}"
    if sys.platform == "darwin" and not platform.gpu_available():
        yield warning("device", f"{found}: MLX sees no GPU", "is this a virtual machine?")
    else:
        yield ok("device", found)
    yield from _wired_limit()


def memory() -> Iterator[Finding]:
    total_bytes, free_bytes = platform.total_memory_bytes(), platform.free_memory_bytes()
    found = f"{format_bytes(free_bytes)} free for a model, of {format_bytes(total_bytes)}"
    if free_bytes < MIN_MEMORY_BYTES:
        yield warning("memory", found, "close other programs, or give the container more memory")
    else:
        yield ok("memory", found)


def blas() -> Iterator[Finding]:
    if platform.has_fast_blas():
        yield ok("BLAS", platform.blas_name())
    else:
        yield warning(
            "BLAS",
            "the reference BLAS of MLX's wheel, about 40 times slower than OpenBLAS",
            "install OpenBLAS: on Debian, apt install libopenblas0-pthread",
        )


def prefill() -> Iterator[Finding]:
    """The best prefill step, as far as it is known without measuring a model."""
    default = f"steps of {DEFAULT_PREFILL_STEP_SIZE} tokens"
    if platform.on_gpu():
        auto = "--prefill-step-size auto"
        yield ok("prefill", f"{default}; {auto} tries larger ones on long prompts")
        return
    with platform.prefill_streams() as streams:
        cores = "two cores" if len(streams) > 1 else "one core"
    yield ok("prefill", f"{default}, computed on {cores}; larger ones are no faster")


def _version(name: str, tested: str | None) -> Finding:
    version = platform.installed_version(name)
    package = INSTALL_MLX if name == "mlx" else f"pip install {name}"
    if version is None:
        return problem(name, "not installed", package)
    if tested is None:
        return ok(name, f"{version} (a source checkout records no tested range)")
    if platform.is_tested(version, tested):
        return ok(name, f"{version}, tested: {tested}")
    return warning(
        name, f"{version} is untested; tested: {tested}", f"pip install '{name}{tested}'"
    )


def _wired_limit() -> Iterator[Finding]:
    wired_bytes = platform.recommended_working_set_bytes()
    if wired_bytes is None:
        yield ok("wired limit", "none without Metal")
        return
    total_bytes = platform.total_memory_bytes()
    yield ok(
        "wired limit",
        f"{format_bytes(wired_bytes)} of {format_bytes(total_bytes)} can be wired; for a larger "
        "model: sudo sysctl iogpu.wired_limit_mb=MEGABYTES",
    )
