"""A long generation in a directory: what was asked, the prompt's tokens, and the latest state.

    run.json              a RunRecord
    prompt.safetensors    the prompt's token ids
    state.safetensors     a snapshot, replaced by the next one
    lock                  who is at it

What the state's facts mean is the caller's business.
"""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np

from mlxchat.engine.pace import from_run_lengths, run_lengths
from mlxchat.errors import OutputError, SnapshotBroken, UsageError
from mlxchat.files import (
    Lock,
    make_private_directory,
    open_to_read,
    remove_unfinished,
    reported_as,
    write_atomically,
)
from mlxchat.store import tensor_file
from mlxchat.store.run_record import RunRecord
from mlxchat.store.state_file import StateFile
from mlxchat.store.tensor_file import Tensor
from mlxchat.text.spans import TokenIds
from mlxchat.wording import Field

MOST_RUN_BYTES = 1 << 20
MOST_PROMPT_BYTES = 1 << 34


class Checkpoint:
    """Held open, by this process alone, until `close`. `state` is the latest state, `run` what
    run.json says once it was begun or opened."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.state = StateFile(self._path("state"))
        self._run: RunRecord | None = None
        self._lock = Lock(directory / "lock", f"the checkpoint {directory}")

    @classmethod
    def create(cls, directory: Path) -> "Checkpoint":
        """Make the directory. Raises UsageError where it holds a checkpoint already, OutputError
        where it cannot be made."""
        with reported_as(OutputError, f"make {directory}"):
            make_private_directory(directory)
            if (directory / "run.json").exists():
                raise UsageError(
                    f"{directory} holds a checkpoint already: continue it with ",
                    Field("resume", directory),
                )
            return cls(directory)

    @classmethod
    def open(cls, directory: Path) -> "Checkpoint":
        """Go on with it. Raises UsageError where there is none, SnapshotBroken if damaged."""
        if not (directory / "run.json").is_file():
            raise UsageError(
                f"{directory} holds no checkpoint: start one with ", Field("checkpoint", directory)
            )
        with reported_as(OutputError, f"use {directory}"):
            checkpoint = cls(directory)
        for path in (directory / "run.json", checkpoint.state.path):
            remove_unfinished(path)
        checkpoint._run = checkpoint._read_run()
        return checkpoint

    @property
    def run(self) -> RunRecord:
        assert self._run is not None, "not begun"
        return self._run

    def close(self) -> None:
        self.state.background.wait()
        self._lock.release()

    def begin(self, run: RunRecord, prompt: TokenIds) -> None:
        """Write down what was asked, and the prompt `(T,)`. Raises OutputError."""
        ids = Tensor("I32", prompt.shape, prompt.astype(np.int32))
        with self._writing():
            tensor_file.write(self._path("prompt"), {"ids": ids}, {})
        self._write_run(run)

    def end(self, reason: str) -> None:
        """Write down that there is nothing to go on with, and why. Raises OutputError."""
        self.state.background.wait()
        self._write_run(replace(self.run, ended=reason))

    def change(self, run: RunRecord) -> None:
        """Replace what was asked, and continue what had ended. Raises OutputError."""
        self._write_run(replace(run, steps=self.run.steps, ended=None))

    def record_steps(self, steps: Sequence[int]) -> None:
        """Write down the sizes of the steps that the prompt was read in, before there is any text:
        read in other steps, it would lead to the same text only nearly. Raises OutputError."""
        stretches = tuple(tuple(each) for each in run_lengths(steps))
        if self.run.steps != stretches:
            self._write_run(replace(self.run, steps=stretches))

    def steps(self) -> list[int]:
        """The sizes of the steps that the whole prompt was read in; empty if that is yet to come.
        Raises SnapshotBroken."""
        try:
            return from_run_lengths(self.run.steps)
        except (TypeError, ValueError) as error:
            raise SnapshotBroken(f"{self.directory}/run.json names no steps: {error}") from error

    def prompt(self) -> TokenIds:
        """Raises SnapshotBroken where it is damaged or missing."""
        try:
            tensors, _ = tensor_file.read(self._path("prompt"), MOST_PROMPT_BYTES)
        except OSError as error:
            raise SnapshotBroken(f"cannot read {self._path('prompt')}: {error}") from error
        ids = tensors.get("ids", mx.zeros((0,)))
        if ids.ndim != 1 or ids.dtype != mx.int32 or ids.size == 0:
            raise SnapshotBroken(f"{self._path('prompt')} holds no prompt")
        return np.array(ids)

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.safetensors"

    def _read_run(self) -> RunRecord:
        path = self.directory / "run.json"
        try:
            with open_to_read(path) as file:
                return RunRecord.from_json(json.loads(file.read(MOST_RUN_BYTES)))
        except (OSError, ValueError, RecursionError) as error:
            raise SnapshotBroken(f"cannot read {path}: {error}") from error

    def _write_run(self, run: RunRecord) -> None:
        self._run = run
        data = json.dumps(run.to_json(), ensure_ascii=False, indent=2).encode()
        with self._writing():
            write_atomically(self.directory / "run.json", data)

    def _writing(self) -> AbstractContextManager[None]:
        return reported_as(OutputError, f"write to {self.directory}")
