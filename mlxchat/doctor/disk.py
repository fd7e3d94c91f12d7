"""What lies on the disk: caches and sessions, how large, whether they can be written."""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from mlxchat import paths
from mlxchat.doctor.finding import Finding, ok, problem, warning
from mlxchat.models.hub_cache import hub_cache_dir
from mlxchat.units import format_bytes
from mlxchat.wording import Field, Message

LEAST_FREE_BYTES = 1_000_000_000


def hub_cache() -> Iterator[Finding]:
    mend = "make it writable, or set HF_HOME to another place; until then nothing can be fetched"
    yield _directory("hub cache", hub_cache_dir(), mend)


def converted_models() -> Iterator[Finding]:
    mend = "make it writable; until then no .gguf file can be converted"
    yield _directory("converted models", paths.imported_models_dir(), mend)


def prefix_cache(limit_bytes: int) -> Iterator[Finding]:
    """`limit_bytes` is the most that is to be kept: on a disk with less room nothing is."""
    directory = paths.prefix_cache_dir()
    mend = "make it writable; until then prompts are read anew each time"
    finding = _directory("prefix cache", directory, mend, least_free_bytes=0)
    free_bytes = _free_bytes(directory)
    if finding.mend is None and free_bytes <= limit_bytes:
        yield warning(
            "prefix cache",
            f"{finding.found}: nothing is kept, since {format_bytes(limit_bytes)} might be",
            Message("make room, or set ", Field("prefix_cache_size"), " to less"),
        )
    else:
        yield finding


def sessions() -> Iterator[Finding]:
    directory = paths.sessions_dir()
    yield _directory("sessions", directory, "make it writable; until then chats are not saved")
    if directory.is_dir() and stat.S_IMODE(directory.stat().st_mode) & 0o077:
        yield warning(
            "sessions", f"others can look into {directory}", f"chmod go-rwx '{directory}'"
        )


def _directory(
    topic: str, directory: Path, mend: str, least_free_bytes: int = LEAST_FREE_BYTES
) -> Finding:
    """How large it is, whether it can be written, and how much room the disk has."""
    if os.path.lexists(directory) and not directory.is_dir():
        return problem(topic, f"{directory} is no directory", "move it away")
    if not os.access(_nearest(directory), os.W_OK | os.X_OK):
        return problem(topic, f"{directory} cannot be written", mend)
    size = format_bytes(_bytes_below(directory)) if directory.is_dir() else "nothing yet"
    free_bytes = _free_bytes(directory)
    found = f"{size} in {directory}, {format_bytes(free_bytes)} free"
    if free_bytes < least_free_bytes:
        return warning(topic, found, "make room on this disk")
    return ok(topic, found)


def _nearest(directory: Path) -> Path:
    """The directory itself, or the one that it would be made in."""
    return next(each for each in (directory, *directory.parents) if each.exists())


def _free_bytes(directory: Path) -> int:
    return shutil.disk_usage(_nearest(directory)).free


def _bytes_below(directory: Path) -> int:
    """Bytes of all files, each once; what cannot be looked at, or goes meanwhile, is left out."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                status = os.lstat(Path(parent, name))
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_size
    return total
