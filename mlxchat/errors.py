"""All errors a user can meet, in one tree, with their exit statuses.

    MlxchatError           1
    ├── UsageError         2   invalid options, or options that exclude each other
    ├── ConfigError        2   the configuration file
    ├── InputError         1   a document: empty, binary, unreadable
    ├── ModelError         1   a model that cannot be loaded
    │   ├── ModelNotFound      no such file, directory, alias or hub id
    │   ├── ModelBroken        files missing, truncated or inconsistent
    │   ├── AdapterError       an adapter that cannot be used, or not with this model
    │   ├── ModelUnsupported   an architecture or format that mlxchat cannot run
    │   └── NotEnoughMemory    larger than the free memory
    ├── DeviceError        1   the GPU or the model's code failed, or memory ran out, in a run
    ├── HubError           1   the network, the Hub, a permission
    ├── CacheError         1   this model's cache cannot be bounded
    │   └── WindowTooSmall 2   no room in it for the system prompt and the template
    ├── ConstraintError    4   an answer that its constraint does not let continue
    ├── WindowFull         1   a turn does not fit, and nothing may be forgotten
    ├── TemplateError      1   the chat template is missing or rejects the messages
    ├── SessionError       1   a saved conversation: its name, its files, open elsewhere
    ├── SnapshotError      1   an unusable snapshot or checkpoint
    │   ├── SnapshotBroken     truncated, corrupted, or not a snapshot
    │   ├── SnapshotTooLarge   larger than the free memory
    │   └── SnapshotMismatch   made with a different model or different settings
    ├── RanksError         1   another rank: lost, hanging or incompatible
    └── OutputError        1   stdout or a file cannot be written
        └── ClosedPipe   141   the reader closed stdout, as `head` does: reported by status only

Each message is one line that names the flag and the value and says what to do. `cli` prints it and
exits.
"""

from enum import IntEnum


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

    def __init__(self, message: object = "") -> None:
        super().__init__(str(message))


class UsageError(MlxchatError):
    exit_status = ExitStatus.USAGE


class ConfigError(MlxchatError):
    exit_status = ExitStatus.USAGE


class InputError(MlxchatError): ...


class ModelError(MlxchatError): ...


class ModelNotFound(ModelError): ...


class ModelBroken(ModelError): ...


class ModelUnsupported(ModelError): ...


class AdapterError(ModelError): ...


class NotEnoughMemory(ModelError): ...


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


class SnapshotError(MlxchatError): ...


class SnapshotBroken(SnapshotError): ...


class SnapshotTooLarge(SnapshotError): ...


class SnapshotMismatch(SnapshotError): ...


class RanksError(MlxchatError): ...


class OutputError(MlxchatError): ...


class ClosedPipe(OutputError):
    exit_status = ExitStatus.BROKEN_PIPE
