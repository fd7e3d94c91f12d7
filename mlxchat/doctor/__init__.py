"""Examines everything mlxchat needs from this machine. Prints nothing, changes nothing.

Each check is a function that yields findings; `cli/doctor` shows them.
"""

import locale
import os
import platform as system
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from mlxchat import paths, platform
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
from mlxchat.paths import __version__
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


Check = Callable[[], Iterable[Finding]]


def examine(*, configuration: Check, offline: bool = False) -> Iterator[Finding]:
    """All findings, as they are made. `configuration` is a check passed in by the command line,
    which knows the options. If `offline`, the Hub is not contacted.

    An exception in a check becomes a finding, too: users run this when something is broken in an
    unexpected way.
    """
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
        try:
            for finding in check():
                yield replace(finding, topic=finding.topic or topic)
        except Exception as error:  # noqa: BLE001
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            fix = "the installation may be incomplete"
            yield Finding(f"check failed: {reason}", fix, is_problem=True, topic=topic)


# The machine


def versions() -> Iterator[Finding]:
    yield Finding(__version__, topic="mlxchat")
    yield Finding(f"{system.python_version()}, {sys.executable}", topic="python")
    for name, version, wanted, is_tested in platform.tested_versions():
        if version is None:
            package = INSTALL_MLX if name == "mlx" else "pip install mlx-lm"
            yield Finding("not installed", package, is_problem=True, topic=name)
        elif is_tested:
            yield Finding(f"{version}, tested: {wanted or 'no range recorded'}", topic=name)
        else:
            found = f"{version} is untested; tested: {wanted}"
            yield Finding(found, f"pip install '{name}{wanted}'", topic=name)


def device() -> Iterator[Finding]:
    if sys.platform == "darwin" and system.machine() == "x86_64":
        fix = "install mlxchat with a Python for Apple silicon: MLX requires one"
        yield Finding("this Python is built for Intel processors", fix, is_problem=True)
        return
    try:
        platform.require_supported_system()
    except ModelError as error:
        yield Finding(str(error), INSTALL_MLX, is_problem=True)
        return
    found = f"{platform.backend_name()}, {platform.device_name()}"
    wired_bytes = platform.recommended_working_set_bytes()
    if wired_bytes is not None:
        found += (
            f"; {format_bytes(wired_bytes)} can be wired; for a larger model: "
            "sudo sysctl iogpu.wired_limit_mb=MEGABYTES"
        )
    if sys.platform == "darwin" and not platform.gpu_available():
        yield Finding(f"{found}: MLX sees no GPU", "is this a virtual machine?")
    else:
        yield Finding(found)


def memory() -> Iterator[Finding]:
    total_bytes, free_bytes = platform.total_memory_bytes(), platform.free_memory_bytes()
    found = f"{format_bytes(free_bytes)} free for a model, of {format_bytes(total_bytes)}"
    is_low = free_bytes < MIN_MEMORY_BYTES
    fix = "close other programs, or give the container more memory" if is_low else None
    yield Finding(found, fix)


def blas() -> Iterator[Finding]:
    if platform.has_fast_blas():
        yield Finding(platform.blas_name())
    else:
        found = "the reference BLAS of MLX's wheel, about 40 times slower than OpenBLAS"
        yield Finding(found, "install OpenBLAS: on Debian, apt install libopenblas0-pthread")


# The disk


def hub_cache() -> Iterator[Finding]:
    fix = "make it writable, or set HF_HOME to another directory, to be able to download models"
    yield _directory(hub_cache_dir(), fix)


def prefix_cache() -> Iterator[Finding]:
    fix = "make it writable, or free some space; until then every prompt is read from scratch"
    yield _directory(paths.prefix_cache_dir(), fix)


def sessions() -> Iterator[Finding]:
    directory = paths.sessions_dir()
    yield _directory(directory, "make it writable; until then chats are not saved")
    if directory.is_dir() and stat.S_IMODE(directory.stat().st_mode) & 0o077:
        yield Finding(f"other users can read {directory}", f"chmod go-rwx '{directory}'")


def _directory(directory: Path, fix: str) -> Finding:
    """Whether the directory can be written, and the disk's free space."""
    if os.path.lexists(directory) and not directory.is_dir():
        return Finding(f"{directory} is not a directory", "move it away", is_problem=True)
    nearest = next(each for each in (directory, *directory.parents) if each.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        return Finding(f"{directory} cannot be written", fix, is_problem=True)
    free_bytes = shutil.disk_usage(nearest).free
    found = f"{directory}, {format_bytes(free_bytes)} free"
    if free_bytes <= MIN_FREE_BYTES:
        return Finding(f"{found}, less than {format_bytes(MIN_FREE_BYTES)}", "free some space")
    return Finding(found)


# The model and the Hub


def model() -> Iterator[Finding]:
    try:
        chosen, aliases = configured_model(), read_user_config().aliases
    except ConfigError:
        yield Finding("the configuration cannot be read", "fix it first")
        return
    if chosen is None:
        yield _unnamed()
        return
    try:
        located = locate(chosen.value, aliases)
    except (ModelError, ConfigError) as error:
        fix = "run `mlxchat config set model NAME`"
        if chosen.is_variable:
            fix = f"give {chosen.where} another value"
        yield Finding(f"{error} (set by {chosen.where})", fix, is_problem=True)
        return
    found = f"{located.name}, set by {chosen.where}"
    if located.path is None and cached_snapshot(located.name) is None:
        yield Finding(f"{found}, is not downloaded", f"run `mlxchat models pull {located.name}`")
    else:
        yield Finding(found)


def _unnamed() -> Finding:
    here = [each.hub_id for each in RECOMMENDED if cached_snapshot(each.hub_id) is not None]
    if embedded_model() is not None:
        here.append(EMBEDDED_ALIAS)
    if here:
        return Finding(f"no default: one that fits is chosen; downloaded: {', '.join(here)}")
    return Finding("no default, and none downloaded", "run `mlxchat models pull NAME`")


def token() -> Iterator[Finding]:
    place = token_place()
    yield Finding("none: gated models cannot be downloaded" if place is None else f"in {place}")


def hub() -> Iterator[Finding]:
    """Look up a model that the Hub is known to have, for a few seconds at most."""
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    if offline_by_environment():
        yield Finding("offline: HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set")
        return
    answers: list[Finding] = []
    asking = threading.Thread(target=lambda: answers.append(_asked(endpoint)), daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    if answers:
        yield answers[0]
    else:
        found = f"{endpoint} does not answer within {PATIENCE_S:.0f} seconds"
        yield Finding(found, "check the network; downloaded models work without it")


def _asked(endpoint: str) -> Finding:
    from mlxchat.models.hub import repo_size_bytes

    try:
        repo_size_bytes(RECOMMENDED[0].hub_id)
    except ModelNotFound as error:
        if token_place() is not None:
            return Finding(str(error), "run hf auth login: the token may have expired")
    except HubError as error:
        return Finding(str(error), "downloaded models work without it")
    return Finding(f"{endpoint} answers")


# The terminal


def terminal() -> Iterator[Finding]:
    if sys.stdout is None or not sys.stdout.isatty():
        yield Finding("stdout is not a terminal: plain text")
    else:
        size, kind = shutil.get_terminal_size(), os.environ.get("TERM", "")
        colours = ", no colours: NO_COLOR is set" if os.environ.get("NO_COLOR") else ""
        fix = None
        if size.columns < MIN_COLUMNS:
            fix = "make it wider: tables are hard to read"
        elif kind in ("", "dumb"):
            fix = "set TERM correctly to get colours and line editing"
        yield Finding(f"{size.columns} columns, {size.lines} lines, TERM={kind}{colours}", fix)
    encoding = locale.getencoding().lower()
    if encoding.replace("-", "") == "utf8":
        yield Finding("UTF-8", topic="characters")
        return
    # Not every macOS has C.UTF-8, and not every Linux has en_US.UTF-8.
    utf8 = "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8"
    found = f"the locale's encoding is {encoding}, but models write UTF-8"
    yield Finding(found, f"export LANG={utf8}, or another UTF-8 locale", topic="characters")
