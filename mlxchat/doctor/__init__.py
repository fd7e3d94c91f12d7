"""Examines everything mlxchat needs from this machine. Prints nothing, changes nothing.

Each check is a function that yields findings; `cli/machine` shows them.
"""

import os
import platform as system
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from mlxchat import paths, platform
from mlxchat.config import by_field, configured_model, read_user_config, variables_for
from mlxchat.errors import ConfigError, HubError, ModelError, ModelNotFound
from mlxchat.models.catalog import RECOMMENDED
from mlxchat.models.hub_cache import cached_snapshot, hub_cache_dir, offline_by_environment
from mlxchat.models.resolve import locate
from mlxchat.paths import __version__
from mlxchat.request.commands import COMMANDS
from mlxchat.units import format_bytes

# With less memory, not even the embedded model has room for its weights and a window.
MIN_MEMORY_BYTES = 1_000_000_000
MIN_FREE_BYTES = 1_000_000_000

INSTALL = {"mlx": "pip install 'mlx[cpu]'" if sys.platform == "linux" else "pip install mlx"}
MORE_MEMORY = "close other programs, or give the container more memory"
OPENBLAS = "install OpenBLAS: on Debian, apt install libopenblas0-pthread"


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `fix` is what to do, if anything; the topic is that of the check, if empty."""

    found: str
    fix: str | None = None
    is_problem: bool = False
    topic: str = ""

    @property
    def verdict(self) -> Verdict:
        if self.is_problem:
            return Verdict.PROBLEM
        return Verdict.OK if self.fix is None else Verdict.WARNING


def versions() -> Iterator[Finding]:
    yield Finding(__version__, topic="mlxchat")
    yield Finding(f"{system.python_version()}, {sys.executable}", topic="python")
    needed = map(Requirement, metadata.requires("mlxchat") or ())
    for each in sorted(needed, key=lambda each: each.name):
        if each.name in ("mlx", "mlx-lm") and (each.marker is None or each.marker.evaluate()):
            installed = metadata.version(each.name)
            is_tested = each.specifier.contains(installed, prereleases=True)
            fix = None if is_tested else f"pip install '{each.name}{each.specifier}'"
            yield Finding(f"{installed}, tested: {each.specifier}", fix, topic=each.name)


def device() -> Iterator[Finding]:
    try:
        platform.require_supported_system()
    except ModelError as error:
        yield Finding(str(error), INSTALL["mlx"], is_problem=True)
        return
    found = f"{platform.backend_name()}, {platform.device_name()}"
    wired_bytes = platform.recommended_working_set_bytes()
    if wired_bytes is not None:
        found += f"; {format_bytes(wired_bytes)} can be wired (sysctl iogpu.wired_limit_mb)"
    yield Finding(found)


def memory() -> Iterator[Finding]:
    total_bytes, free_bytes = platform.total_memory_bytes(), platform.free_memory_bytes()
    found = f"{format_bytes(free_bytes)} free for a model, of {format_bytes(total_bytes)}"
    yield Finding(found, MORE_MEMORY if free_bytes < MIN_MEMORY_BYTES else None)


def blas() -> Iterator[Finding]:
    yield Finding(platform.blas_name(), None if platform.has_fast_blas() else OPENBLAS)


def configuration() -> Iterator[Finding]:
    path = paths.config_file()
    try:
        read_user_config()
        yield Finding(str(path) if path.exists() else f"none at {path}")
    except ConfigError as error:
        yield Finding(str(error), "mlxchat config edit", is_problem=True)
    try:
        for name in COMMANDS:
            by_field(name, variables_for(name))
    except ConfigError as error:
        yield Finding(str(error), "unset the variable, or give it another value", is_problem=True)


def model() -> Iterator[Finding]:
    try:
        chosen, aliases = configured_model(), read_user_config().aliases
    except ConfigError:
        yield Finding("the configuration cannot be read", "fix it first")
        return
    if chosen is None:
        yield Finding("no default: one that fits is chosen")
        return
    try:
        located = locate(chosen.value, aliases)
    except (ModelError, ConfigError) as error:
        yield Finding(f"{error} (set by {chosen.where})", "name another model", is_problem=True)
        return
    found, fix = f"{located.name}, set by {chosen.where}", None
    if located.path is None and cached_snapshot(located.name) is None:
        found, fix = f"{found}, is not downloaded", f"run `mlxchat models pull {located.name}`"
    yield Finding(found, fix)


def directories() -> Iterator[Finding]:
    download = "make it writable, or set HF_HOME, to download models"
    yield _directory("hub cache", hub_cache_dir(), download)
    read = "make it writable, to read no prompt twice"
    yield _directory("prefix cache", paths.prefix_cache_dir(), read)
    yield _directory("sessions", paths.sessions_dir(), "make it writable, to save chats")


def _directory(topic: str, directory: Path, fix: str) -> Finding:
    """Whether the directory can be written, and the disk's free space."""
    nearest = next(each for each in (directory, *directory.parents) if os.path.lexists(each))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return Finding(f"{directory} cannot be written", fix, is_problem=True, topic=topic)
    free_bytes = shutil.disk_usage(nearest).free
    found = f"{directory}, {format_bytes(free_bytes)} free"
    return Finding(found, "free some space" if free_bytes <= MIN_FREE_BYTES else None, topic=topic)


def terminal() -> Iterator[Finding]:
    if sys.stdout is None or not sys.stdout.isatty():
        yield Finding("stdout is not a terminal: plain text")
        return
    size, kind = shutil.get_terminal_size(), os.environ.get("TERM", "")
    fix = "set TERM to get colors and line editing" if kind in ("", "dumb") else None
    colors = ", no colors: NO_COLOR is set" if os.environ.get("NO_COLOR") else ""
    yield Finding(f"{size.columns} columns, {size.lines} lines, TERM={kind}{colors}", fix)


def hub() -> Iterator[Finding]:
    from mlxchat.models.hub import check_exists

    if offline_by_environment():
        yield Finding("offline: HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set")
        return
    try:
        check_exists(RECOMMENDED[0].hub_id)
        yield Finding("answers")
    except ModelNotFound as error:
        yield Finding(str(error), "run hf auth login: the token may have expired")
    except HubError as error:
        yield Finding(str(error), "downloaded models work without it")


CHECKS: dict[str, Callable[[], Iterable[Finding]]] = {
    "versions": versions,
    "device": device,
    "memory": memory,
    "BLAS": blas,
    "configuration": configuration,
    "model": model,
    "directories": directories,
    "terminal": terminal,
    "hub": hub,
}


def examine(*, offline: bool = False) -> Iterator[Finding]:
    """All findings, as they are made. If `offline`, the Hub is not contacted.

    An exception in a check becomes a finding, too: users run this when something is broken.
    """
    for topic, check in CHECKS.items():
        if topic == "hub" and offline:
            continue
        try:
            for finding in check():
                yield replace(finding, topic=finding.topic or topic)
        except Exception as error:  # noqa: BLE001
            found = f"check failed: {type(error).__name__}: {error}"
            yield Finding(found, "the installation may be incomplete", is_problem=True, topic=topic)
