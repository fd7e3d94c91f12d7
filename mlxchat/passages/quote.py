"""Passages as the text of a prompt, each with its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from mlxchat.passages.index import Passage

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


def place_of(*passages: Passage) -> LineRange:
    """From the first to the last of neighbouring passages."""
    first, last = passages[0], passages[-1]
    return LineRange(first.document.name, first.span.first_line, last.span.last_line)


def heading(place: LineRange) -> str:
    """What the model reads before the text of this place."""
    return f"[{place}]\n"


def places(passages: Sequence[Passage]) -> list[LineRange]:
    """The places; neighbouring passages are one place."""
    return [place_of(*run) for run in _runs(passages)]


def quoted(passages: Sequence[Passage]) -> str:
    """The text of the passages, with their places."""
    return "\n\n".join(heading(place_of(*run)) + _text_of(run) for run in _runs(passages))


def left_out(read: Read, files: int) -> str:
    """What was read, and what was not."""
    named = [str(each) if files > 1 else each.lines for each in read.places[:MAX_NAMED]]
    more = len(read.places) - len(named)
    listed = "; ".join([*named, *([f"{more} more"] if more else [])])
    first = read.places[0].file if files == 1 else f"{files} documents"
    return (
        f"{first}: larger than the window, read {read.read:,} of {read.of:,} passages ({listed}); "
        f"{1 - read.share:.1%} of the text is left out"
    )


def _runs(passages: Sequence[Passage]) -> list[list[Passage]]:
    """The passages, neighbours in a document together."""

    def begins_at(each: tuple[int, Passage]) -> tuple[int, int]:
        place, passage = each
        return id(passage.document), passage.number - place

    return [[each for _, each in run] for _, run in groupby(enumerate(passages), begins_at)]


def _text_of(run: Sequence[Passage]) -> str:
    if len(run) == 1:
        return run[0].text
    start, end = run[0].span.start, run[-1].span.end
    return run[0].document.bytes_at(start, end - start).decode("utf-8", "replace").strip()
