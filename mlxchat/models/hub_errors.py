"""Turn errors from the Hugging Face hub into one line that says what to do."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from mlxchat.errors import HubError, MlxchatError, ModelNotFound
from mlxchat.failures import first_line
from mlxchat.models.hub_cache import hub_cache_dir


@contextmanager
def one_line_errors(repo_id: str, *, downloading: bool = False) -> Iterator[None]:
    """Turn the errors that huggingface_hub raises into HubError or ModelNotFound.

    `downloading`: the Hub has already answered, so only the connection can fail.
    """
    from huggingface_hub.errors import (
        HTTPError,  # pyright: ignore[reportPrivateImportUsage]  httpx's or httpx2's
    )

    try:
        yield
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        root = _root(error)
        raise (
            _refusal(root, repo_id)
            or _disk_trouble(root, repo_id)
            or _lost_connection(root, repo_id, downloading)
        ) from error


def _root(error: BaseException) -> BaseException:
    """The error that made the library say "not found locally"."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    while isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _refusal(error: BaseException, repo_id: str) -> MlxchatError | None:
    """The error for an answer from the Hub, or from a proxy."""
    from huggingface_hub import errors

    hub, log_in = _endpoint(), "log in with `hf auth login`"
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
    match error:
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


def _disk_trouble(error: BaseException, repo_id: str) -> HubError | None:
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        return HubError(
            f"{hub_cache_dir()} is full: make space, or set HF_HOME to a larger disk; "
            f"{_how_to_resume(repo_id)}"
        )
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return HubError(f"cannot write to {hub_cache_dir()}: {os.strerror(number)}")
    return None


def _lost_connection(error: BaseException, repo_id: str, downloading: bool) -> HubError:
    if downloading:
        failed = f"the download of {repo_id} failed: {_reason(error)}"
        return HubError(f"{failed}; {_how_to_resume(repo_id)}")
    return HubError(
        f"cannot reach {_endpoint()}: {_reason(error)}; check the network, or use a "
        "downloaded model (`mlxchat models list`)"
    )


def _reason(error: BaseException) -> str:
    """Why there is no connection: the first of the errors that led to this one."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    if isinstance(error, socket.gaierror):
        return "its name cannot be resolved"
    return (isinstance(error, OSError) and error.strerror) or first_line(error)


def _how_to_resume(repo_id: str) -> str:
    return f"complete files are kept: run `mlxchat models pull {repo_id}` to resume"


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
