"""Examines everything mlxchat needs from this machine. Prints nothing, changes nothing.

One broken thing does not keep the rest from being examined.
"""

import locale
import os
import platform as system
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mlxchat import paths, platform
from mlxchat.about import __version__
from mlxchat.config.file import configured_model, read_user_config
from mlxchat.errors import ConfigError, HubError, ModelError, ModelNotFound
from mlxchat.models.catalog import EMBEDDED_ALIAS, RECOMMENDED
from mlxchat.models.hub_cache import (
    cached_snapshot,
    hub_cache_dir,
    offline_by_environment,
    token_place,
)
from mlxchat.models.locate import embedded_model, locate
from mlxchat.units import format_bytes

# With less memory, not even the embedded model has room for its weights and a window.
MIN_MEMORY_BYTES = 1_000_000_000
MIN_FREE_BYTES = 1_000_000_000
MIN_COLUMNS = 40

# The library's timeouts apply to each step of a connection; resolving a name can take far longer.
PATIENCE_S = 5.0

INSTALL_MLX = "pip install 'mlx[cpu]'" if sys.platform == "linux" else "pip install mlx"


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `fix` is what to do, if anything."""

    topic: str
    verdict: Verdict
    found: str
    fix: str | None = None


Check = Callable[[], Iterable[Finding]]


def ok(topic: str, found: str) -> Finding:
    return Finding(topic, Verdict.OK, found)


def warning(topic: str, found: str, fix: str) -> Finding:
    return Finding(topic, Verdict.WARNING, found, fix)


def problem(topic: str, found: str, fix: str) -> Finding:
    return Finding(topic, Verdict.PROBLEM, found, fix)


def examine(*, configuration: Check, offline: bool = False) -> Iterator[Finding]:
    """All findings, as they are made. `configuration` is a check passed in by the command line,
    which knows the options. If `offline`, the Hub is not contacted."""
    checks: dict[str, Check] = {
        "versions": versions,
        "device": device,
        "memory": memory,
        "BLAS": blas,
        "configuration": configuration,
        "model": model,
        "hub cache": hub_cache,
        "prefix cache": prefix_cache,
        "sessions": sessions,
        "terminal": terminal,
        "hub token": token,
    }
    if not offline:
        checks["hub"] = hub
    for topic, check in checks.items():
        yield from found_by(topic, check)


def found_by(topic: str, check: Check) -> Iterator[Finding]:
    """The check's findings; an exception in the check becomes a finding too.

    Users run this when something is broken in an unexpected way.
    """
    try:
        yield from check()
    except Exception as error:  # noqa: BLE001
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        yield problem(topic, f"check failed: {reason}", "the installation may be incomplete")


# The machine


def versions() -> Iterator[Finding]:
    yield ok("mlxchat", __version__)
    yield ok("python", f"{system.python_version()}, {sys.executable}")
    for name, version, wanted, is_tested in platform.tested_versions():
        if version is None:
            package = INSTALL_MLX if name == "mlx" else "pip install mlx-lm"
            yield problem(name, "not installed", package)
        elif is_tested:
            yield ok(name, f"{version}, tested: {wanted or 'no range recorded'}")
        else:
            found = f"{version} is untested; tested: {wanted}"
            yield warning(name, found, f"pip install '{name}{wanted}'")


def device() -> Iterator[Finding]:
    if sys.platform == "darwin" and system.machine() == "x86_64":
        fix = "install mlxchat with a Python for Apple silicon: MLX requires one"
        yield problem("device", "this Python is built for Intel processors", fix)
        return
    try:
        platform.require_supported_system()
    except ModelError as error:
        yield problem("device", str(error), INSTALL_MLX)
        return
    found = f"{platform.backend_name()}, {platform.device_name()}"
    wired_bytes = platform.recommended_working_set_bytes()
    if wired_bytes is not None:
        found += (
            f"; {format_bytes(wired_bytes)} can be wired; for a larger model: "
            "sudo sysctl iogpu.wired_limit_mb=MEGABYTES"
        )
    if sys.platform == "darwin" and not platform.gpu_available():
        yield warning("device", f"{found}: MLX sees no GPU", "is this a virtual machine?")
    else:
        yield ok("device", found)


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
        found = "the reference BLAS of MLX's wheel, about 40 times slower than OpenBLAS"
        fix = "install OpenBLAS: on Debian, apt install libopenblas0-pthread"
        yield warning("BLAS", found, fix)


# The disk


def hub_cache() -> Iterator[Finding]:
    fix = "make it writable, or set HF_HOME to another directory, to be able to download models"
    yield _directory("hub cache", hub_cache_dir(), fix)


def prefix_cache() -> Iterator[Finding]:
    fix = "make it writable, or free some space; until then every prompt is read from scratch"
    yield _directory("prefix cache", paths.prefix_cache_dir(), fix)


def sessions() -> Iterator[Finding]:
    directory = paths.sessions_dir()
    yield _directory("sessions", directory, "make it writable; until then chats are not saved")
    if directory.is_dir() and stat.S_IMODE(directory.stat().st_mode) & 0o077:
        yield warning(
            "sessions", f"other users can read {directory}", f"chmod go-rwx '{directory}'"
        )


def _directory(topic: str, directory: Path, fix: str) -> Finding:
    """Whether the directory can be written, and the disk's free space."""
    if os.path.lexists(directory) and not directory.is_dir():
        return problem(topic, f"{directory} is not a directory", "move it away")
    nearest = next(each for each in (directory, *directory.parents) if each.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        return problem(topic, f"{directory} cannot be written", fix)
    free_bytes = shutil.disk_usage(nearest).free
    found = f"{directory}, {format_bytes(free_bytes)} free"
    if free_bytes <= MIN_FREE_BYTES:
        return warning(
            topic, f"{found}, less than {format_bytes(MIN_FREE_BYTES)}", "free some space"
        )
    return ok(topic, found)


# The model and the Hub


def model() -> Iterator[Finding]:
    try:
        chosen, aliases = configured_model(), read_user_config().aliases
    except ConfigError:
        yield warning("model", "the configuration cannot be read", "fix it first")
        return
    if chosen is None:
        yield _unnamed()
        return
    try:
        located = locate(chosen.value, aliases)
    except (ModelError, ConfigError) as error:
        fix = "run `mlxchat models default NAME`"
        if chosen.is_variable:
            fix = f"give {chosen.where} another value"
        yield problem("model", f"{error} (set by {chosen.where})", fix)
        return
    found = f"{located.name}, set by {chosen.where}"
    if located.path is None and cached_snapshot(located.name) is None:
        fix = f"run `mlxchat models pull {located.name}`"
        yield warning("model", f"{found}, is not downloaded", fix)
    else:
        yield ok("model", found)


def _unnamed() -> Finding:
    here = [each.hub_id for each in RECOMMENDED if cached_snapshot(each.hub_id) is not None]
    if embedded_model() is not None:
        here.append(EMBEDDED_ALIAS)
    if here:
        return ok("model", f"no default: one that fits is chosen; downloaded: {', '.join(here)}")
    return warning("model", "no default, and none downloaded", "run `mlxchat models pull NAME`")


def token() -> Iterator[Finding]:
    place = token_place()
    found = "none: gated models cannot be downloaded" if place is None else f"in {place}"
    yield ok("hub token", found)


def hub() -> Iterator[Finding]:
    """Look up a model that the Hub is known to have, for a few seconds at most."""
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    if offline_by_environment():
        yield ok("hub", "offline: HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set")
        return
    answers: list[Finding] = []
    asking = threading.Thread(target=lambda: answers.append(_asked(endpoint)), daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    if answers:
        yield answers[0]
    else:
        found = f"{endpoint} does not answer within {PATIENCE_S:.0f} seconds"
        yield warning("hub", found, "check the network; downloaded models work without it")


def _asked(endpoint: str) -> Finding:
    from mlxchat.models.hub import repo_size_bytes

    try:
        repo_size_bytes(RECOMMENDED[0].hub_id)
    except ModelNotFound as error:
        if token_place() is not None:
            return warning("hub", str(error), "run hf auth login: the token may have expired")
    except HubError as error:
        return warning("hub", str(error), "downloaded models work without it")
    return ok("hub", f"{endpoint} answers")


# The terminal


def terminal() -> Iterator[Finding]:
    if sys.stdout is None or not sys.stdout.isatty():
        yield ok("terminal", "stdout is not a terminal: plain text")
    else:
        size, kind = shutil.get_terminal_size(), os.environ.get("TERM", "")
        colours = ", no colours: NO_COLOR is set" if os.environ.get("NO_COLOR") else ""
        found = f"{size.columns} columns, {size.lines} lines, TERM={kind}{colours}"
        if size.columns < MIN_COLUMNS:
            yield warning("terminal", found, "make it wider: tables are hard to read")
        elif kind in ("", "dumb"):
            yield warning("terminal", found, "set TERM correctly to get colours and line editing")
        else:
            yield ok("terminal", found)
    encoding = locale.getencoding().lower()
    if encoding.replace("-", "") == "utf8":
        yield ok("characters", "UTF-8")
        return
    # Not every macOS has C.UTF-8, and not every Linux has en_US.UTF-8.
    utf8 = "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8"
    found = f"the locale's encoding is {encoding}, but models write UTF-8"
    yield warning("characters", found, f"export LANG={utf8}, or another UTF-8 locale")
