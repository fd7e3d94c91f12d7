"""What goes wrong between here and the Hugging Face hub, in one line that says what to do."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from mlxchat.errors import HubError, MlxchatError, ModelNotFound
from mlxchat.models.hub_cache import hub_cache_dir
from mlxchat.wording import Action

_NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def one_line_errors(repo_id: str, *, downloading: bool = False) -> Iterator[None]:
    """Turn what huggingface_hub raises in the body into HubError or ModelNotFound.

    `downloading` says that the hub had answered before, so that what fails now is the line.
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
    """The error that the library met, where it raised "not found locally" in its place."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    while isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _refusal(error: BaseException, repo_id: str) -> MlxchatError | None:
    """What the hub, or something in its place, answered."""
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
            return HubError(f"HF_HUB_OFFLINE forbids asking the hub for {repo_id}: unset it")
        case errors.HfHubHTTPError():
            return _refusal_by_status(error.response.status_code, repo_id)
        case ValueError():
            return HubError(
                f"{_endpoint()} gave an answer that is not a hub's: a login page of this network, "
                "a proxy, or a wrong HF_ENDPOINT"
            )
    return None


def _refusal_by_status(status: int, repo_id: str) -> HubError:
    if status in (401, 403):
        return HubError(
            f"{_endpoint()} refuses access to {repo_id} ({status}): log in with `hf auth login`"
        )
    return HubError(f"{_endpoint()} answered {status} for {repo_id}: try again later")


def _disk_trouble(error: BaseException, repo_id: str) -> HubError | None:
    if not isinstance(error, OSError):
        return None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HubError(
            f"{hub_cache_dir()} is full: make room, or set HF_HOME to a larger disk; ",
            *_how_to_resume(repo_id),
        )
    if error.errno in _NO_PERMISSION:
        return HubError(f"cannot write to {hub_cache_dir()}: {error.strerror}")
    return None


def _lost_connection(error: BaseException, repo_id: str, downloading: bool) -> HubError:
    reason = next(iter(str(error).splitlines()), "") or type(error).__name__
    if downloading:
        return HubError(
            f"the download of {repo_id} broke off ({reason}): ", *_how_to_resume(repo_id)
        )
    return HubError(
        f"cannot reach {_endpoint()} ({reason}): check the network, "
        "or give a model that is on this disk"
    )


def _how_to_resume(repo_id: str) -> tuple[object, ...]:
    return "complete files are kept: ", Action("pull", "download it again", repo_id), " to resume"


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
