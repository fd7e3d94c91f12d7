"""All errors a user can meet, in one tree, with their exit statuses.

    MlxchatError           1
    ├── UsageError         2   invalid options, or options that exclude each other
    ├── ConfigError        2   the configuration file
    ├── InputError         1   a document: empty, binary, unreadable
    ├── ModelError         1   a model or adapter that cannot be loaded, or memory for it
    │   ├── ModelNotFound      no such file, directory, alias or hub id
    │   ├── ModelBroken        files missing, truncated or inconsistent
    │   └── ModelUnsupported   an architecture or format that mlxchat cannot run
    ├── DeviceError        1   the GPU or the model's code failed, or memory ran out, in a run
    ├── HubError           1   the network, the Hub, a permission
    ├── CacheError         1   this model's cache cannot be bounded
    │   └── WindowTooSmall 2   no room in it for the system prompt and the template
    ├── ConstraintError    4   an answer that its constraint does not let continue
    ├── WindowFull         1   a turn does not fit, and nothing may be forgotten
    ├── TemplateError      1   the chat template is missing or rejects the messages
    ├── SessionError       1   a saved conversation: its files, open elsewhere
    │   └── InvalidName    2   a name that no session can have
    ├── SnapshotError      1   a snapshot or checkpoint of another model or other settings
    │   ├── SnapshotBroken     truncated, corrupted, or not a snapshot
    │   └── SnapshotTooLarge   larger than the free memory
    ├── RanksError         1   another rank: lost, hanging or incompatible
    └── OutputError        1   stdout or a file cannot be written
        └── ClosedPipe   141   the reader closed stdout, as `head` does: reported by status only

Each message is one line that names the flag and the value and says what to do. `cli` prints it and
exits. What is none of these is a bug, or another library's error.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path


class ExitStatus(IntEnum):
    OK = 0
    FAILURE = 1
    USAGE = 2
    LOOP = 3
    INCOMPLETE = 4
    HUNG_UP = 129
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


class MlxchatError(Exception):
    """Base of all errors users can cause or fix: `UsageError("--keep must …")`."""

    exit_status = ExitStatus.FAILURE


class UsageError(MlxchatError):
    exit_status = ExitStatus.USAGE


class ConfigError(MlxchatError):
    exit_status = ExitStatus.USAGE


class InputError(MlxchatError): ...


class ModelError(MlxchatError): ...


class ModelNotFound(ModelError): ...


class ModelBroken(ModelError): ...


class ModelUnsupported(ModelError): ...


class DeviceError(MlxchatError): ...


class HubError(MlxchatError): ...


class CacheError(MlxchatError): ...


class WindowTooSmall(CacheError):
    exit_status = ExitStatus.USAGE


class ConstraintError(MlxchatError):
    exit_status = ExitStatus.INCOMPLETE


class WindowFull(MlxchatError): ...


class TemplateError(MlxchatError): ...


class SessionError(MlxchatError): ...


class InvalidName(SessionError):
    exit_status = ExitStatus.USAGE


class SnapshotError(MlxchatError): ...


class SnapshotBroken(SnapshotError): ...


class SnapshotTooLarge(SnapshotError): ...


class RanksError(MlxchatError): ...


class OutputError(MlxchatError): ...


class RunEnded(MlxchatError):
    """There is nothing to resume: no failure, unless the run ended in one."""

    def __init__(self, message: str, exit_status: ExitStatus = ExitStatus.OK) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class ClosedPipe(OutputError):
    exit_status = ExitStatus.BROKEN_PIPE


# How MLX's device errors begin, and what those for lack of memory contain.
# Source: mlx/backend/metal/eval.cpp and allocator.cpp, mlx/allocator.h of ml-explore/mlx.
FAILED_COMMANDS = "[METAL] Command buffer execution failed"
OUT_OF_MEMORY = (
    *("[metal::malloc]", "[malloc", "Unable to allocate", "bad_alloc"),
    *("Insufficient Memory", "OutOfMemory"),
)


@contextmanager
def device_failures(*, of_model: bool = True) -> Iterator[None]:
    """Raise DeviceError if the device, the memory or (`of_model`) the model's code fails."""
    try:
        yield
    except MlxchatError:
        raise
    except Exception as error:
        detail = first_line(error)
        is_of_mlx = isinstance(error, RuntimeError)
        is_of_memory = is_of_mlx and any(each in detail for each in OUT_OF_MEMORY)
        if is_of_memory or isinstance(error, MemoryError):
            wrong = "out of memory: use a smaller window, a smaller or more heavily quantized model"
            raise DeviceError(f"{wrong}, or close other programs ({detail})") from error
        if is_of_mlx and detail.startswith(FAILED_COMMANDS):
            wrong = "the GPU failed: try again, with a smaller prefill step if it timed out"
            raise DeviceError(f"{wrong} ({detail})") from error
        if of_model and _is_of_model(error):
            raise DeviceError(f"the model's code failed: {detail}") from error
        raise


def _is_of_model(error: Exception) -> bool:
    """Whether a module of mlx-lm's, or what it calls other than our caches, raised it."""
    import traceback

    ours = f"{Path(__file__).parent}/"
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any("/mlx_lm/models/" in file for file in files) and not files[-1].startswith(ours)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if the message is empty."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
