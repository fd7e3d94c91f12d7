"""Every error that a user can meet, as one tree, and the exit statuses.

    MlxchatError           1
    ├── UsageError         2   what was asked for makes no sense: an option, a pair of options
    ├── ConfigError        2   the configuration file
    ├── InputError         1   a document: empty, binary, unreadable
    ├── ModelError         1   a model cannot be had or used
    │   ├── ModelNotFound      no such file, directory, alias or hub id
    │   ├── ModelBroken        files missing, truncated or contradicting each other
    │   ├── ModelUnsupported   understood, but not something that we can run
    │   └── NotEnoughMemory    larger than what this machine has free
    ├── DeviceError        1   the GPU or the memory gave out while a model ran
    ├── HubError           1   the network, the hub, a permission
    ├── CacheError         1   the window cannot be kept on this model
    ├── WindowFull         1   a turn does not fit, and nothing may be forgotten
    ├── TemplateError      1   the chat template is missing or refuses the messages
    ├── SessionError       1   a saved conversation: its name, its files, who has it open
    ├── SnapshotError      1   a snapshot or checkpoint that cannot be used
    │   ├── SnapshotBroken     truncated, corrupted, or no snapshot at all
    │   └── SnapshotMismatch   made with something else than what is to use it
    ├── RanksError         1   another rank: gone, hanging, or not fit to take part
    └── OutputError        1   stdout or a file cannot be written
        └── ClosedPipe   141   whoever read stdout has gone, as `head` does: not worth a word

Each message is one line that names the field and the value, and says what to do. `cli` shows it,
with flags in place of the fields, and exits.
"""

from enum import IntEnum

from mlxchat.wording import Message


class ExitStatus(IntEnum):
    OK = 0
    FAILURE = 1
    USAGE = 2
    LOOP = 3
    HUNG_UP = 129
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


class MlxchatError(Exception):
    """Base of all errors that a user can cause or mend: `UsageError(Field("keep"), " must …")`."""

    exit_status = ExitStatus.FAILURE

    def __init__(self, *words: object) -> None:
        super().__init__(Message(*words))


class UsageError(MlxchatError):
    exit_status = ExitStatus.USAGE


class ConfigError(MlxchatError):
    exit_status = ExitStatus.USAGE


class InputError(MlxchatError): ...


class ModelError(MlxchatError): ...


class ModelNotFound(ModelError): ...


class ModelBroken(ModelError): ...


class ModelUnsupported(ModelError): ...


class NotEnoughMemory(ModelError): ...


class DeviceError(MlxchatError): ...


class HubError(MlxchatError): ...


class CacheError(MlxchatError): ...


class WindowFull(MlxchatError): ...


class TemplateError(MlxchatError): ...


class SessionError(MlxchatError): ...


class SnapshotError(MlxchatError): ...


class SnapshotBroken(SnapshotError): ...


class SnapshotMismatch(SnapshotError): ...


class RanksError(MlxchatError): ...


class OutputError(MlxchatError): ...


class ClosedPipe(OutputError):
    exit_status = ExitStatus.BROKEN_PIPE
