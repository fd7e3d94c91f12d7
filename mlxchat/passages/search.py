"""Finds passages of documents that a question needs and has room for; quotes them with places."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby

from mlxchat.passages.index import Passage, PassageIndex
from mlxchat.recall.choice import COMMON, EMPTY_WORDS, by_share, excerpt, informative, words

# Numbers that are one: a section, a date, a time.
JOINED = re.compile(r"\d+(?:[.:/-]\d+)+")
# A word and a number that name one thing together, such as "day 217", unlike "in 100 words".
NUMBERED, NOT_NAMED = re.compile(r"\b([^\W\d_]+) (\d+)"), EMPTY_WORDS - {"day"}
# A passage that contains less than this share of what the best one contains is not read.
ENOUGH_OF_BEST = 0.3
# The best passages are read with what comes after and before them.
WITH_NEIGHBOURS = 3
# After this many passages that are too long for the rest of the room, it counts as full.
MAX_TOO_LONG = 4
# If no rare word is asked for: passages compared, equal shares, and one in how many may be best.
MOST_OFTEN, TIE, MOST_ALIKE = 20_000, 1e-6, 3
# If not even the best one has room, it is cut to no less than this.
MIN_CHARS = 40
# Places that a notice names.
MAX_NAMED = 4


@dataclass(frozen=True, slots=True)
class LineRange:
    """Lines of a document, from `first` to `last`."""

    file: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.file}, {self.lines}"

    @property
    def lines(self) -> str:
        if self.first == self.last:
            return f"line {self.first}"
        return f"lines {self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class Read:
    """What is in the prompt: `places` with `read` of `of` passages, `share` of the whole text."""

    places: tuple[LineRange, ...]
    read: int
    of: int
    share: float


@dataclass(frozen=True, slots=True)
class Found:
    """The best-fitting passages in the order of the documents; `fit` is whether any does. Without
    one that fits, these are the first ones."""

    passages: tuple[Passage, ...]
    fit: bool


class Search:
    """Passages of all documents are numbered in order."""

    def __init__(self, indexes: Sequence[PassageIndex]) -> None:
        self._indexes = indexes
        *self._firsts, self._count = accumulate(map(len, indexes), initial=0)

    def __len__(self) -> int:
        return self._count

    def with_word(self, word: str, often: bool = False, /) -> list[int]:
        """The passages that contain the word; if it is in many, only some."""
        least, part = (MOST_OFTEN, MOST_ALIKE) if often else (COMMON, 10)
        limit = max(least, self._count // part) + 1
        return [
            first + number
            for first, index in zip(self._firsts, self._indexes, strict=True)
            for number in index.with_word(word, limit, ranked=often)
        ]

    def find(self, question: str, room: int, cost_of: Callable[[Passage], int]) -> Found:
        """Passages that cost at most `room`. Raises Outdated."""
        joined = [" ".join(words(each)) for each in JOINED.findall(question)]
        pairs = NUMBERED.findall(question.casefold())
        joined += [f"{word} {number}" for word, number in pairs if word not in NOT_NAMED]
        fits = by_share(self, question, False, *joined)
        if not fits and (often := by_share(self, question, True, *joined)):
            # Words of many passages: the best have to stand out, and say them often.
            best = [each for each in often if each.share > often[0].share - TIE]
            fits = often if len(best) <= max(COMMON, self._count // MOST_ALIKE) else []
        enough = ENOUGH_OF_BEST * fits[0].share if fits else 0.0
        ranked = [fit.number for fit in fits if fit.share >= enough]
        chosen: dict[int, Passage] = {}
        too_long = 0
        for number in self._with_neighbours(ranked) if fits else range(self._count):
            passage = self._passage(number)
            cost = cost_of(passage)
            if cost <= room:
                chosen[number] = passage
                room -= cost
            elif not fits or (too_long := too_long + 1) >= MAX_TOO_LONG:
                break
        if not chosen and self._count:
            chosen = self._cut(fits[0].number if fits else 0, question, room, cost_of)
        return Found(tuple(chosen[number] for number in sorted(chosen)), bool(fits))

    def _cut(
        self, number: int, question: str, room: int, cost_of: Callable[[Passage], int]
    ) -> dict[int, Passage]:
        """The lines of a passage about the one that says most of what is asked, or a part of that
        one, if they have room."""
        passage, wanted = self._passage(number), {*informative(question)}
        lines = passage.text.split("\n")
        best = max(range(len(lines)), key=lambda n: len(wanted.intersection(words(lines[n]))))
        size, chars = len(lines), len(lines[best])
        while size > 1 or chars > MIN_CHARS:
            size, chars = max(size // 2, 1), chars if size > 1 else max(chars // 2, MIN_CHARS)
            first = max(min(best - size // 4, len(lines) - size), 0)
            text = "\n".join(lines[first : first + size])
            text = excerpt(text, question, chars) if chars < len(lines[best]) else text
            at = passage.span.first_line + first
            end = passage.span.start + len(text.encode())
            span = replace(passage.span, end=end, first_line=at, last_line=at + size - 1)
            if cost_of(cut := replace(passage, text=text, span=span)) <= room:
                return {number: cut}
        return {}

    def _with_neighbours(self, ranked: Sequence[int]) -> Iterator[int]:
        """The best passages, then their neighbours in their documents, then the rest; each once."""
        neighbours = [
            each
            for number in ranked[:WITH_NEIGHBOURS]
            for each in (number + 1, number - 1)
            if 0 <= each < self._count
            and self._passage(each).document is self._passage(number).document
        ]
        return iter(dict.fromkeys([*ranked[:WITH_NEIGHBOURS], *neighbours, *ranked]))

    def _passage(self, number: int) -> Passage:
        index = bisect_right(self._firsts, number) - 1
        return self._indexes[index].passage(number - self._firsts[index])


def place_of(passage: Passage) -> LineRange:
    span = passage.span
    return LineRange(passage.document.name, span.first_line, span.last_line)


def heading(place: LineRange) -> str:
    """What the model reads before the text of this place."""
    return f"[{place}]\n"


def quoted(passages: Sequence[Passage]) -> tuple[str, tuple[LineRange, ...]]:
    """The text of the passages, with their places, and these; neighbours in a document are one."""
    # Of neighbours, number and place differ by the same.
    grouped = groupby(enumerate(passages), lambda at: (id(at[1].document), at[1].number - at[0]))
    runs = [_joined([each for _, each in run]) for _, run in grouped]
    places = tuple(map(place_of, runs))
    texts = (heading(place) + run.text for place, run in zip(places, runs, strict=True))
    return "\n\n".join(texts), places


def _joined(run: Sequence[Passage]) -> Passage:
    """The passages, one after the other, as one; one alone may have been cut."""
    first, last = run[0], run[-1]
    if first is last:
        return first
    start, end = first.span.start, last.span.end
    text = first.document.bytes_at(start, end - start).decode("utf-8", "replace").strip()
    # Blank lines between passages were not counted as theirs.
    text = re.sub(r"\n\s*\n", "\n\n", text)
    span = replace(first.span, end=end, last_line=last.span.last_line)
    return replace(first, span=span, text=text)


def left_out(read: Read, files: int) -> str:
    """What was read, and what was not."""
    named = [str(each) if files > 1 else each.lines for each in read.places[:MAX_NAMED]]
    if (more := len(read.places) - len(named)) > 0:
        named.append(f"{more} more")
    first = read.places[0].file if files == 1 else f"{files} documents"
    return (
        f"{first}: larger than the window, read {read.read:,} of {read.of:,} passages "
        f"({'; '.join(named)}); {min(1 - read.share, 0.999):.1%} of the text is left out"
    )
