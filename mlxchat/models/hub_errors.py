"""Turn errors from the Hugging Face hub into one line that says what to do."""

import errno
import os
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from mlxchat.errors import HubError, MlxchatError, ModelNotFound
from mlxchat.models.hub_cache import hub_cache_dir

_REASONS: dict[type[OSError], str] = {
    socket.gaierror: "its name cannot be resolved",
    ConnectionRefusedError: "the connection was refused",
    ssl.SSLCertVerificationError: "its certificate is not trusted",
    ConnectionResetError: "the connection was lost",
    BrokenPipeError: "the connection was lost",
    TimeoutError: "no answer in time",
}
_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)
# Python's prefix, as in "[Errno 104] Connection reset by peer".
_ERRNO = re.compile(r"^\[Errno -?\d+\] ")
_NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)


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

    match error:
        case errors.GatedRepoError():
            return HubError(
                f"{repo_id} is gated: ask for access at {_endpoint()}/{repo_id}, "
                "then log in with `hf auth login`"
            )
        case errors.RepositoryNotFoundError():
            return ModelNotFound(
                f"{_endpoint()} has no model {repo_id}: check the spelling, or log in with "
                "`hf auth login` if it is private"
            )
        case errors.OfflineModeIsEnabled():
            return HubError(f"HF_HUB_OFFLINE is set: unset it to ask the Hub for {repo_id}")
        case errors.HfHubHTTPError():
            return _refusal_by_status(error.response.status_code, repo_id)
        case ValueError():
            return HubError(
                f"{_endpoint()} does not answer like a hub: check for a network login page, a "
                "proxy, or a wrong HF_ENDPOINT"
            )
    return None


def _refusal_by_status(status: int, repo_id: str) -> HubError:
    if status in (401, 403):
        return HubError(
            f"{_endpoint()} denied access to {repo_id} ({status}): log in with `hf auth login`"
        )
    return HubError(f"{_endpoint()} answered {status} for {repo_id}: try again later")


def _disk_trouble(error: BaseException, repo_id: str) -> HubError | None:
    if not isinstance(error, OSError):
        return None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HubError(
            f"{hub_cache_dir()} is full: make space, or set HF_HOME to a larger disk; "
            f"{_how_to_resume(repo_id)}"
        )
    if error.errno in _NO_PERMISSION:
        return HubError(f"cannot write to {hub_cache_dir()}: {error.strerror}")
    return None


def _lost_connection(error: BaseException, repo_id: str, downloading: bool) -> HubError:
    reason = _reason(error)
    if downloading:
        return HubError(f"the download of {repo_id} failed: {reason}; {_how_to_resume(repo_id)}")
    return HubError(
        f"cannot reach {_endpoint()}: {reason}; check the network, or use a "
        "downloaded model (`mlxchat models list`)"
    )


def _reason(error: BaseException) -> str:
    """Why there is no connection, from the first of the errors that led to this one."""
    for each in _chain(error):
        for kind, reason in _REASONS.items():
            if isinstance(each, kind):
                return reason
        if isinstance(each, OSError) and each.errno in _NO_ROUTE:
            return "no network"
    text = next(iter(str(error).splitlines()), "") or type(error).__name__
    return _ERRNO.sub("", text)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that led to it; the last one first."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    yield from reversed(found)


def _how_to_resume(repo_id: str) -> str:
    return f"complete files are kept: run `mlxchat models pull {repo_id}` to resume"


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
