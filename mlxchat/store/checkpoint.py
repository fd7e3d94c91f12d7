"""A checkpoint directory of a long generation: the request, the prompt's tokens, the latest state.

    run.json              a RunRecord
    prompt.safetensors    the prompt's token ids
    state.safetensors     a snapshot, replaced by the next one
    lock                  held by the process that runs it

The caller interprets the state's facts.
"""

import json
import shlex
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from mlxchat.errors import OutputError, SnapshotBroken, UsageError
from mlxchat.files import (
    Lock,
    make_private_directory,
    open_to_read,
    remove_unfinished,
    reported_as,
    write_atomically,
)
from mlxchat.request import Request
from mlxchat.settings import SamplingSettings
from mlxchat.store import tensor_file
from mlxchat.store.snapshot import StateFile
from mlxchat.text.encoder import TokenIds

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run. What was chosen for the user when it began is in the `request`, so that it continues
    the same: the model's directory or name, the window, the deadline.

    `sampling` are the values in effect. `ended` is why there is nothing to continue, if so.
    """

    version: Literal[2]
    request: Request
    sampling: SamplingSettings
    ended: str | None = None


class Checkpoint:
    """Open to this process alone until `close`. `state` is the latest state; `run` is the content
    of run.json after `begin` or `open`."""

    run: RunRecord

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = StateFile(self._path("state"))
        self._lock = Lock(directory / "lock", f"the checkpoint {directory}")
        self._lock.sign()

    @classmethod
    def create(cls, directory: Path) -> "Checkpoint":
        """Create the directory. Raises UsageError for an existing checkpoint, or OutputError."""
        with reported_as(OutputError, f"create {directory}"):
            make_private_directory(directory)
            if (directory / "run.json").exists():
                raise UsageError(
                    f"{directory} already contains a checkpoint: continue it with "
                    f"--resume {shlex.quote(str(directory))}"
                )
            return cls(directory)

    @classmethod
    def open(cls, directory: Path) -> "Checkpoint":
        """Open it to continue. Raises UsageError if it is missing, SnapshotBroken if damaged."""
        if not (directory / "run.json").is_file():
            raise UsageError(
                f"no checkpoint in {directory}: --resume takes the directory of --checkpoint"
            )
        with reported_as(OutputError, f"use {directory}"):
            checkpoint = cls(directory)
        for path in (directory / "run.json", checkpoint.state.path):
            remove_unfinished(path)
        path = directory / "run.json"
        try:
            with reported_as(SnapshotBroken, f"read {path}"), open_to_read(path) as file:
                checkpoint.run = from_json(RunRecord, json.loads(file.read()))
        except (ValueError, RecursionError) as error:
            checkpoint.close()
            raise SnapshotBroken(f"cannot read {path}: {error}; use a new --checkpoint") from error
        return checkpoint

    def close(self) -> None:
        self.state.background.wait()
        self._lock.release()
        with suppress(OSError):  # Empty if nothing has begun.
            self.directory.rmdir()

    def begin(self, run: RunRecord, prompt: TokenIds) -> None:
        """Save the request, and the prompt `(T,)`. Raises OutputError."""
        with self._writing():
            # Of a run whose run.json is gone.
            self.state.path.unlink(missing_ok=True)
            tensor_file.write(self._path("prompt"), {"ids": prompt.astype(np.int32)}, {})
        self.change(run)

    def discard(self) -> None:
        """Let another run begin here. Raises OutputError."""
        with self._writing():
            (self.directory / "run.json").unlink(missing_ok=True)

    def change(self, run: RunRecord) -> None:
        """Replace the request, and reopen a run that had ended. Raises OutputError."""
        self.run = run
        data = json.dumps(to_json(run), indent=2).encode()
        with self._writing():
            write_atomically(self.directory / "run.json", data)

    def prompt(self) -> TokenIds:
        """Raises SnapshotBroken if it is damaged or missing."""
        path = self._path("prompt")
        with reported_as(SnapshotBroken, f"read {path}"):
            tensors, _ = tensor_file.read(path)
        return tensors["ids"].copy()

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.safetensors"

    def _writing(self) -> AbstractContextManager[None]:
        return reported_as(OutputError, f"write to {self.directory}")


def to_json(value: Any) -> dict[str, Any]:
    """A dataclass as an object of JSON: pydantic writes every field, so that nothing can be
    forgotten, and checks every type when it reads. Raises UsageError if `from_json` would not read
    it back as it is: a path that is not UTF-8, for example."""
    from pydantic import TypeAdapter

    try:
        plain = TypeAdapter[Any](type(value)).dump_python(value, mode="json", warnings="error")
        again = from_json(type(value), plain)
    except ValueError as error:
        raise UsageError(f"cannot be stored: {error}") from error
    # NaN is not equal to itself.
    if again != value and repr(again) != repr(value):
        raise UsageError(f"cannot be stored: {value!r:.200}")
    return plain


def from_json(kind: type[T], value: Any) -> T:
    """The dataclass `kind` from an object of JSON. A missing field gets its default.

    Raises ValueError naming a field that is invalid, unknown, or missing without a default.
    """
    # Only checkpoints need it, and it takes a tenth of a second to import.
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(json.dumps(value), strict=True, extra="forbid")
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        if first["type"] == "unexpected_keyword_argument":
            raise ValueError(f"unknown field {name}") from error
        raise ValueError(f"{name}: {first['msg']}") from error
    except UsageError as error:
        raise ValueError(str(error)) from error
