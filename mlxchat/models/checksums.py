"""Compares the files of a downloaded model with the Hub's checksums, without the network.

The library names each file in its cache after its checksum, and stores a list of them.
Source of the layout: https://huggingface.co/docs/hub/local-cache
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from mlxchat.errors import ModelBroken, ModelNotFound, UsageError
from mlxchat.files import open_to_read, reported_as
from mlxchat.models.hub_cache import checksums, hub_cache_dir, used_snapshot
from mlxchat.models.locate import Located
from mlxchat.progress import Progress
from mlxchat.units import format_bytes
from mlxchat.wording import Action

PIECE_BYTES = 1 << 20
SHA256_DIGITS = 64


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file of a model. `problem` is "missing", how it was truncated, "altered", or why it cannot
    be checked; None if it is as on the Hub."""

    name: str
    size_bytes: int
    problem: str | None
    is_damaged: bool


def check_files(located: Located, progress: Progress) -> list[CheckedFile]:
    """Check every file of the revision in use; `progress` counts megabytes.

    Raises UsageError for a model that is not from the Hub, ModelNotFound if it is not downloaded,
    ModelBroken if a file cannot be read.
    """
    if located.path is not None:
        raise UsageError(f"{located.name} is not from the Hub, which has no checksums for it")
    snapshot = used_snapshot(located.name)
    if snapshot is None:
        raise ModelNotFound(
            f"{located.name} is not in the cache at {hub_cache_dir()}: ",
            Action("pull", "download it", located.name),
        )
    expected = checksums(located.name, snapshot.name)
    paths = (path for path in snapshot.rglob("*") if path.is_file())
    names = sorted({str(path.relative_to(snapshot)) for path in paths} | set(expected))
    sizes = {name: _size_bytes(snapshot / name) for name in names}
    count = _Count(progress, sum(sizes.values()))
    return [
        _checked(snapshot / name, name, sizes[name], expected.get(name), count) for name in names
    ]


def remove_damaged(located: Located, files: list[CheckedFile]) -> None:
    """Delete the damaged ones, so that the next download replaces them. Raises ModelBroken."""
    snapshot = used_snapshot(located.name)
    for file in files:
        if snapshot is None or not file.is_damaged:
            continue
        path = snapshot / file.name
        blob = path.resolve()
        with reported_as(ModelBroken, f"remove {path}"):
            path.unlink(missing_ok=True)
            # A link could lead out of the cache.
            if blob.parent == (snapshot.parent.parent / "blobs").resolve():
                blob.unlink(missing_ok=True)


class _Count:
    """Counts the bytes read, as megabytes."""

    def __init__(self, progress: Progress, total_bytes: int) -> None:
        self._progress = progress
        self._done_bytes = 0
        self._total_bytes = total_bytes

    def add(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        self._progress(self._done_bytes // 10**6, self._total_bytes // 10**6)


def _checked(
    path: Path, name: str, size_bytes: int, expected: tuple[int | None, str] | None, count: _Count
) -> CheckedFile:
    if not path.is_file():
        return CheckedFile(name, 0, "missing", is_damaged=True)
    if expected is None:
        count.add(size_bytes)
        return CheckedFile(name, size_bytes, "not checked: it has no checksum", is_damaged=False)
    expected_bytes, checksum = expected
    problem = None
    if expected_bytes is not None and size_bytes < expected_bytes:
        count.add(size_bytes)
        sizes = f"{format_bytes(size_bytes)} of {format_bytes(expected_bytes)}"
        problem = f"truncated: {sizes}"
    elif _checksum(path, size_bytes, checksum, count) != checksum:
        problem = "altered"
    return CheckedFile(name, size_bytes, problem, is_damaged=problem is not None)


def _checksum(path: Path, size_bytes: int, like: str, count: _Count) -> str:
    """SHA-256, or SHA-1 as git computes it, whichever is as long as `like`."""
    if len(like) == SHA256_DIGITS:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)
    with reported_as(ModelBroken, f"read {path}"), open_to_read(path) as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
            count.add(len(piece))
    return digest.hexdigest()


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
