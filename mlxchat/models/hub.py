"""Access to the Hugging Face hub: sizes, downloads, removal.

The library is imported only in the functions that need it; `hub_cache` finds downloaded models
without it, and `hub_errors` puts its errors into words.
"""

import glob
import inspect
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

from mlxchat.errors import AdapterError, HubError, ModelNotFound, ModelUnsupported
from mlxchat.models.hub_cache import (
    ADAPTER_PATTERNS,
    ALLOW_PATTERNS,
    cached_repos,
    cached_size_bytes,
    cached_snapshot,
    holds_adapter,
    holds_model,
    hub_cache_dir,
    is_wanted,
    repo_dir,
    snapshot_dir,
)
from mlxchat.models.hub_errors import one_line_errors
from mlxchat.models.partial import Fetch, LargeFile, StoppedError, fetch_all, kept_bytes
from mlxchat.models.skeleton import read_config
from mlxchat.progress import Notify
from mlxchat.units import format_bytes

__all__ = ["cached_repos", "cached_snapshot", "download", "remove", "repo_size_bytes"]

SHA256 = re.compile(r"[0-9a-f]{64}")
QUICK_TIMEOUT_S = 3.0
PATIENT_TIMEOUT_S = 10.0
# A download that would leave less than this on the disk is refused.
SPARE_DISK_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class _RemoteFiles:
    """The files that a model or adapter needs from a repository's main revision."""

    commit: str
    size_bytes: dict[str, int]
    large: tuple[LargeFile, ...] = ()


def _reports_progress() -> bool:
    """Whether this version of the library reports the progress of a single file."""
    from huggingface_hub.file_download import http_get

    return "tqdm_class" in inspect.signature(http_get).parameters


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be downloaded: the `large` files first, then all that match the patterns."""

    repo_id: str
    commit: str
    large: list[LargeFile]
    missing_bytes: int
    patterns: tuple[str, ...]


def repo_size_bytes(repo_id: str) -> int:
    """Ask the Hub for the download size of `repo_id`, for a few seconds at most.

    Raises ModelNotFound for an unknown id and HubError if the Hub does not answer.
    """
    return sum(_remote_files(repo_id, QUICK_TIMEOUT_S, ALLOW_PATTERNS).size_bytes.values())


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model on the Hub: its config.json, and the bytes of all its files and of its weights."""

    config: dict[str, Any]
    size_bytes: int
    weight_bytes: int


def look_up(repo_id: str) -> RemoteModel:
    """Ask the Hub about a model without caching anything. Raises what `download` raises."""
    files = _remote_files(repo_id, PATIENT_TIMEOUT_S, ALLOW_PATTERNS)
    _require_safetensors(repo_id, files)
    sizes = files.size_bytes
    with (
        tempfile.TemporaryDirectory() as directory,
        one_line_errors(repo_id),
        _bar(repo_id, 0, show_progress=False) as bar,
    ):
        path = _library().hf_hub_download(
            repo_id,
            "config.json",
            revision=files.commit,
            cache_dir=directory,
            tqdm_class=_reporter_class(bar, Event()),
        )
        config = read_config(Path(path).parent)
    weights = [size for name, size in sizes.items() if name.endswith(".safetensors")]
    return RemoteModel(config, sum(sizes.values()), sum(weights))


def download(repo_id: str, *, show_progress: bool, notify: Notify) -> Path:
    """Download the repository's main revision into the cache and return its directory.

    Complete files of an earlier download are kept. `show_progress` draws a bar on stderr if that is
    a terminal. Ctrl-C stops the download immediately.

    Raises ModelNotFound for an unknown id, ModelUnsupported for a repository without safetensors,
    and HubError for problems with the network, access or disk space.
    """
    files = _remote_files(repo_id, PATIENT_TIMEOUT_S, ALLOW_PATTERNS)
    _require_safetensors(repo_id, files)
    return _download(repo_id, files, ALLOW_PATTERNS, show_progress, notify)


def download_adapter(repo_id: str, *, show_progress: bool, notify: Notify) -> Path:
    """As `download`, for an adapter: its configuration and its arrays, nothing else.

    Raises AdapterError for a repository without them, and what `download` raises.
    """
    files = _remote_files(repo_id, PATIENT_TIMEOUT_S, ADAPTER_PATTERNS)
    if not holds_adapter(files.size_bytes):
        raise AdapterError(
            f"{repo_id} is not an adapter: it has no adapter_config.json with "
            "adapters.safetensors or adapter_model.safetensors"
        )
    return _download(repo_id, files, ADAPTER_PATTERNS, show_progress, notify)


def remove(repo_id: str) -> int:
    """Delete every revision of `repo_id` from the cache; return the bytes freed.

    Raises ModelNotFound if it is not cached, HubError if it cannot be deleted.
    """
    directory = repo_dir(repo_id)
    if not directory.is_dir():
        raise ModelNotFound(f"{repo_id} is not in the cache at {hub_cache_dir()}")
    size_bytes = cached_size_bytes(repo_id)
    with one_line_errors(repo_id):
        _delete_revisions(repo_id)
        # The library ignores the remains of an interrupted download.
        if directory.exists():
            shutil.rmtree(directory)
    return size_bytes


def _delete_revisions(repo_id: str) -> None:
    # The library knows which blobs are shared. It assumes unique commits, but a copied repository
    # has those of the original, so only this one is passed.
    cache = _library().scan_cache_dir(hub_cache_dir())
    ours = [repo for repo in cache.repos if (repo.repo_type, repo.repo_id) == ("model", repo_id)]
    commits = [revision.commit_hash for repo in ours for revision in repo.revisions]
    replace(cache, repos=frozenset(ours)).delete_revisions(*commits).execute()


def _remote_files(repo_id: str, timeout_s: float, patterns: Collection[str]) -> _RemoteFiles:
    with one_line_errors(repo_id):
        info = _library().HfApi().model_info(repo_id, timeout=timeout_s, files_metadata=True)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    large = (
        LargeFile(file.rfilename, file.lfs.size, file.lfs.sha256)
        for file in info.siblings or []
        if file.lfs is not None and SHA256.fullmatch(file.lfs.sha256)
    )
    return _RemoteFiles(
        commit=info.sha or "",
        size_bytes={name: size for name, size in sizes.items() if is_wanted(name, patterns)},
        large=tuple(file for file in large if is_wanted(file.name, patterns) and file.can_resume),
    )


def _require_safetensors(repo_id: str, files: _RemoteFiles) -> None:
    if not holds_model(files.size_bytes):
        raise ModelUnsupported(
            f"{repo_id} has no config.json with model*.safetensors: look for a conversion at "
            "https://huggingface.co/mlx-community, or download a .gguf file and use its path"
        )


def _missing_bytes(repo_id: str, files: _RemoteFiles) -> int:
    snapshot = snapshot_dir(repo_id, files.commit)
    return sum(size for name, size in files.size_bytes.items() if not (snapshot / name).is_file())


def _require_disk_space(repo_id: str, missing_bytes: int) -> None:
    directory = hub_cache_dir()
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    free_bytes = shutil.disk_usage(existing).free
    if missing_bytes and missing_bytes + SPARE_DISK_BYTES > free_bytes:
        raise HubError(
            f"{repo_id} needs {format_bytes(missing_bytes)}, but {directory} has "
            f"{format_bytes(free_bytes)} free: make space, or set HF_HOME to a larger disk"
        )


def _download(
    repo_id: str,
    files: _RemoteFiles,
    patterns: Collection[str],
    show_progress: bool,
    notify: Notify,
) -> Path:
    large = _missing_large_files(repo_id, files)
    kept = kept_bytes(repo_id, large)
    missing_bytes = _missing_bytes(repo_id, files) - kept
    _require_disk_space(repo_id, missing_bytes)
    if kept:
        notify(f"resuming the download of {repo_id}, {format_bytes(missing_bytes)} left")
    elif missing_bytes:
        notify(f"downloading {repo_id}, {format_bytes(missing_bytes)}")
    plan = _Plan(repo_id, files.commit, large, missing_bytes, tuple(patterns))
    return _fetch(plan, show_progress)


def _missing_large_files(repo_id: str, files: _RemoteFiles) -> list[LargeFile]:
    """Those to be fetched so that they can resume; none if the user asked for the library's fastest
    way, which cannot."""
    if os.environ.get("HF_XET_HIGH_PERFORMANCE") or not _reports_progress():
        return []
    snapshot = snapshot_dir(repo_id, files.commit)
    return [file for file in files.large if not (snapshot / file.name).is_file()]


def _fetch(plan: _Plan, show_progress: bool) -> Path:
    """Run the library's download in a thread, so that Ctrl-C can stop its workers.

    Alone, the library would finish the files in progress, gigabytes each.
    """
    stop = Event()
    pool = ThreadPoolExecutor(max_workers=1)
    with (
        one_line_errors(plan.repo_id, downloading=True),
        _bar(plan.repo_id, plan.missing_bytes, show_progress) as bar,
    ):
        reporter = _reporter_class(bar, stop)
        fetch = _large_files_fetch(plan.repo_id, plan.commit, reporter, stop)

        def download(but: Collection[str] = ()) -> str:
            return _library().snapshot_download(
                plan.repo_id,
                cache_dir=hub_cache_dir(),
                allow_patterns=list(plan.patterns),
                ignore_patterns=[glob.escape(name) for name in but],
                tqdm_class=reporter,
            )

        def download_all() -> str:
            if plan.large:
                # First the small files: they say what the model is, should this be interrupted.
                download(but=[file.name for file in plan.large])
                fetch_all(fetch, plan.large)
            return download()

        future = pool.submit(download_all)
        try:
            return Path(future.result())
        except BaseException:
            _stop_workers(stop)
            raise
        finally:
            pool.shutdown()


def _large_files_fetch(repo_id: str, commit: str, reporter: Any, stop: Event) -> Fetch:
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import WeakFileLock, build_hf_headers

    library = _library()
    return Fetch(
        repo_id=repo_id,
        get=http_get,
        lock=WeakFileLock,
        url_of=lambda name: library.hf_hub_url(repo_id, name, revision=commit),
        headers=build_hf_headers(),
        reporter=reporter,
        stop=stop,
    )


def _bar(repo_id: str, missing_bytes: int, show_progress: bool) -> Any:
    """The progress bar, on stderr if that is a terminal."""
    from huggingface_hub.utils import tqdm

    return tqdm(
        desc=repo_id,
        total=missing_bytes,
        unit="B",
        unit_scale=True,
        leave=False,
        disable=None if show_progress else True,
    )


def _reporter_class(bar: Any, stop: Event) -> Any:
    from huggingface_hub.utils import tqdm

    class Reporter(tqdm):
        """Replaces the library's bars: draws nothing, and adds their bytes to `bar`.

        Workers report every chunk here, so this also stops them.
        """

        def __init__(self, *args: Any, **kwargs: Any):
            # The library counts received and written bytes separately; we show the written ones.
            in_transit = str(kwargs.get("name")).endswith(".transfer")
            self._counts = kwargs.get("unit") == "B" and not in_transit
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            if stop.is_set():
                raise StoppedError
            if self._counts:
                bar.update(n)
            return super().update(n)

    return Reporter


def _stop_workers(stop: Event) -> None:
    stop.set()
    # A chunk is 10 MB, minutes on a slow line: closing the connections ends the wait for it.
    _library().close_session()
    # The library's native downloader has separate connections and a private function to stop it.
    # Without that function, Ctrl-C waits until the current files are complete.
    xet = sys.modules.get("huggingface_hub.utils._xet")
    abort = getattr(xet, "abort_xet_session", None)
    if abort is not None:
        abort()


def _library() -> Any:
    import huggingface_hub
    from huggingface_hub.utils import logging

    # Its warnings are paragraphs about tokens and retries. Failures arrive as exceptions.
    logging.set_verbosity_error()
    return huggingface_hub
