"""Caches and sessions on the disk: how large they are, and whether they can be written."""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from mlxchat import paths
from mlxchat.doctor.finding import Finding, ok, problem, warning
from mlxchat.models.hub_cache import hub_cache_dir
from mlxchat.units import format_bytes

MIN_FREE_BYTES = 1_000_000_000


def hub_cache() -> Iterator[Finding]:
    fix = "make it writable, or set HF_HOME to another directory, to be able to download models"
    yield _directory("hub cache", hub_cache_dir(), fix)


def converted_models() -> Iterator[Finding]:
    fix = "make it writable to be able to convert .gguf files"
    yield _directory("converted models", paths.imported_models_dir(), fix)


def prefix_cache(limit_bytes: int) -> Iterator[Finding]:
    """`limit_bytes` is the cache's maximum size; with less free space, nothing is cached."""
    directory = paths.prefix_cache_dir()
    fix = "make it writable; until then every prompt is read from scratch"
    finding = _directory("prefix cache", directory, fix, min_free_bytes=0)
    free_bytes = _free_bytes(directory)
    if finding.fix is None and free_bytes <= limit_bytes:
        yield warning(
            "prefix cache",
            f"{finding.found}: disabled, since it may grow to {format_bytes(limit_bytes)}",
            "free some space, or lower --prefix-cache-size",
        )
    else:
        yield finding


def sessions() -> Iterator[Finding]:
    directory = paths.sessions_dir()
    yield _directory("sessions", directory, "make it writable; until then chats are not saved")
    if directory.is_dir() and stat.S_IMODE(directory.stat().st_mode) & 0o077:
        yield warning(
            "sessions", f"other users can read {directory}", f"chmod go-rwx '{directory}'"
        )


def _directory(
    topic: str, directory: Path, fix: str, min_free_bytes: int = MIN_FREE_BYTES
) -> Finding:
    """The directory's size, whether it can be written, and the disk's free space."""
    if os.path.lexists(directory) and not directory.is_dir():
        return problem(topic, f"{directory} is not a directory", "move it away")
    if not os.access(_nearest(directory), os.W_OK | os.X_OK):
        return problem(topic, f"{directory} cannot be written", fix)
    size = format_bytes(_bytes_below(directory)) if directory.is_dir() else "0 bytes"
    free_bytes = _free_bytes(directory)
    found = f"{size} in {directory}, {format_bytes(free_bytes)} free"
    if free_bytes < min_free_bytes:
        return warning(topic, found, "free some space on this disk")
    return ok(topic, found)


def _nearest(directory: Path) -> Path:
    """The directory, or the nearest existing one above it."""
    return next(each for each in (directory, *directory.parents) if each.exists())


def _free_bytes(directory: Path) -> int:
    return shutil.disk_usage(_nearest(directory)).free


def _bytes_below(directory: Path) -> int:
    """Total size of all files, each counted once, except those that cannot be examined."""
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
