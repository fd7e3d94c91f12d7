"""One model's replies: read as they arrive, and cut into segments for a chat template."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import product

from mlxchat.text.reply_format import ReplyFormat
from mlxchat.text.reply_reader import (
    PROMPT_TAIL,
    Decoder,
    MarkerReader,
    Markers,
    Place,
    Reader,
    Run,
    TagReader,
    place_after_prompt,
    runs,
)
from mlxchat.text.spans import TokenIds
from mlxchat.text.thinking import ThinkSplitter, joined

TextOf = Callable[[Iterable[int]], str]


class Kind(Enum):
    """The kind of a segment; a GAP is text between a marker and the text shown."""

    MARKER = auto()
    GAP = auto()
    THOUGHT = auto()
    ANSWER = auto()


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of a reply, with its ids if the model wrote it."""

    kind: Kind
    text: str
    ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Replies:
    """How to read one model's replies.

    `format` is None for a model without thoughts, `markers` is None if its tags are not tokens.
    `is_announced` if anything suggests that the model thinks in this format.
    `text_of` omits special tokens, `spelled` includes them.
    """

    format: ReplyFormat | None
    markers: Markers | None
    text_of: TextOf
    spelled: TextOf
    new_decoder: Callable[[], Decoder]
    is_announced: bool = True

    def reader(self, prompt: TokenIds | None, *, may_think: bool = True) -> Reader:
        """A reader for the reply to `prompt`; with None, for plain text without thoughts. Reads
        thoughts even if it does not expect any (`may_think`)."""
        if prompt is None or self.format is None:
            return Reader(self.new_decoder())
        tail = prompt[-PROMPT_TAIL:].tolist()
        if self.markers is None:
            inside = self.spelled(tail).rstrip().endswith(self.format.opens)
            return TagReader(
                self.new_decoder(),
                self.format,
                inside,
                is_announced=self.is_announced,
                may_think=may_think,
            )
        place = place_after_prompt(tail, self.markers, self.text_of)
        return MarkerReader(self.new_decoder(), self.markers, place, may_think=may_think)

    def header_of_answer(self, prompt: TokenIds | None) -> str:
        """The text that begins an answer without a thought, if the prompt leaves its header to the
        model."""
        reader = self.reader(prompt)
        is_header = isinstance(reader, MarkerReader) and reader.place is Place.HEADER
        return self.format.begins if self.format is not None and is_header else ""

    def split(
        self, text: str, inside: bool = False, *, keeps_newlines: bool = False
    ) -> tuple[str, str]:
        """Split a text with tags as plain text into thought and answer.

        `inside` means that it begins within the thought. Newlines between the two are dropped,
        unless it `keeps_newlines`.
        """
        if self.format is None or self.format.has_channels:
            return "", text
        splitter = ThinkSplitter(self.format.opens, self.format.closes, inside)
        splitter.keeps_newlines = keeps_newlines
        return joined([*splitter.add(text), *splitter.finish()])

    def spells(self, ids: TokenIds, reply: str, thought: str) -> bool:
        """Whether the ids are exactly the reply, its thought and its markers."""
        return self._written(ids.tolist(), reply, thought) is not None

    def segments(self, ids: TokenIds | None, reply: str, thought: str) -> list[Segment]:
        """The reply in segments: as the model wrote it if `ids` are given, else as it would."""
        written = None if ids is None else self._written(ids.tolist(), reply, thought)
        if written is not None:
            return written
        if self.format is None or not thought:
            return [Segment(Kind.ANSWER, reply)]
        return [
            Segment(Kind.MARKER, self.format.opens),
            Segment(Kind.GAP, self.format.label),
            Segment(Kind.THOUGHT, thought),
            Segment(Kind.MARKER, self.format.closes),
            Segment(Kind.GAP, "\n\n"),
            Segment(Kind.ANSWER, reply),
        ]

    def _written(self, ids: list[int], reply: str, thought: str) -> list[Segment] | None:
        """The segments in the ids; None if they spell anything else."""
        if self.markers is None:
            return self._as_one(ids, reply, thought)
        for place, is_gap in product(Place, (_is_newlines, _is_empty)):
            found = list(self._segments_of(runs(ids, self.markers, self.text_of, place), is_gap))
            spelled = {kind: _joined(found, kind) for kind in (Kind.THOUGHT, Kind.ANSWER)}
            if spelled == {Kind.THOUGHT: thought, Kind.ANSWER: reply}:
                return found
        return None

    def _as_one(self, ids: list[int], reply: str, thought: str) -> list[Segment] | None:
        """One segment for the whole reply: tags that are not tokens may share one with text."""
        text = self.spelled(ids)
        ways = product((False, True), repeat=2)
        if (thought, reply) not in (
            self.split(text, inside, keeps_newlines=keeps) for inside, keeps in ways
        ):
            return None
        return [Segment(Kind.ANSWER if not thought else Kind.GAP, text, tuple(ids))]

    def _segments_of(
        self, found: Iterable[Run], is_gap: Callable[[str], bool]
    ) -> Iterator[Segment]:
        assert self.markers is not None
        follows_marker = False
        for run in found:
            match run.place:
                case None:
                    yield Segment(Kind.MARKER, self.spelled(run.ids))
                case Place.THOUGHT:
                    yield from self._without_lead(run.ids, Kind.THOUGHT, self._is_in_label)
                case Place.ANSWER if follows_marker:
                    yield from self._without_lead(run.ids, Kind.ANSWER, is_gap)
                case Place.ANSWER:
                    yield self._segment(Kind.ANSWER, run.ids)
                case _:
                    yield self._segment(Kind.GAP, run.ids)
            follows_marker = run.place is None

    def _without_lead(
        self, ids: Sequence[int], kind: Kind, leads: Callable[[str], bool]
    ) -> Iterator[Segment]:
        """Yield a gap of the leading tokens, then a segment of the others."""
        n = 0
        while n < len(ids) and leads(self.spelled(ids[: n + 1])):
            n += 1
        segments = (self._segment(Kind.GAP, ids[:n]), self._segment(kind, ids[n:]))
        yield from (segment for segment in segments if segment.ids)

    def _segment(self, kind: Kind, ids: Sequence[int]) -> Segment:
        return Segment(kind, self.spelled(ids), tuple(ids))

    def _is_in_label(self, text: str) -> bool:
        return self.format is not None and self.format.label.startswith(text)


def _is_newlines(text: str) -> bool:
    return not text.strip("\n")


def _is_empty(text: str) -> bool:
    """In a constrained reply, whose newlines all count."""
    return not text


def _joined(segments: Iterable[Segment], kind: Kind) -> str:
    return "".join(segment.text for segment in segments if segment.kind is kind)
