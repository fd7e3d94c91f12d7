"""Starts a run, or resumes one from its checkpoint."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, TypedDict, Unpack

from mlxchat.app.checkpoints import Checkpointer, restored
from mlxchat.app.opening import Loaded, open_model
from mlxchat.app.overflow import SectionReader, with_passages
from mlxchat.app.prompt import (
    check_overflow,
    constraint_of,
    count_pinned,
    encode,
    fitting,
    read,
    with_schema,
)
from mlxchat.app.ranks import check_ranks
from mlxchat.app.run import Run
from mlxchat.engine.budget import without_effect
from mlxchat.errors import ExitStatus, RunEnded, UsageError
from mlxchat.models.model import ALONE, Alone
from mlxchat.options import changed, in_home
from mlxchat.passages.search import Read
from mlxchat.request import Request
from mlxchat.settings import OnLoop, Overflow
from mlxchat.store.checkpoint import Checkpoint, RunRecord
from mlxchat.store.output_file import OutputFile, set_aside
from mlxchat.text.documents import Document, Input
from mlxchat.text.encoder import TokenIds
from mlxchat.text.tokens import Prompt
from mlxchat.units import Observer


class Changes(TypedDict, total=False):
    """Options that can change when a run is resumed: none that its text depends on."""

    until: datetime | None
    lasting_s: float | None
    max_tokens: int
    on_loop: OnLoop
    offline: bool
    device: str


# A run that has ended continues if the limit that ended it is given again.
REMEDIES = {"length": "max_tokens", "loop": "on_loop"}


def begin(
    request: Request,
    observer: Observer | None = None,
    *,
    write: Callable[[str], object] | None = None,
    piped: BinaryIO | None = None,
    ranks: Alone = ALONE,
) -> Run:
    """Read the prompt and load the model; iterating over the run generates the text.

    The text goes to the request's output file, or else to `write`, if given. `piped` is a document
    to be read before the files. Raises MlxchatError for everything a user can fix.
    """
    observer, asked = observer or Observer(), request
    request = ranks.same(lambda: asked)
    check_ranks(
        ranks,
        pipeline=request.setup.pipeline,
        blocks=bool(request.blocks),
        drafts=bool(request.lookup),
        adapter=request.setup.adapter is not None,
        constraint=next(iter(request.answer.constraints()), None),
        overflow=str(request.overflow),
    )
    constraint = constraint_of(request.answer)
    if constraint is not None and request.answer.schema_prompt:
        request = replace(request, system=with_schema(request.system, constraint))
    for notice in () if constraint is None else constraint.notices:
        observer.warn(notice)
    with ExitStack() as stack:
        request = request if ranks.leads else _in_scratch(request, stack)
        source = read(request, piped, stack, observer) if ranks.leads else []
        checkpoint, path = None, request.overnight.output_path()
        if request.overnight.checkpoint is not None:
            checkpoint = Checkpoint.create(request.overnight.checkpoint)
            stack.callback(checkpoint.close)
        file = None if path is None else stack.enter_context(OutputFile.open(path))
        loaded = open_model(
            request.setup,
            observer,
            blocks=bool(request.blocks),
            ranks=ranks,
            count_pinned=lambda tokenizer: count_pinned(request, tokenizer),
        )
        for notice in without_effect(request, loaded.model.tokenizer):
            observer.warn(notice)
        prompt, passages = ranks.same(lambda: _prompt(request, source, loaded, observer))
        reader = saver = None
        if prompt is None:
            assert not isinstance(source, Input)
            reader = SectionReader(request, source, loaded, observer)
        for notice in () if prompt is None else prompt.notices:
            observer.warn(notice)
        if checkpoint is not None and file is not None and prompt is not None:
            observer.note(f"writing the text to {path}")
            checkpoint.begin(record_of(request, loaded), prompt.ids)
            saver = Checkpointer(checkpoint, loaded, file, observer.warn)
        return Run(
            request,
            loaded,
            observer,
            file=file,
            saver=saver,
            prompt=prompt,
            reader=reader,
            passages=passages,
            constraint=constraint,
            write_text=write or (lambda _: None),
            open_files=stack.pop_all(),
        )


def _prompt(
    request: Request, source: Input | list[Document], loaded: Loaded, observer: Observer
) -> tuple[Prompt | None, Read | None]:
    """The prompt, and the passages in it of larger documents; None if sections have to be read."""
    if isinstance(source, Input):
        prompt = encode(request, source, loaded.model.tokenizer, observer)
        check_overflow(request, prompt, loaded, observer)
        return prompt, None
    prompt = fitting(request, source, loaded, observer)
    if prompt is not None or request.overflow is Overflow.MAP:
        return prompt, None
    return with_passages(request, source, loaded, observer)


def _in_scratch(request: Request, stack: ExitStack) -> Request:
    """The request on another rank than the first, whose files are then deleted."""
    scratch = Path(stack.enter_context(TemporaryDirectory()))
    long = request.overnight
    checkpoint = None if long.checkpoint is None else scratch / "checkpoint"
    return replace(request, overnight=replace(long, checkpoint=checkpoint, output=None))


def resume(
    directory: Path | str,
    observer: Observer | None = None,
    ranks: Alone = ALONE,
    **changes: Unpack[Changes],
) -> Run:
    """Continue the run in the checkpoint `directory`, with changed options.

    Raises UsageError if there is none, RunEnded if it has ended, SnapshotBroken if it is damaged,
    SnapshotError for a different model, OutputError if the file has changed.
    """
    observer = observer or Observer()
    with ExitStack() as stack:
        checkpoint, request, prompt = _reopened(in_home(directory), ranks, stack, changes)
        loaded = open_model(request.setup, observer, ranks=ranks)
        path = request.overnight.output_path()
        assert path is not None
        cache, ledger, begun = restored(checkpoint, loaded, observer.warn)
        done = 0 if begun.resume_point is None else begun.resume_point.generated
        if done and 0 <= changes.get("max_tokens", -1) <= done:
            has = f"the run in {directory} has {done:,} tokens already"
            raise UsageError(f"{has}: --max-tokens must be more")
        if begun.position is None and (kept := set_aside(path)):
            observer.warn(f"the text begins again: what there was is kept in {kept}")
        position = begun.position if ranks.leads else None
        with ExitStack() as refused:
            refused.callback(checkpoint.change, checkpoint.run)
            # Before the text is cut to what the state is of.
            checkpoint.change(record_of(request, loaded))
            file = stack.enter_context(OutputFile.open(path, position))
            refused.pop_all()
        observer.note(f"the text goes to {path}")
        loaded = replace(loaded, cache=cache)
        saver = Checkpointer(checkpoint, loaded, file, observer.warn, ledger=ledger, begun=begun)
        return Run(request, loaded, observer, file, saver, prompt, open_files=stack.pop_all())


def _reopened(
    directory: Path, ranks: Alone, stack: ExitStack, changes: Changes
) -> tuple[Checkpoint, Request, Prompt]:
    """The checkpoint with its request and prompt; other ranks write a copy, which is deleted."""

    def reopen() -> tuple[RunRecord, TokenIds, Request]:
        nonlocal checkpoint
        checkpoint = Checkpoint.open(directory)
        stack.callback(checkpoint.close)
        request = request_of(checkpoint.run, directory, changes)
        check_resumable(checkpoint, request, changes)
        return checkpoint.run, checkpoint.prompt(), request

    checkpoint: Checkpoint | None = None
    run, ids, request = ranks.same(reopen)
    if checkpoint is None:
        request = _in_scratch(request, stack)
        assert request.overnight.checkpoint is not None
        checkpoint = Checkpoint.create(request.overnight.checkpoint)
        stack.callback(checkpoint.close)
        checkpoint.begin(run, ids)
    return checkpoint, request, Prompt(ids)


def record_of(request: Request, loaded: Loaded) -> RunRecord:
    """The record that a later process needs, including values chosen automatically."""
    setup, long = request.setup, request.overnight
    model = setup.model
    if model is None or Path(model).expanduser().exists():
        model = loaded.name
    until_s = long.deadline_s(time.time())
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
        # Without one, it is in the checkpoint, which may be moved or copied.
        output=None if long.output is None else long.output.resolve(),
        until=None if until_s is None else datetime.fromtimestamp(until_s).astimezone(),
        lasting_s=None,
    )
    request = replace(
        request,
        prompt=None if request.prompt is None else _readable(request.prompt),
        files=tuple(map(_readable, request.files)),
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
    request = replace(request, setup=changed(setup, changes), overnight=changed(long, changes))
    return changed(request, changes)


def check_resumable(checkpoint: Checkpoint, request: Request, changes: Mapping[str, Any]) -> None:
    """Raise RunEnded if the run has ended, unless a change continues it, or if its time is up."""
    ended, until = checkpoint.run.ended, request.overnight.until
    # With a lower limit, text after the latest checkpoint would be cut off.
    is_lower = 0 <= request.max_tokens <= checkpoint.run.request.max_tokens
    is_continued = REMEDIES.get(ended or "") in changes and not (ended == "length" and is_lower)
    if ended is not None and not is_continued:
        status = ExitStatus.LOOP if ended == "loop" else ExitStatus.OK
        does = "continues it" if checkpoint.state.path.exists() else "begins it again"
        more = f"; a larger -n {does}" if ended == "length" else ""
        path, message = request.overnight.output_path(), f"has already ended: {ended}{more}"
        if path is not None and not path.exists():
            message, status = f"{message}; its text, {path}, is gone", ExitStatus.FAILURE
        raise RunEnded(f"the run in {checkpoint.directory} {message}", status)
    if until is not None and until.timestamp() <= time.time():
        end = f"{until.astimezone():%Y-%m-%d %H:%M}: continue it with a new --until or --for"
        raise RunEnded(f"the run in {checkpoint.directory} was to end at {end}")
