"""Checkpoints: written during a run so that the output file and the cache agree; a run resumes from
the latest."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from mlxchat.app.opening import Loaded
from mlxchat.cache import Cache
from mlxchat.chat.ledger import Ledger
from mlxchat.engine.ends import RESUMABLE, LoopDetector
from mlxchat.engine.reply import ResumePoint
from mlxchat.errors import (
    DeviceError,
    OutputError,
    SnapshotBroken,
    SnapshotError,
    SnapshotTooLarge,
    device_failures,
)
from mlxchat.request import Request
from mlxchat.settings import SamplingSettings
from mlxchat.store.checkpoint import Checkpoint, RunRecord
from mlxchat.store.dataclass_json import from_json, to_json
from mlxchat.store.output_file import OutputFile, Position
from mlxchat.store.snapshot import Restored
from mlxchat.store.state_file import Outage, Written
from mlxchat.text.pieces import ThoughtsAsText


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a run has come, besides its cache and ledger. While the prompt is read, `prefilled`
    of its tokens are in the cache, and there is no `resume_point`. `loop` is a
    state of its LoopDetector; `in_thought` is whether the text so far ends within a thought."""

    prefilled: int = 0
    resume_point: ResumePoint | None = None
    position: Position | None = None
    loop: dict[str, Any] | None = None
    in_thought: bool = False


@dataclass(frozen=True, slots=True)
class RunState:
    """The state in which a run begins or continues."""

    cache: Cache
    ledger: Ledger
    sampling: SamplingSettings
    at: Reached = Reached()


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """The latest checkpoint, after `tokens` tokens of the prompt or of the output."""

    tokens: int
    reading: bool


class Checkpointer:
    """Writes checkpoints during a run, and the last one at its end. `saved` is the latest that is
    on the disk."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        loaded: Loaded,
        begun: RunState,
        *,
        file: OutputFile,
        loop: LoopDetector,
        written: ThoughtsAsText,
        warn: Callable[[str], None],
    ) -> None:
        self.saved: Checkpointed | None = None
        self._checkpoint = checkpoint
        self._every = checkpoint.run.request.overnight.checkpoint_every
        self._model = loaded.model
        self._fingerprint = loaded.fingerprint()
        self._begun = begun
        self._file = file
        self._loop = loop
        self._written = written
        over = f"checkpoints can be written to {checkpoint.directory} again"
        self._outage = Outage(warn, over)
        self._being_saved: Checkpointed | None = None
        # Prompt tokens in the cache, and tokens at the latest checkpoint.
        self._prefilled = begun.at.prefilled
        self._latest = (
            begun.at.prefilled if begun.at.resume_point is None else begun.at.resume_point.generated
        )

    def tokens_to_next(self, generated: int) -> int:
        """How many more tokens to generate before the next checkpoint."""
        return self._every - generated % self._every

    def read(self, done: int, total: int) -> None:
        """`done` of `total` prompt tokens were read in this run; reading alone can take a night."""
        self._see_result()
        if self._begun.at.resume_point is not None:
            return
        self._prefilled = self._begun.at.prefilled + done
        if done == total:
            # A run killed before its next checkpoint has one without text, which comes first.
            self._save(None)
            self._checkpoint.state.background.wait()
            self._latest = 0
        elif self._prefilled - self._latest >= self._every:
            self._save(None)

    def paused(self, point: ResumePoint) -> None:
        """The run has reached this point, and everything before it is written."""
        self._see_result()
        if point.generated - self._latest >= self._every:
            self._save(point)

    def leave(self, point: ResumePoint | None, finish_reason: str) -> Written | None:
        """Write the last checkpoint, or mark the run as ended; return the size and time.

        `point` is where it stopped, None if it was still reading.
        """
        is_resumable = finish_reason in RESUMABLE
        if is_resumable:
            self._save_last(point)
        if not is_resumable or finish_reason == "loop":
            self._file.sync()
            self._checkpoint.end(finish_reason)
        background = self._checkpoint.state.background
        background.wait()
        self._see_result()
        return background.written

    def _save_last(self, point: ResumePoint | None) -> None:
        try:
            with device_failures():
                if point is not None or self._prefilled > self._begun.at.prefilled:
                    self._save(point)
        except DeviceError as error:
            self._failed(error)

    def _save(self, point: ResumePoint | None) -> None:
        """Save the state at this point; with None, while reading the prompt."""
        self._latest = self._prefilled if point is None else point.generated
        # The text first: a checkpoint may only refer to text that is on the disk.
        position = self._file.sync()
        self._checkpoint.state.background.wait()
        self._see_result()
        self._being_saved = Checkpointed(self._latest, reading=point is None)
        prefilled = self._prefilled if point is None else 0
        loop, inside = self._loop.state(), self._written.inside
        facts = to_json(Reached(prefilled, point, position, loop, inside))
        begun = self._begun
        try:
            self._checkpoint.state.save(
                self._model, begun.cache, begun.ledger, self._fingerprint, facts
            )
        except SnapshotError as error:
            self._failed(error)

    def _see_result(self) -> None:
        """Report the result of the checkpoint being written, once it is known."""
        result = self._checkpoint.state.background.take_result()
        if isinstance(result, OSError):
            self._failed(result.strerror or result)
        elif result is not None:
            self.saved = self._being_saved
            self._outage.ends()

    def _failed(self, reason: object) -> None:
        directory, earlier = self._checkpoint.directory, self._checkpoint.state.path.exists()
        valid = "the previous one stays valid" if earlier else "--resume would begin again"
        self._outage.lasts(f"cannot write a checkpoint to {directory}: {reason}; {valid}")


def fresh(loaded: Loaded) -> RunState:
    """The start of a run."""
    return RunState(loaded.cache, Ledger(loaded.settings.max_kv_size, loaded.keep), loaded.sampling)


def loop_of(at: Reached) -> LoopDetector:
    """A new detector, or the one saved. Raises KeyError or TypeError if that is invalid."""
    return LoopDetector() if at.loop is None else LoopDetector.from_state(at.loop)


def continued(
    checkpoint: Checkpoint, loaded: Loaded, fresh: RunState, warn: Callable[[str], None]
) -> RunState:
    """The state of the checkpoint; if it is unusable, `fresh`, with an empty cache: a run from the
    start arrives at the same text, only later.

    Raises SnapshotError for a state with a different model or different settings, which would
    not, and SnapshotTooLarge for one that does not fit into memory now.
    """
    try:
        restored = checkpoint.state.restore(loaded.model, fresh.cache, loaded.fingerprint())
        return fresh if restored is None else _begun(restored, fresh.sampling)
    except SnapshotBroken as error:
        warn(f"{error}: starting again from the prompt")
        return fresh
    except SnapshotTooLarge as error:
        raise SnapshotTooLarge(f"{error}: close other programs, then resume again") from error
    except OSError as error:
        path, why = checkpoint.state.path, error.strerror or error
        raise OutputError(f"cannot read {path}: {why}") from error


def _begun(restored: Restored, sampling: SamplingSettings) -> RunState:
    try:
        at = from_json(Reached, restored.facts)
        loop_of(at)
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotBroken(f"the checkpoint is invalid ({error})") from error
    return RunState(restored.cache, restored.ledger, sampling, at)


def record_of(request: Request, loaded: Loaded) -> RunRecord:
    """The record that a later process needs, including values chosen automatically."""
    setup, long = request.setup, request.overnight
    model = setup.model
    if model is None or Path(model).expanduser().exists():
        model = loaded.found
    path, until_s = long.output_path(), long.deadline_s(time.time())
    assert path is not None
    setup = replace(
        setup,
        model=model,
        adapter=None if loaded.model.adapter is None else loaded.model.adapter.name,
        window=loaded.settings.max_kv_size,
        keep=loaded.settings.keep,
        prefill_step_size=loaded.settings.prefill_step_size,
        sampling={},
    )
    long = replace(
        long,
        output=path.resolve(),
        until=None if until_s is None else datetime.fromtimestamp(until_s).astimezone(),
        lasting_s=None,
    )
    request = replace(
        request,
        prompt=None if request.prompt is None else _readable(request.prompt),
        files=tuple(map(_readable, request.files)),
        blocks=tuple(map(_readable, request.blocks)),
        setup=setup,
        overnight=long,
    )
    return RunRecord(2, request, loaded.sampling)


def _readable(text: str) -> str:
    """Without bytes of the shell that are not UTF-8: what was read of them is in the tokens."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def request_of(record: RunRecord, directory: Path, changes: Mapping[str, Any]) -> Request:
    """The original request with the changed options."""
    request, sampling = record.request, asdict(record.sampling)
    setup = replace(request.setup, seed=sampling.pop("seed"), sampling=sampling)
    long = replace(request.overnight, checkpoint=directory)
    if changes.keys() & {"until", "lasting_s"}:
        long = replace(long, until=None)
    request = replace(request, setup=_changed(setup, changes), overnight=_changed(long, changes))
    return _changed(request, changes)


def _changed(value: Any, changes: Mapping[str, Any]) -> Any:
    """A dataclass with those changes that are among its fields."""
    names = {field.name for field in fields(value)}
    return replace(value, **{name: new for name, new in changes.items() if name in names})
