"""Checkpoints, in which the output file and the cache agree: a run resumes from the latest."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from mlxchat.app.opening import Loaded
from mlxchat.cache.layers import Cache
from mlxchat.chat.window import Ledger
from mlxchat.engine.reply import RESUMABLE, ResumePoint
from mlxchat.errors import (
    DeviceError,
    OutputError,
    SnapshotBroken,
    SnapshotError,
    SnapshotTooLarge,
    device_failures,
)
from mlxchat.files import reported_as
from mlxchat.store.checkpoint import Checkpoint, from_json, to_json
from mlxchat.store.output_file import OutputFile, Position
from mlxchat.store.snapshot import Written


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a run has come, besides its cache and ledger. While the prompt is read, `prefilled`
    of its tokens are in the cache, and there is no `resume_point`."""

    prefilled: int = 0
    resume_point: ResumePoint | None = None
    position: Position | None = None


def restored(
    checkpoint: Checkpoint, loaded: Loaded, warn: Callable[[str], None]
) -> tuple[Cache, Ledger | None, Reached]:
    """The state of the checkpoint; if it is unusable, that of a run from the start, without a
    ledger, which arrives at the same text, only later.

    Raises SnapshotError for a state with a different model or different settings, which would
    not, and SnapshotTooLarge for one that does not fit into memory now.
    """
    try:
        with reported_as(OutputError, f"read {checkpoint.state.path}"):
            found = checkpoint.state.restore(loaded.model, loaded.cache, loaded.fingerprint())
        if found is not None:
            return found.cache, found.ledger, from_json(Reached, found.facts)
    except SnapshotBroken as error:
        warn(f"{error}: starting again from the prompt")
    except (KeyError, TypeError, ValueError) as error:
        warn(f"the checkpoint is invalid ({error}): starting again from the prompt")
    except SnapshotTooLarge as error:
        raise SnapshotTooLarge(f"{error}: close other programs, then resume again") from error
    return loaded.cache, None, Reached()


class Checkpointer:
    """Writes checkpoints during a run that has `begun` somewhere, and the last one at its end."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        loaded: Loaded,
        file: OutputFile,
        warn: Callable[[str], None],
        *,
        ledger: Ledger | None = None,
        begun: Reached = Reached(),
    ) -> None:
        if ledger is None:
            ledger = Ledger(loaded.settings.max_kv_size, loaded.keep)
        self.ledger = ledger
        self.begun = begun
        self.checkpoint, self._state = checkpoint, checkpoint.state
        self._loaded, self._file, self._warn = loaded, file, warn
        self._fingerprint = loaded.fingerprint()
        # Tokens between checkpoints.
        self.every = checkpoint.run.request.overnight.checkpoint_every
        # Prompt tokens in the cache, and those at the latest checkpoint.
        self._prefilled = self._latest = begun.prefilled
        directory = checkpoint.directory

        def fail(reason: object) -> None:
            earlier = self._state.path.exists()
            valid = "the previous one stays valid" if earlier else "--resume would begin again"
            warn(f"cannot write a checkpoint to {directory}: {reason}; {valid}")

        self._state.failed = fail
        self._state.recovered = lambda: warn(f"checkpoints can be written to {directory} again")

    def read(self, done: int, total: int) -> None:
        """`done` of `total` prompt tokens were read in this run; reading alone can take a night."""
        self._state.report()
        if self.begun.resume_point is not None:
            return
        self._prefilled = self.begun.prefilled + done
        if done == total:
            # A run killed before its next checkpoint has one without text, which comes first.
            self.save(None)
            self._state.background.wait()
        elif self._prefilled - self._latest >= self.every:
            self.save(None)

    def leave(self, point: ResumePoint | None, finish_reason: str) -> Written | None:
        """Write the last checkpoint, if the run can go on from a `point` or was reading its prompt,
        and mark it as ended if it has; return the checkpoint's size and time."""
        self._state.background.wait()
        self._state.report()
        is_resumable, has_failed = finish_reason in RESUMABLE, self._state.fails
        saves = point or (is_resumable and self._prefilled > self.begun.prefilled)
        if saves:
            try:
                with device_failures():
                    self.save(point)
            except DeviceError as error:
                self._state.report(error)
        self._state.background.wait()
        if not is_resumable or finish_reason == "loop":
            self._file.sync()
            self.checkpoint.change(replace(self.checkpoint.run, ended=finish_reason))
        self._state.report()
        if saves and has_failed and self._state.fails:
            self._warn("the last checkpoint was not written")
        return self._state.background.written

    def save(self, point: ResumePoint | None) -> None:
        """Save a run that has come this far; without a point, it is reading the prompt."""
        # The text first: a checkpoint may only refer to text that is on the disk.
        position = self._file.sync()
        self._state.background.wait()
        self._state.report()
        self._latest = self._prefilled
        reached = Reached(self._prefilled if point is None else 0, point, position)
        model, cache = self._loaded.model, self._loaded.cache
        try:
            self._state.save(model, cache, self.ledger, self._fingerprint, to_json(reached))
        except SnapshotError as error:
            self._state.report(error)
