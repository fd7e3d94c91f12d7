"""Starts a run, or resumes one from its checkpoint."""

import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, TypedDict, Unpack

from mlxchat.app.answer import constraint_of, with_schema
from mlxchat.app.checkpoints import Reached, continued, fresh, record_of, request_of
from mlxchat.app.observer import Observer
from mlxchat.app.opening import Loaded, open_model
from mlxchat.app.overflow import check_overflow, fitting, opened
from mlxchat.app.passages import with_passages
from mlxchat.app.prompt import count_pinned, encode, read
from mlxchat.app.ranks import Ranks, check_ranks
from mlxchat.app.run import Run
from mlxchat.app.section_answers import SectionAnswers
from mlxchat.app.sections import SectionReader
from mlxchat.passages.quote import Read, left_out
from mlxchat.request import Request
from mlxchat.settings import OnLoop, Overflow
from mlxchat.store.checkpoint import Checkpoint
from mlxchat.store.output_file import START, OutputFile, set_aside
from mlxchat.text.document import Document
from mlxchat.text.documents import Input
from mlxchat.text.tokens import Prompt


class Changes(TypedDict, total=False):
    """Options that can change when a run is resumed: none that its text depends on."""

    until: datetime | None
    lasting_s: float | None
    max_bytes: int | None
    max_tokens: int
    on_loop: OnLoop
    offline: bool
    device: str
    kept: Mapping[str, bool | None]


# A run that has ended continues if the limit that ended it is given again.
REMEDIES = {"bytes": "max_bytes", "length": "max_tokens", "loop": "on_loop"}


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
        drafts=request.wants_drafts,
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
        source = _source(request, piped, stack, observer)
        checkpoint = None
        if request.overnight.checkpoint is not None:
            checkpoint = Checkpoint.create(request.overnight.checkpoint)
            stack.callback(checkpoint.close)
        path = request.overnight.output_path()
        file = None if path is None else stack.enter_context(OutputFile.open(path))
        blocks = bool(request.blocks)
        loaded = open_model(
            request.setup,
            observer,
            blocks=blocks,
            ranks=ranks,
            count_pinned=lambda tokenizer: count_pinned(request, tokenizer),
        )
        prompt, passages, reader = _prompt(request, source, loaded, observer)
        for notice in () if prompt is None else prompt.notices:
            observer.warn(notice)
        if checkpoint is not None and prompt is not None:
            observer.note(f"writing the text to {request.overnight.output_path()}")
            checkpoint.begin(record_of(request, loaded), prompt.ids)
        return Run(
            request,
            loaded,
            prompt,
            fresh(loaded),
            file=file,
            passages=passages,
            reader=reader,
            constraint=constraint,
            checkpoint=checkpoint,
            observer=observer,
            open_files=stack.pop_all(),
        )


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run in a checkpoint, with the changed options.

    `ended` is the reason if the run has ended and the changed options do not continue it; "time" if
    its deadline has passed.
    """

    directory: Path
    checkpoint: Checkpoint
    request: Request
    ended: str | None

    def resume(self, observer: Observer | None = None, *, ranks: Ranks | None = None) -> Run:
        """Load the model and continue. Raises SnapshotError for a different model, OutputError
        if the file has changed."""
        observer = observer or Observer()
        request, checkpoint = self.request, self.checkpoint
        prompt = Prompt(checkpoint.prompt())
        loaded = open_model(request.setup, observer, ranks=ranks)
        start = replace(fresh(loaded), at=Reached(position=START))
        begun = continued(checkpoint, loaded, start, observer.warn)
        path = request.overnight.output_path()
        assert path is not None
        observer.note(f"the text continues in {path}")
        position = begun.at.position
        if begun is start:
            position, kept = None, set_aside(path)
            if kept is not None:
                observer.warn(f"the text begins again: what there was is kept in {kept}")
        with ExitStack() as stack:
            file = stack.enter_context(OutputFile.open(path, position))
            checkpoint.change(record_of(request, loaded))
            return Run(
                request,
                loaded,
                prompt,
                begun,
                file=file,
                checkpoint=checkpoint,
                observer=observer,
                open_files=stack.pop_all(),
            )


@contextmanager
def saved_run(directory: Path, **changes: Unpack[Changes]) -> Generator[SavedRun]:
    """The run in the checkpoint `directory`, locked against other processes while the body runs.

    Raises UsageError if there is none, SnapshotBroken if it is damaged.
    """
    checkpoint = Checkpoint.open(directory)
    try:
        record = checkpoint.run
        request, ended = request_of(record, directory, changes), record.ended
        if ended is not None and REMEDIES.get(ended) in changes:
            ended = None
        until_s = request.overnight.deadline_s(time.time())
        if ended is None and until_s is not None and until_s <= time.time():
            ended = "time"
        yield SavedRun(directory, checkpoint, request, ended)
    finally:
        checkpoint.close()


@contextmanager
def resume(
    directory: Path | str, observer: Observer | None = None, **changes: Unpack[Changes]
) -> Generator[Run]:
    """Continue the run in the checkpoint `directory` while the body runs."""
    with saved_run(Path(directory), **changes) as saved, saved.resume(observer) as run:
        yield run


def _source(
    request: Request, piped: BinaryIO | None, stack: ExitStack, observer: Observer
) -> Input | list[Document]:
    """The whole text, or the documents to read from; notices are reported."""
    if request.overflow.needs_question:
        documents = opened(request, piped, stack, observer)
        notices = [each.notice for each in documents if each.notice]
    else:
        documents = read(request, piped)
        notices = documents.notices
    for notice in notices:
        observer.warn(notice)
    return documents


def _prompt(
    request: Request, source: Input | list[Document], loaded: Loaded, observer: Observer
) -> tuple[Prompt | None, Read | None, SectionReader | None]:
    """The prompt, and what it has of documents that are larger than the window; or who reads
    them."""
    if isinstance(source, Input):
        prompt = encode(request, source, loaded.model.tokenizer, observer)
        check_overflow(request, prompt, loaded, observer)
        return prompt, None, None
    prompt = fitting(request, source, loaded, observer)
    if prompt is not None:
        return prompt, None, None
    if request.overflow is Overflow.MAP:
        answers = SectionAnswers.of(request, source, loaded, observer.warn)
        return None, None, SectionReader(request, source, loaded, answers)
    prompt, passages = with_passages(request, source, loaded, observer)
    observer.warn(left_out(passages, len(source)))
    return prompt, passages, None
