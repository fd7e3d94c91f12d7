"""One model's replies: read as they arrive, and cut into segments for a chat template."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from itertools import groupby, product

import numpy as np

from mlxchat.text.reply_format import NO_THOUGHTS, ReplyFormat
from mlxchat.text.reply_reader import Markers, Place, Reader, place_after_prompt
from mlxchat.text.spans import TokenIds
from mlxchat.text.stream_decoder import StreamDecoder
from mlxchat.text.thinking import joined

# The tokens at the end of a prompt to search for the marker that begins the reply.
PROMPT_TAIL = 16

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
    """How to read one model's replies. `text_of` omits special tokens, `spelled` includes them."""

    markers: Markers
    text_of: TextOf
    spelled: TextOf
    new_decoder: Callable[[], StreamDecoder]

    @property
    def format(self) -> ReplyFormat:
        return self.markers.format

    def reader(self, prompt: TokenIds | None, *, may_think: bool = True) -> Reader:
        """A reader for the reply to `prompt`; with None, for plain text without thoughts. Reads
        thoughts even if it does not expect any (`may_think`)."""
        markers = Markers(NO_THOUGHTS, {}) if prompt is None else self.markers
        place = self._place_after(prompt)
        return Reader(self.new_decoder(), markers, place, may_think=may_think)

    def _place_after(self, prompt: TokenIds | None) -> Place:
        """The place in which the reply to `prompt` begins."""
        if prompt is None or self.format is NO_THOUGHTS:
            return Place.ANSWER
        tail = prompt[-PROMPT_TAIL:].tolist()
        if self.markers.tags:
            is_open = self.spelled(tail).rstrip().endswith(self.format.opens)
            return Place.THOUGHT if is_open else Place.START
        return place_after_prompt(tail, self.markers, self.text_of)

    def header_of_answer(self, prompt: TokenIds | None) -> str:
        """The text that begins an answer without a thought, if the prompt leaves its header to the
        model."""
        return self.format.begins if self._place_after(prompt) is Place.HEADER else ""

    def split(
        self, text: str, place: Place = Place.START, *, keeps_newlines: bool = False
    ) -> tuple[str, str]:
        """Split a text with tags as plain text, which begins in `place`, into thought and answer.
        Newlines between the two are dropped, unless it `keeps_newlines`."""
        if self.format is NO_THOUGHTS or self.format.has_channels:
            return "", text
        reader = Reader(self.new_decoder(), Markers(self.format, {}), place)
        if keeps_newlines:
            reader.keep_newlines()
        return joined([*reader.read(text), *reader.finish()])

    def spells(self, ids: TokenIds, reply: str, thought: str) -> bool:
        """Whether the ids are exactly the reply, its thought and its markers."""
        return self._written(ids.tolist(), reply, thought) is not None

    def segments(self, ids: bytes | None, reply: str, thought: str) -> list[Segment]:
        """The reply in segments: as the model wrote it if `ids` are given, else as it would."""
        known = None if ids is None else np.frombuffer(ids, np.int32).tolist()
        written = None if known is None else self._written(known, reply, thought)
        if written is not None:
            return written
        if self.format is NO_THOUGHTS or not thought:
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
        if not self.markers.roles:
            return self._as_one(ids, reply, thought)
        for place, keeps_newlines in product(Place, (False, True)):
            reader = Reader(self.new_decoder(), self.markers, place)
            if keeps_newlines:
                reader.keep_newlines()
            found = self._read_by(reader, ids)
            spelled = {kind: _joined(found, kind) for kind in (Kind.THOUGHT, Kind.ANSWER)}
            if spelled == {Kind.THOUGHT: thought, Kind.ANSWER: reply}:
                return found
        return None

    def _read_by(self, reader: Reader, ids: list[int]) -> list[Segment]:
        """The tokens by what the reader makes of each, those alike together."""

        def kind_of(id_: int) -> Kind:
            is_marker = self.markers.role(id_, reader.place) is not None
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
        ways = product((Place.START, Place.THOUGHT), (False, True))
        if (thought, reply) not in (
            self.split(text, place, keeps_newlines=keeps) for place, keeps in ways
        ):
            return None
        return [Segment(Kind.ANSWER if not thought else Kind.GAP, text, tuple(ids))]


def _joined(segments: Iterable[Segment], kind: Kind) -> str:
    return "".join(segment.text for segment in segments if segment.kind is kind)
