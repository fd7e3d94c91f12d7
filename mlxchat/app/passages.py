"""The prompt with the passages of large documents that the question needs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import groupby

from mlxchat import paths
from mlxchat.app.observer import Observer
from mlxchat.app.opening import Loaded
from mlxchat.app.overflow import room_for_prompt
from mlxchat.errors import CacheError, InputError
from mlxchat.passages.index import (
    MIN_KEPT_BYTES,
    IndexDirectory,
    Outdated,
    Passage,
    PassageIndex,
    passing_index,
)
from mlxchat.passages.quote import Read, heading, place_of, places, quoted
from mlxchat.passages.search import Found, Search
from mlxchat.request import Request
from mlxchat.text.document import Document
from mlxchat.text.documents import SEPARATOR
from mlxchat.text.tokens import Prompt, Tokenizer
from mlxchat.units import Progress

# Text that is encoded in pieces may have more tokens than in one.
SPARE_TOKENS = 2


def with_passages(
    request: Request, documents: Sequence[Document], loaded: Loaded, observer: Observer
) -> tuple[Prompt, Read]:
    """The prompt with the passages that the question needs. Raises CacheError if the window has no
    room for any, InputError if a document changes or no index can be written."""
    with ExitStack() as stack:
        try:
            indexes = _indexes(request, documents, observer, stack)
            return _with_passages(request, indexes, loaded, observer)
        except Outdated:
            indexes = _indexes(request, documents, observer, stack, anew=True)
        try:
            return _with_passages(request, indexes, loaded, observer)
        except Outdated as error:
            raise InputError(f"a document changed while it was read: {error}") from error


def _with_passages(
    request: Request, indexes: Sequence[PassageIndex], loaded: Loaded, observer: Observer
) -> tuple[Prompt, Read]:
    tokenizer, window = loaded.model.tokenizer, loaded.settings.max_kv_size
    question = request.prompt
    assert window is not None
    assert question is not None
    search = Search(indexes)
    limit = room_for_prompt(request, window)
    bare = _prompt(request, question, tokenizer)
    room = limit - len(bare.ids)
    while True:
        found = search.find(question, room, lambda each: _cost(each, tokenizer))
        if not found.passages:
            raise CacheError(
                f"the question and the template take {len(bare.ids):,} tokens, so the "
                f"window's {window:,} have no room for passages: --max-kv-size must be "
                "larger"
            )
        prompt = _prompt(request, quoted(found.passages) + SEPARATOR + question, tokenizer)
        if len(prompt.ids) <= limit:
            break
        room -= len(prompt.ids) - limit
    if not found.fit:
        observer.warn(
            "no passage has a word of the question: reading the first ones; --overflow "
            "map reads everything"
        )
    return prompt, _read(found, indexes)


def _read(found: Found, indexes: Sequence[PassageIndex]) -> Read:
    documents = [each for index in indexes for each in index.documents]
    size_bytes = sum(each.size_bytes for each in documents)
    read_bytes = sum(each.span.end - each.span.start for each in found.passages)
    named = tuple(places(found.passages))
    return Read(named, len(found.passages), found.of, read_bytes / size_bytes)


def _prompt(request: Request, text: str, tokenizer: Tokenizer) -> Prompt:
    return tokenizer.prompt(text, request.system, variables=request.variables())


def _cost(passage: Passage, tokenizer: Tokenizer) -> int:
    text = heading(place_of(passage)) + passage.text + SEPARATOR
    return len(tokenizer.encode(text, begins=False)) + SPARE_TOKENS


def _indexes(
    request: Request,
    documents: Sequence[Document],
    observer: Observer,
    stack: ExitStack,
    *,
    anew: bool = False,
) -> list[PassageIndex]:
    """An index of each large document, and one of all others, in their order."""
    found: list[PassageIndex] = []
    for are_large, some in groupby(documents, key=lambda each: _is_kept(request, each)):
        group = list(some)
        for each in [(one,) for one in group] if are_large else [group]:
            with observer.counting("indexing", "bytes") as on_progress:
                index = (are_large and _kept(each[0], observer, on_progress, anew=anew)) or None
                index = index or _passing(each, on_progress)
            stack.callback(index.close)
            found.append(index)
    return found


def _is_kept(request: Request, document: Document) -> bool:
    """Whether the index of this document should be kept."""
    is_large = document.size_bytes >= MIN_KEPT_BYTES
    return is_large and request.setup.prefix_cache and not document.passing


def _kept(
    document: Document, observer: Observer, on_progress: Progress, *, anew: bool
) -> PassageIndex | None:
    """The kept index, made if necessary; None if that fails."""
    directory = IndexDirectory(paths.document_indexes_dir())
    known = None if anew else directory.find(document)
    if known is not None:
        return known
    try:
        return directory.make(document, on_progress)
    except OSError as error:
        observer.warn(f"the index of {document.name} is not kept: {error.strerror or error}")
        return None


def _passing(documents: Sequence[Document], on_progress: Progress) -> PassageIndex:
    try:
        return passing_index(documents, on_progress)
    except OSError as error:
        raise InputError(f"cannot index the documents: {error.strerror or error}") from error
