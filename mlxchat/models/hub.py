"""Access to the Hugging Face hub: sizes and downloads.

The library is imported only in the functions that need it, and its errors become one line that says
what to do; `hub_cache` finds downloaded models without it.
"""

import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mlxchat.errors import HubError, MlxchatError, ModelNotFound, ModelUnsupported, first_line
from mlxchat.models.hub_cache import (
    ALLOW_PATTERNS,
    holds_model,
    hub_cache_dir,
    is_wanted,
    repo_dir,
    snapshot_dir,
)
from mlxchat.models.skeleton import read_config
from mlxchat.units import Notify, format_bytes

QUICK_TIMEOUT_S = 3.0
PATIENT_TIMEOUT_S = 10.0
# A download that would leave less than this on the disk is refused.
SPARE_DISK_BYTES = 100_000_000

# The commit of a repository's main revision; the bytes and name of the blob of each needed file.
_RemoteFiles = tuple[str, dict[str, tuple[int, str]]]


def check_exists(repo_id: str) -> None:
    """Ask the Hub for `repo_id`, for a few seconds at most. Raises ModelNotFound for an unknown id,
    and HubError if the Hub does not answer."""
    _remote_files(repo_id, QUICK_TIMEOUT_S)


def look_up(repo_id: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Ask the Hub about a model without caching anything: its config.json, and the size of each
    file in bytes. Raises what `download` raises."""
    from huggingface_hub.utils import disable_progress_bars

    commit, files = _model_files(repo_id)
    disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder, _one_line_errors(repo_id):
        path = _library().hf_hub_download(repo_id, "config.json", revision=commit, cache_dir=folder)
        return read_config(Path(path).parent), {name: size for name, (size, _) in files.items()}


def download(repo_id: str, *, show_progress: bool, notify: Notify) -> Path:
    """Download the repository's main revision into the cache and return its directory.

    Keeps complete files of an earlier download. `show_progress` draws a bar on a terminal's stderr.

    Raises ModelNotFound for an unknown id, ModelUnsupported for a repository without safetensors,
    and HubError for problems with the network, access or disk space.
    """
    commit, files = _model_files(repo_id)
    snapshot, blobs = snapshot_dir(repo_id, commit), repo_dir(repo_id) / "blobs"
    # Revisions share blobs, where the disk has links.
    missing_bytes = sum(
        size
        for name, (size, blob) in files.items()
        if not ((snapshot / name).is_file() or (blobs / blob).is_file())
    )
    if missing_bytes:
        _remove_leftovers(repo_id)
        _require_disk_space(repo_id, missing_bytes)
        notify(f"downloading {repo_id}, {format_bytes(missing_bytes)}")
    errors = _one_line_errors(repo_id, downloading=True)
    with errors, _bar(repo_id, missing_bytes, show_progress) as bar:
        path = _library().snapshot_download(
            repo_id,
            cache_dir=hub_cache_dir(),
            allow_patterns=list(ALLOW_PATTERNS),
            tqdm_class=_reporter_class(bar),
        )
    return Path(path)


def _remote_files(repo_id: str, timeout_s: float) -> _RemoteFiles:
    with _one_line_errors(repo_id):
        info = _library().HfApi().model_info(repo_id, timeout=timeout_s, files_metadata=True)
    return info.sha or "", {
        file.rfilename: (file.size or 0, (file.lfs.sha256 if file.lfs else file.blob_id) or "")
        for file in info.siblings or []
        if is_wanted(file.rfilename)
    }


def _model_files(repo_id: str) -> _RemoteFiles:
    commit, files = _remote_files(repo_id, PATIENT_TIMEOUT_S)
    if not holds_model(files):
        raise ModelUnsupported(
            f"{repo_id} has no config.json with model*.safetensors: look for a conversion at "
            "https://huggingface.co/mlx-community, or download a .gguf file and use its path"
        )
    return commit, files


def _require_disk_space(repo_id: str, missing_bytes: int) -> None:
    directory = hub_cache_dir()
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    free_bytes = shutil.disk_usage(existing).free
    if missing_bytes + SPARE_DISK_BYTES > free_bytes:
        raise HubError(
            f"{repo_id} needs {format_bytes(missing_bytes)}, but {directory} has "
            f"{format_bytes(free_bytes)} free: make space, or set HF_HOME to a larger disk"
        )


def _remove_leftovers(repo_id: str) -> None:
    """Remove what the library left of files when it was killed: it starts them again.

    A file that another process is writing keeps its lock, so that process is not disturbed.
    """
    from huggingface_hub.utils import WeakFileLock

    locks = hub_cache_dir() / ".locks" / repo_dir(repo_id).name
    for path in (repo_dir(repo_id) / "blobs").glob("*.incomplete"):
        lock = locks / f"{path.name.partition('.')[0]}.lock"
        with suppress(OSError, TimeoutError), WeakFileLock(lock, timeout=0.1):
            path.unlink()


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


def _reporter_class(bar: Any) -> Any:
    from huggingface_hub.utils import tqdm

    class Reporter(tqdm):
        """Replaces the library's bars: draws nothing, and adds their bytes to `bar`."""

        def __init__(self, *args: Any, **kwargs: Any):
            # The library counts received and written bytes separately; we show the written ones.
            in_transit = str(kwargs.get("name")).endswith(".transfer")
            self._counts = kwargs.get("unit") == "B" and not in_transit
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            if self._counts:
                bar.update(n)
            return super().update(n)

    return Reporter


def _library() -> Any:
    import huggingface_hub
    from huggingface_hub.utils import logging

    # Its warnings are paragraphs about tokens and retries. Failures arrive as exceptions.
    logging.set_verbosity_error()
    return huggingface_hub


@contextmanager
def _one_line_errors(repo_id: str, *, downloading: bool = False) -> Iterator[None]:
    """Turn the errors that huggingface_hub raises into HubError or ModelNotFound.

    `downloading`: the Hub has already answered, so only the connection can fail.
    """
    from huggingface_hub.errors import (
        HTTPError,  # pyright: ignore[reportPrivateImportUsage]  httpx's or httpx2's
    )

    try:
        yield
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        raise _refusal(error, repo_id) or _lost_connection(error, repo_id, downloading) from error


def _refusal(error: BaseException, repo_id: str) -> MlxchatError | None:
    """The error for an answer from the Hub, or from a proxy."""
    from huggingface_hub import errors

    hub, log_in = _endpoint(), "log in with `hf auth login`"
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
    match error:
        case errors.LocalEntryNotFoundError() if error.__cause__ is not None:
            return _refusal(error.__cause__, repo_id)
        case errors.GatedRepoError():
            why = f"{repo_id} is gated: ask for access at {hub}/{repo_id}, then {log_in}"
        case errors.RepositoryNotFoundError():
            return ModelNotFound(
                f"{hub} has no model {repo_id}: check the spelling, or {log_in} if it is private"
            )
        case errors.OfflineModeIsEnabled():
            why = f"HF_HUB_OFFLINE is set: unset it to ask the Hub for {repo_id}"
        case errors.HfHubHTTPError() if status in (401, 403):
            why = f"{hub} denied access to {repo_id} ({status}): {log_in}"
        case errors.HfHubHTTPError():
            why = f"{hub} answered {status} for {repo_id}: try again later"
        case ValueError():
            why = (
                f"{hub} does not answer like a hub: check for a network login page, a "
                "proxy, or a wrong HF_ENDPOINT"
            )
        case _:
            return None
    return HubError(why)


def _lost_connection(error: BaseException, repo_id: str, downloading: bool) -> HubError:
    if downloading:
        how = f"complete files are kept: run `mlxchat models pull {repo_id}` to resume"
        return HubError(f"the download of {repo_id} failed: {_reason(error)}; {how}")
    how = "check the network, or use a downloaded model (`mlxchat models list`)"
    return HubError(f"cannot reach {_endpoint()}: {_reason(error)}; {how}")


def _reason(error: BaseException) -> str:
    """Why there is no connection: the first of the errors that led to this one."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved"
    return (isinstance(error, OSError) and error.strerror) or first_line(error)


def _endpoint() -> str:
    """Its address as a message may show it: without a password."""
    written = os.environ.get("HF_ENDPOINT", "") or "https://huggingface.co"
    return re.sub("//.*@", "//", written.rstrip("/"))
