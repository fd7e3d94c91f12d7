"""Starts a run, or resumes one from its checkpoint."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Unpack

from mlxchat.app.answer import constraint_of, with_schema
from mlxchat.app.checkpoints import (
    Changes,
    Checkpointer,
    Reached,
    check_resumable,
    empty_ledger,
    record_of,
    request_of,
    restored,
)
from mlxchat.app.observer import Observer
from mlxchat.app.opening import open_model
from mlxchat.app.passages import with_passages
from mlxchat.app.prompt import check_overflow, count_pinned, encode, fitting, read
from mlxchat.app.ranks import Ranks, check_ranks
from mlxchat.app.run import Run
from mlxchat.app.sections import SectionReader
from mlxchat.request import Request
from mlxchat.settings import Overflow
from mlxchat.store.checkpoint import Checkpoint
from mlxchat.store.output_file import OutputFile, set_aside
from mlxchat.text.documents import Input
from mlxchat.text.tokens import Prompt


def begin(
    request: Request,
    observer: Observer | None = None,
    *,
    piped: BinaryIO | None = None,
    ranks: Ranks | None = None,
) -> Run:
    """Read the prompt and load the model; iterating over the run generates the text.

    The text is written to the request's output file, if any. `piped` is a document to be read
    before the files. Raises MlxchatError for everything a user can fix.
    """
    observer = observer or Observer()
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
        source = read(request, piped, stack, observer)
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
        prompt, passages, reader, saver = None, None, None, None
        if isinstance(source, Input):
            prompt = encode(request, source, loaded.model.tokenizer, observer)
            check_overflow(request, prompt, loaded, observer)
        else:
            prompt = fitting(request, source, loaded, observer)
            if prompt is None and request.overflow is Overflow.MAP:
                reader = SectionReader(request, source, loaded)
            elif prompt is None:
                prompt, passages = with_passages(request, source, loaded, observer)
        for notice in () if prompt is None else prompt.notices:
            observer.warn(notice)
        if checkpoint is not None and file is not None and prompt is not None:
            observer.note(f"writing the text to {path}")
            checkpoint.begin(record_of(request, loaded), prompt.ids)
            begun = empty_ledger(loaded), Reached()
            saver = Checkpointer(checkpoint, loaded, *begun, file, warn=observer.warn)
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
            open_files=stack.pop_all(),
        )


def resume(
    directory: Path | str,
    observer: Observer | None = None,
    ranks: Ranks | None = None,
    **changes: Unpack[Changes],
) -> Run:
    """Continue the run in the checkpoint `directory`, with changed options.

    Raises UsageError if there is none, RunEnded if it has ended, SnapshotBroken if it is damaged,
    SnapshotError for a different model, OutputError if the file has changed.
    """
    observer = observer or Observer()
    with ExitStack() as stack:
        checkpoint = Checkpoint.open(Path(directory))
        stack.callback(checkpoint.close)
        request = request_of(checkpoint.run, Path(directory), changes)
        check_resumable(checkpoint, request, changes)
        prompt = Prompt(checkpoint.prompt())
        loaded = open_model(request.setup, observer, ranks=ranks)
        path = request.overnight.output_path()
        assert path is not None
        observer.note(f"the text continues in {path}")
        cache, ledger, begun = restored(checkpoint, loaded, observer.warn)
        if begun.position is None and (kept := set_aside(path)):
            observer.warn(f"the text begins again: what there was is kept in {kept}")
        file = stack.enter_context(OutputFile.open(path, begun.position))
        checkpoint.change(record_of(request, loaded))
        loaded = replace(loaded, cache=cache)
        saver = Checkpointer(checkpoint, loaded, ledger, begun, file, warn=observer.warn)
        return Run(request, loaded, observer, file, saver, prompt, open_files=stack.pop_all())
