"""The prompt with the passages of large documents that the question needs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import groupby

from mlxchat import paths
from mlxchat.app.opening import Loaded
from mlxchat.app.prompt import SPARE_TOKENS, no_room, room_for_prompt
from mlxchat.errors import InputError
from mlxchat.passages.index import MIN_KEPT_BYTES, Outdated, Passage, PassageIndex, open_index
from mlxchat.passages.search import Read, Search, heading, left_out, place_of, quoted
from mlxchat.request import Request
from mlxchat.text.documents import SEPARATOR, Document
from mlxchat.text.tokens import Prompt
from mlxchat.units import Observer


def with_passages(
    request: Request, documents: Sequence[Document], loaded: Loaded, observer: Observer
) -> tuple[Prompt, Read]:
    """The prompt with the passages that the question needs; what is left out is reported. Raises
    CacheError if the window has no room for any, InputError if a document changes or no index can
    be written."""
    problem: Outdated | None = None
    for anew in (False, True):
        try:
            with ExitStack() as stack:
                indexes = _indexes(request, documents, observer, stack, anew=anew)
                return _with_passages(request, indexes, loaded, observer)
        except Outdated as error:
            problem = error
    raise InputError(f"a document changed while it was read: {problem}")


def _with_passages(
    request: Request, indexes: Sequence[PassageIndex], loaded: Loaded, observer: Observer
) -> tuple[Prompt, Read]:
    tokenizer, window = loaded.model.tokenizer, loaded.settings.max_kv_size
    question = request.prompt
    assert window is not None
    assert question is not None

    def prompt_of(text: str) -> Prompt:
        return tokenizer.prompt(text, request.system, variables=request.variables())

    def cost_of(passage: Passage) -> int:
        text = heading(place_of(passage)) + passage.text + SEPARATOR
        return len(tokenizer.encode(text, begins=False)) + SPARE_TOKENS

    search, limit = Search(indexes), room_for_prompt(request, window)
    bare = len(prompt_of(question).ids)
    room = limit - bare
    while True:
        found = search.find(question, room, cost_of)
        if not found.passages:
            raise no_room(bare, window, "passages")
        text, places = quoted(found.passages)
        prompt = prompt_of(text + SEPARATOR + question)
        if len(prompt.ids) <= limit:
            break
        room -= len(prompt.ids) - limit
    if not found.fit:
        observer.warn(
            "no passage has a word of the question: reading the first ones; --overflow "
            "map reads everything"
        )
    documents = [each for index in indexes for each in index.documents]
    size_bytes = sum(each.size_bytes for each in documents)
    read_bytes = sum(each.span.end - each.span.start for each in found.passages)
    read = Read(places, len(found.passages), found.of, read_bytes / size_bytes)
    observer.warn(left_out(read, len(documents)))
    return prompt, read


def _indexes(
    request: Request,
    documents: Sequence[Document],
    observer: Observer,
    stack: ExitStack,
    *,
    anew: bool,
) -> list[PassageIndex]:
    """An index of each large document, which is kept, and one of all others, in their order."""

    def is_kept(document: Document) -> bool:
        is_large = document.size_bytes >= MIN_KEPT_BYTES
        return is_large and request.setup.prefix_cache and not document.is_passing

    found: list[PassageIndex] = []
    for are_kept, some in groupby(documents, key=is_kept):
        group = list(some)
        for each in [(one,) for one in group] if are_kept else [group]:
            directory = paths.document_indexes_dir() if are_kept else None
            with observer.counting("indexing", "bytes") as on_progress:
                found.append(open_index(each, directory, on_progress, observer.warn, anew=anew))
            stack.callback(found[-1].close)
    return found
