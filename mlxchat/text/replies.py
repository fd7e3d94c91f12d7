"""One model's replies: read as they arrive, and cut into segments for a chat template."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from itertools import groupby, product

import numpy as np

from mlxchat.text.reply_format import ReplyFormat
from mlxchat.text.reply_reader import (
    PROMPT_TAIL,
    Decoder,
    MarkerReader,
    Markers,
    Place,
    Reader,
    TagReader,
    place_after_prompt,
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

    def segments(self, ids: bytes | None, reply: str, thought: str) -> list[Segment]:
        """The reply in segments: as the model wrote it if `ids` are given, else as it would."""
        known = None if ids is None else np.frombuffer(ids, np.int32).tolist()
        written = None if known is None else self._written(known, reply, thought)
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
        for place, keeps_newlines in product(Place, (False, True)):
            reader = MarkerReader(self.new_decoder(), self.markers, place)
            if keeps_newlines:
                reader.keep_newlines()
            found = self._read_by(reader, self.markers, ids)
            spelled = {kind: _joined(found, kind) for kind in (Kind.THOUGHT, Kind.ANSWER)}
            if spelled == {Kind.THOUGHT: thought, Kind.ANSWER: reply}:
                return found
        return None

    def _read_by(self, reader: MarkerReader, markers: Markers, ids: list[int]) -> list[Segment]:
        """The tokens by what the reader makes of each, those alike together."""

        def kind_of(id_: int) -> Kind:
            is_marker = markers.role(id_, reader.place) is not None
            is_shown = any(text for _, text in reader.add(id_))
            if is_marker:
                return Kind.MARKER
            # Half a character is shown later, a control token never.
            is_hidden = not is_shown and not reader.has_pending and self.text_of([id_])
            if is_hidden or reader.place not in (Place.THOUGHT, Place.ANSWER):
                return Kind.GAP
            return Kind.THOUGHT if reader.is_thought else Kind.ANSWER

        runs = [(kind, tuple(run)) for kind, run in groupby(ids, kind_of)]
        return [Segment(kind, self.spelled(run), run) for kind, run in runs]

    def _as_one(self, ids: list[int], reply: str, thought: str) -> list[Segment] | None:
        """One segment for the whole reply: tags that are not tokens may share one with text."""
        text = self.spelled(ids)
        ways = product((False, True), repeat=2)
        if (thought, reply) not in (
            self.split(text, inside, keeps_newlines=keeps) for inside, keeps in ways
        ):
            return None
        return [Segment(Kind.ANSWER if not thought else Kind.GAP, text, tuple(ids))]


def _joined(segments: Iterable[Segment], kind: Kind) -> str:
    return "".join(segment.text for segment in segments if segment.kind is kind)
