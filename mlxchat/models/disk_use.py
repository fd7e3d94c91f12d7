"""What the models and adapters downloaded from the Hub take on the disk, and how to free it.

Only models that can generate text, and their unfinished downloads, and adapters: other models, and
data sets, share the cache, but belong to other programs.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from mlxchat.errors import ModelError
from mlxchat.files import reported_as
from mlxchat.models.hub_cache import (
    ADAPTER_CONFIG,
    cached_repos,
    cached_revisions,
    cached_size_bytes,
    repo_dir,
    repo_ids,
    used_snapshot,
)
from mlxchat.models.inventory import is_language_model
from mlxchat.models.last_use import forget_use, last_use_s

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class DiskUse:
    """What one revision of a model or adapter takes, or the remains of unfinished downloads if
    `commit` is empty. `used` is when it was last used, in seconds since 1970.

    Revisions may share files: the space is free only when the last one that has them is deleted.
    """

    name: str
    commit: str
    is_current: bool
    size_bytes: int
    used: float


def disk_use() -> list[DiskUse]:
    """The revisions of all models and adapters, the largest of them first."""
    found = [list(_of_repo(repo_id)) for repo_id in _ours()]
    found.sort(key=lambda uses: -sum(use.size_bytes for use in uses))
    return [use for uses in found for use in uses]


def unused(days: float) -> list[DiskUse]:
    """The revisions that have not been used for that number of days."""
    before_s = time.time() - days * DAY_S
    return [use for use in disk_use() if use.used < before_s]


def delete(uses: list[DiskUse]) -> int:
    """Delete these revisions; return the bytes freed. Raises ModelError or HubError."""
    return sum(_delete(name, list(of_name)) for name, of_name in groupby(uses, lambda u: u.name))


def _ours() -> Iterator[str]:
    unfinished = {repo.repo_id for repo in cached_repos() if repo.snapshot is None}
    for repo_id in sorted(repo_ids()):
        if repo_id in unfinished or any(map(_is_ours, cached_revisions(repo_id))):
            yield repo_id


def _is_ours(snapshot: Path) -> bool:
    return is_language_model(snapshot) or (snapshot / ADAPTER_CONFIG).is_file()


def _of_repo(repo_id: str) -> Iterator[DiskUse]:
    current = used_snapshot(repo_id)
    rest = set(_blobs(repo_id))
    for snapshot in cached_revisions(repo_id):
        files = {path.resolve() for path in snapshot.rglob("*") if path.is_file()}
        rest -= files
        size_bytes = sum(map(_size_bytes, files))
        yield DiskUse(repo_id, snapshot.name, snapshot == current, size_bytes, last_use_s(snapshot))
    if rest:
        used = max(map(_changed_s, rest))
        yield DiskUse(repo_id, "", False, sum(map(_size_bytes, rest)), used)


def _delete(repo_id: str, uses: list[DiskUse]) -> int:
    # Only deleting needs the library, which takes a moment to import.
    from mlxchat.models import hub

    before_bytes = cached_size_bytes(repo_id)
    snapshots = cached_revisions(repo_id)
    commits = {use.commit for use in uses if use.commit}
    if len(uses) == sum(1 for _ in _of_repo(repo_id)):
        hub.remove(repo_id)
    else:
        if commits:
            hub.remove_revisions(repo_id, commits)
        if any(not use.commit for use in uses):
            _delete_remains(repo_id)
    for snapshot in snapshots:
        if snapshot.name in commits:
            forget_use(snapshot)
    return before_bytes - cached_size_bytes(repo_id)


def _delete_remains(repo_id: str) -> None:
    rest = set(_blobs(repo_id))
    for snapshot in cached_revisions(repo_id):
        rest -= {path.resolve() for path in snapshot.rglob("*")}
    for path in rest:
        with reported_as(ModelError, f"remove {path}"):
            path.unlink(missing_ok=True)


def _blobs(repo_id: str) -> Iterator[Path]:
    """Regular files only: the library may link them to a place that repositories share."""
    for path in (repo_dir(repo_id) / "blobs").glob("*"):
        if path.is_file() and not path.is_symlink():
            yield path.resolve()


def _size_bytes(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0


def _changed_s(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0
