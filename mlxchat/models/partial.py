"""Downloads of large files that resume where an earlier one was interrupted.

The library starts a file from the beginning each time: what it has of a file when it is interrupted
is lost, gigabytes of a large model. So the large files are fetched before it runs, each into
`<checksum>.incomplete` next to the finished files of its cache, and it finds them there.
"""

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, BinaryIO

from mlxchat.models.hub_cache import hub_cache_dir, repo_dir

# The library fetches smaller files, of which little can be lost.
MIN_BYTES = 1 << 22
# The Hub sends larger ones only to its own downloader, which the library uses.
MAX_BYTES = 50 * 10**9
PARALLEL = 4
PIECE_BYTES = 1 << 20
SUFFIX = ".incomplete"


class StoppedError(Exception):
    """Stops a worker thread of a download after Ctrl-C."""


@dataclass(frozen=True, slots=True)
class LargeFile:
    """A file in large-file storage, whose checksum is its SHA-256."""

    name: str
    size_bytes: int
    sha256: str

    @property
    def can_resume(self) -> bool:
        return MIN_BYTES <= self.size_bytes <= MAX_BYTES


@dataclass(frozen=True, slots=True)
class Fetch:
    """How to fetch files of one revision. `get` is the library's `http_get`, `lock` its lock."""

    repo_id: str
    get: Callable[..., object]
    lock: Callable[[str], Any]
    url_of: Callable[[str], str]
    headers: Mapping[str, str]
    reporter: Any
    stop: Event


def kept_bytes(repo_id: str, files: list[LargeFile]) -> int:
    """How much of these files is on the disk already, from interrupted downloads."""
    return sum(min(_size_bytes(_partial(repo_id, file)), file.size_bytes) for file in files)


def fetch_all(fetch: Fetch, files: list[LargeFile]) -> None:
    """Fetch these files into the cache, several at a time. Raises what `get` raises; what has
    arrived stays for the next time."""
    _remove_outdated(fetch.repo_id, files)
    with ThreadPoolExecutor(PARALLEL) as pool:
        futures = [pool.submit(_fetch, fetch, file) for file in files]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _fetch(fetch: Fetch, file: LargeFile) -> None:
    blob, partial = _blob(fetch.repo_id, file), _partial(fetch.repo_id, file)
    lock = hub_cache_dir() / ".locks" / repo_dir(fetch.repo_id).name / f"{file.sha256}.lock"
    for directory in (blob.parent, lock.parent):
        directory.mkdir(parents=True, exist_ok=True)
    # The library's own lock: another process, ours or not, fetches the file only once.
    with fetch.lock(str(lock)):
        if blob.exists():
            return
        kept = _size_bytes(partial)
        _receive(fetch, file, partial)
        if kept and not _is_sound(partial, file):
            # What an earlier download left was not what it should have been.
            partial.unlink()
            _receive(fetch, file, partial)
        partial.replace(blob)


def _receive(fetch: Fetch, file: LargeFile, partial: Path) -> None:
    """Append the rest of the file to what there is of it."""
    with partial.open("ab") as written:
        kept_bytes = written.tell()
        if kept_bytes > file.size_bytes:
            written.truncate(0)
            kept_bytes = 0
        _get(fetch, file, written, kept_bytes)


def _get(fetch: Fetch, file: LargeFile, written: BinaryIO, kept_bytes: int) -> None:
    if fetch.stop.is_set():
        raise StoppedError
    fetch.get(
        fetch.url_of(file.name),
        written,
        resume_size=kept_bytes,
        headers=dict(fetch.headers),
        expected_size=file.size_bytes,
        tqdm_class=fetch.reporter,
    )


def _is_sound(partial: Path, file: LargeFile) -> bool:
    digest = hashlib.sha256()
    with partial.open("rb") as read:
        while piece := read.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest() == file.sha256


def _remove_outdated(repo_id: str, files: list[LargeFile]) -> None:
    """Remove what is left of files that the model no longer has."""
    wanted = {_partial(repo_id, file) for file in files}
    for path in (repo_dir(repo_id) / "blobs").glob(f"*{SUFFIX}"):
        is_ours = len(path.name) == len(SUFFIX) + 64
        if is_ours and path not in wanted:
            with suppress(OSError):
                path.unlink()


def _blob(repo_id: str, file: LargeFile) -> Path:
    return repo_dir(repo_id) / "blobs" / file.sha256


def _partial(repo_id: str, file: LargeFile) -> Path:
    return _blob(repo_id, file).with_name(f"{file.sha256}{SUFFIX}")


def _size_bytes(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0
