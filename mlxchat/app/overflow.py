"""What is read of documents larger than the window: the passages that the question needs, or
everything, section by section: an answer from each, then a prompt with the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TypeVar

import mlx.core as mx

from mlxchat import paths
from mlxchat.app.opening import Loaded
from mlxchat.app.prompt import SPARE_TOKENS, no_room, room_for_prompt
from mlxchat.engine.brief import MAX_TEMP, write_brief
from mlxchat.engine.prefill import ShouldStop
from mlxchat.engine.reply import Reply, Stats
from mlxchat.errors import InputError
from mlxchat.passages.index import KEPT_BYTES, Outdated, Passage, PassageIndex, open_index, split
from mlxchat.passages.search import LineRange, Read, Search, heading, left_out, place_of, quoted
from mlxchat.request import Request
from mlxchat.request.written import thinking_variables
from mlxchat.settings import GenerationSettings
from mlxchat.text.documents import SEPARATOR, Document
from mlxchat.text.encoder import TokenIds
from mlxchat.text.tokens import Prompt
from mlxchat.units import Observer

# The share of the window that the answer from a section may have, and its tokens.
ANSWER_SHARE = 8
MAX_ANSWER_TOKENS = 512
MIN_ANSWER_TOKENS = 32
# A section's minimum tokens.
MIN_SECTION_TOKENS = 64
# Estimates, for the progress. How many tokens are read in the time of writing one is then measured.
BYTES_A_TOKEN, READ_PER_WRITTEN = 4, 10.0
# What a model writes if a section says nothing about the question, as it is asked to.
NOTHING = "nothing"
FROM_SECTION = (
    "Answer from this section of the text alone, in a few sentences. If it does not say, write: "
    f"{NOTHING}."
)
COMBINE = "Combine these answers into one, in a few sentences."
ANSWERS = "Answers from the sections of a long text, in order:"
NO_ANSWERS = "Nothing in the text is about this."

T = TypeVar("T")


def with_passages(
    request: Request, documents: Sequence[Document], loaded: Loaded, observer: Observer
) -> tuple[Prompt, Read]:
    """The prompt with the passages that the question needs; what is left out is reported. Raises
    CacheError if none has room, InputError if a document changes or no index can be written."""
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
            raise no_room(bare, window, "a passage")
        text, places = quoted(found.passages)
        prompt = prompt_of(text + SEPARATOR + question)
        if len(prompt.ids) <= limit:
            break
        room -= len(prompt.ids) - limit
    if not found.fit:
        instead = "reading the first ones; --overflow map reads everything"
        observer.warn(f"no passage stands out for the question: {instead}")
    documents = [each for index in indexes for each in index.documents]
    size_bytes = sum(each.size_bytes for each in documents)
    read_bytes = sum(each.span.end - each.span.start for each in found.passages)
    read = Read(places, len(found.passages), len(search), read_bytes / size_bytes)
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

    def number(document: Document) -> int:
        """Its own if the index is kept."""
        is_large = document.size_bytes >= KEPT_BYTES and not document.is_passing
        return id(document) if is_large and request.setup.prefix_cache else 0

    found: list[PassageIndex] = []
    for is_kept, group in groupby(documents, key=number):
        directory = paths.document_indexes_dir() if is_kept else None
        with observer.counting("indexing", "bytes") as on_progress:
            found.append(open_index([*group], directory, on_progress, observer.warn, anew=anew))
        stack.callback(found[-1].close)
    return found


class SectionReader:
    """Reads the documents. After the last of the `answers`, `prompt` is set unless the reading was
    stopped; then `so_far` is what there is. `stats` are of the latest answer.

    Raises CacheError if the window has no room for the question and a section.
    """

    def __init__(
        self, request: Request, documents: Sequence[Document], loaded: Loaded, observer: Observer
    ) -> None:
        assert loaded.settings.max_kv_size is not None
        self.prompt: Prompt | None = None
        # From sections, with their places.
        self.answers: list[tuple[LineRange, str]] = []
        self.stats = Stats("interrupted")
        self._request = request
        self._documents = documents
        self._loaded, self._observer = loaded, observer
        self._tokenizer = loaded.model.tokenizer
        self._window: int = loaded.settings.max_kv_size
        self._limit = max(MIN_ANSWER_TOKENS, min(self._window // ANSWER_SHARE, MAX_ANSWER_TOKENS))
        self._expected, self._weight = float(self._limit), READ_PER_WRITTEN
        asked = self._asked(FROM_SECTION), self._asked(ANSWERS, COMBINE)
        bare = max(map(len, (*asked, self._last(NO_ANSWERS).ids)))
        # The place in the document with the longest name.
        widest = (LineRange(each.name, each.size_bytes, each.size_bytes) for each in documents)
        place = max(self._count(heading(each)) for each in widest)
        self._room = self._window - bare - self._limit - place - SPARE_TOKENS
        # Two answers must fit, to be combined, and one beside the question of the last prompt.
        least = max(MIN_SECTION_TOKENS, 2 * (self._limit + place + SPARE_TOKENS))
        if self._room < least or self._window - self._room > room_for_prompt(request, self._window):
            raise no_room(bare, self._window, "a section of the document")

    def read(self, should_stop: ShouldStop) -> Iterator[tuple[LineRange, str]]:
        """Yield the answer from each section, as soon as it is there."""
        size_bytes = sum(each.size_bytes for each in self._documents)
        for place, answer in self._answers(1, self._sections(), size_bytes, should_stop):
            if answer is None:
                return
            self.answers.append((place, answer))
            yield self.answers[-1]
        self._finish(should_stop)

    def so_far(self) -> str:
        """The answers that say something, with their places."""
        return SEPARATOR.join(self._quoted())

    def _quoted(self) -> list[str]:
        said = (each for each in self.answers if each[1].strip(" .!*\"'").casefold() != NOTHING)
        return [heading(place) + text for place, text in said if text]

    def _finish(self, should_stop: ShouldStop) -> None:
        """Combine the answers until they fit in one prompt, which becomes `prompt`."""
        answers = self._quoted()
        while True:
            text = SEPARATOR.join(answers) or NO_ANSWERS
            prompt = self._last(text)
            if len(prompt.ids) <= room_for_prompt(self._request, self._window):
                self.prompt = prompt
                return
            combined: list[str] = []
            groups = self._groups(answers, lambda each: each + SEPARATOR)
            texts = ((None, SEPARATOR.join([ANSWERS, *group])) for group in groups)
            for _, answer in self._answers(2, texts, len(text.encode()), should_stop):
                if answer is None:
                    return
                combined += [answer] if answer else []
            answers = combined

    def _answers(
        self, part: int, texts: Iterable[tuple[T, str]], size_bytes: int, should_stop: ShouldStop
    ) -> Iterator[tuple[T, str | None]]:
        """The model's answer from each text; None if it was stopped. Progress is in time: of the
        texts, and of all answers that will be read after them. Raises what generating raises."""
        loaded, tokens, done = self._loaded, 0.0, 0.0
        whole = rest = size_bytes / BYTES_A_TOKEN
        while rest > self._room:
            rest = (rest // self._room + 1) * self._limit
            whole += rest

        def show(read: int, written: int = 0) -> None:
            most = len(ids) + self._weight * self._expected
            share = min((read + self._weight * written) / most, 1)
            on_progress(int(done + share * tokens), int(whole))

        with self._observer.counting(f"part {part} of 3: about", "tokens") as on_progress:
            for key, text in texts:
                done, tokens = done + tokens, len(text.encode()) / BYTES_A_TOKEN
                ids = self._asked(text, FROM_SECTION if part == 1 else COMBINE)
                reply = Reply(
                    loaded.model,
                    ids,
                    loaded.model.make_cache(self._window, loaded.settings.keep),
                    sampling=replace(loaded.sampling, temp=min(loaded.sampling.temp, MAX_TEMP)),
                    settings=GenerationSettings(max_tokens=self._window - len(ids)),
                    reader=self._tokenizer.reader(ids),
                )
                answer = write_brief(
                    reply,
                    self._limit,
                    should_stop,
                    on_tokens=partial(show, len(ids)),
                    on_prefill=lambda read, _: show(read),
                    step_size=loaded.settings.prefill_step_size,
                )
                mx.clear_cache()
                if (stats := reply.stats).decode_tokens_per_s:
                    self.stats = stats
                    self._weight = stats.prefill_tokens_per_s / stats.decode_tokens_per_s
                    self._expected = min((self._expected + stats.generated_tokens) / 2, self._limit)
                yield key, None if reply.finish_reason == "interrupted" else answer

    def _sections(self) -> Iterator[tuple[LineRange, str]]:
        """Sections of the documents that fit in the window, after their places."""
        for document in self._documents:
            passages = ((span, data.decode("utf-8", "replace")) for span, data in split(document))
            for group in self._groups(passages, lambda passage: passage[1]):
                first, last = group[0][0], group[-1][0]
                line = first.first_line
                data = document.bytes_at(first.start, last.end - first.start)
                for piece in self._pieces(data.decode("utf-8", "replace").rstrip()):
                    # With what precedes its text, and without the end of its last line.
                    begins = line + piece[: len(piece) - len(piece.lstrip())].count("\n")
                    ends, line = line + piece.rstrip().count("\n"), line + piece.count("\n")
                    place = LineRange(document.name, begins, ends)
                    yield from [(place, heading(place) + piece)] if piece.strip() else []

    def _groups(self, items: Iterable[T], text_of: Callable[[T], str]) -> Iterator[list[T]]:
        """Neighbours, as many as fit in one prompt."""
        group: list[T] = []
        tokens = 0
        for item in items:
            cost = self._count(text_of(item)) + SPARE_TOKENS
            if group and tokens + cost > self._room:
                yield group
                group, tokens = [], 0
            group.append(item)
            tokens += cost
        if group:
            yield group

    def _pieces(self, text: str) -> list[str]:
        """The text of a single passage may be too long: cut at a line if possible."""
        if len(text) < 2 or self._count(text) <= self._room:
            return [text]
        half = text.rfind("\n", 1, len(text) // 2) + 1 or len(text) // 2
        return [*self._pieces(text[:half]), *self._pieces(text[half:])]

    def _asked(self, *parts: str) -> TokenIds:
        """The prompt with these parts before the question."""
        text = f"{SEPARATOR.join(parts)}\n{self._request.prompt}"
        variables = {**self._request.variables(), **thinking_variables(False)}
        return self._tokenizer.prompt(text, self._request.system, variables=variables).ids

    def _last(self, text: str) -> Prompt:
        """The prompt with the answers, whose template may also be longer: it may think."""
        request = self._request
        final = SEPARATOR.join([ANSWERS, text, request.prompt or ""])
        return self._tokenizer.prompt(final, request.system, variables=request.variables())

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, begins=False))
