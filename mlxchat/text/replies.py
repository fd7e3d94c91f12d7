"""One model's replies: where each begins after its prompt, and the segments of earlier ones.

A reply encoded again may yield other tokens than the model wrote. So texts with known ids are
tracked through a chat template: marks around them show which of them it leaves unchanged.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import groupby, product

import numpy as np

from mlxchat.text.encoder import TokenIds
from mlxchat.text.reply_format import NO_THOUGHTS, Markers, Place, ReplyFormat
from mlxchat.text.reply_reader import Decoder, Reader, StreamDecoder, joined

# The tokens at the end of a prompt to search for the marker that begins the reply.
PROMPT_TAIL = 16
# Where a reply begins, as the prompt leaves it.
BEGINNINGS = (Place.START, Place.THOUGHT, Place.ANSWER, Place.HEADER)


class Kind(Enum):
    """The kind of a segment of a reply; a GAP is text between a marker and the text shown."""

    MARKER = auto()
    GAP = auto()
    THOUGHT = auto()
    ANSWER = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A text, with its ids if they are known."""

    text: str
    ids: TokenIds | None = None
    kind: Kind = Kind.ANSWER


@dataclass(frozen=True, slots=True)
class Replies:
    """How to read one model's replies."""

    markers: Markers
    decoder: Decoder

    @property
    def format(self) -> ReplyFormat:
        return self.markers.format

    def reader(self, prompt: TokenIds | None, *, may_think: bool = True) -> Reader:
        """A reader for the reply to `prompt`; with None, for plain text without thoughts. Reads
        thoughts even if it does not expect any (`may_think`)."""
        markers = Markers(NO_THOUGHTS, {}) if prompt is None else self.markers
        return Reader(
            StreamDecoder(self.decoder), markers, self._place_after(prompt), may_think=may_think
        )

    def header_of_answer(self, prompt: TokenIds | None) -> str:
        """The text that begins an answer without a thought, if the prompt leaves its header to the
        model."""
        return self.format.begins if self._place_after(prompt) is Place.HEADER else ""

    def _place_after(self, prompt: TokenIds | None) -> Place:
        """The place in which the reply to `prompt` begins, as the template leaves it."""
        markers = self.markers
        if prompt is None or self.format is NO_THOUGHTS:
            return Place.ANSWER
        tail = prompt[-PROMPT_TAIL:].tolist()
        if markers.tags:
            is_open = self.decoder.spelled(tail).rstrip().endswith(self.format.opens)
            return Place.THOUGHT if is_open else Place.START
        before, last = -1, -1
        for place, id_ in enumerate(tail):
            before, last = (last, place) if id_ in markers.roles else (before, last)
        role, text = markers.roles.get(tail[last]), self.decoder.decode(tail[last + 1 :]).strip()
        match role:
            case Place.THOUGHT if text in ("", self.format.label.strip()):
                return Place.THOUGHT
            case Place.BODY if not text and before >= 0:
                return markers.after(
                    role, Place.HEADER, self.decoder.decode(tail[before + 1 : last])
                )
            case Place.HEADER:
                return Place.HEADER
            case _:
                return Place.START

    def split(
        self, text: str, place: Place = Place.START, *, keeps_newlines: bool = False
    ) -> tuple[str, str]:
        """Split a text with tags as plain text, which begins in `place`, into thought and answer.
        Newlines between the two are dropped, unless it `keeps_newlines`."""
        if self.format is NO_THOUGHTS or self.format.has_channels:
            return "", text
        reader = Reader(StreamDecoder(self.decoder), Markers(self.format, {}), place)
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
            return [Segment(reply, kind=Kind.ANSWER)]
        return [
            Segment(self.format.opens, kind=Kind.MARKER),
            Segment(self.format.label, kind=Kind.GAP),
            Segment(thought, kind=Kind.THOUGHT),
            Segment(self.format.closes, kind=Kind.MARKER),
            Segment("\n\n", kind=Kind.GAP),
            Segment(reply, kind=Kind.ANSWER),
        ]

    def _written(self, ids: list[int], reply: str, thought: str) -> list[Segment] | None:
        """The segments in the ids; None if they spell anything else."""
        text = self.decoder.spelled(ids)
        beginnings = BEGINNINGS if self.markers.roles else BEGINNINGS[:2]
        for place, keeps_newlines in product(beginnings, (False, True)):
            if self.markers.roles:
                reader = Reader(StreamDecoder(self.decoder), self.markers, place)
                if keeps_newlines:
                    reader.keep_newlines()
                found = list(self._read_by(reader, ids))
                if [_text(found, kind) for kind in (Kind.THOUGHT, Kind.ANSWER)] == [thought, reply]:
                    return found
            elif self.split(text, place, keeps_newlines=keeps_newlines) == (thought, reply):
                # Tags that are not tokens may share one with text: one segment for all.
                kind = Kind.GAP if thought else Kind.ANSWER
                return [Segment(text, np.array(ids, np.int32), kind)]
        return None

    def _read_by(self, reader: Reader, ids: list[int]) -> Iterator[Segment]:
        """The tokens by what the reader makes of each, those alike together."""

        def kind_of(id_: int) -> Kind:
            is_marker = self.markers.role(id_, reader.place) is not None
            is_shown = any(text for _, text in reader.add(id_))
            if is_marker:
                return Kind.MARKER
            # Half a character is shown later, a control token never.
            is_hidden = not is_shown and not reader.has_pending and self.decoder.decode([id_])
            if is_hidden or reader.place not in (Place.THOUGHT, Place.ANSWER):
                return Kind.GAP
            return Kind.THOUGHT if reader.is_thought else Kind.ANSWER

        for kind, run in groupby(ids, kind_of):
            segment_ids = [*run]
            yield Segment(self.decoder.spelled(segment_ids), np.array(segment_ids, np.int32), kind)


def enclosed(segments: Sequence[Segment], opened: str, closes: str) -> list[Segment]:
    """The segments with both markers around the thought: the prompt may have written the opening
    one, and an unfinished thought has no closing one."""
    kinds = [each.kind for each in segments]
    if Kind.THOUGHT not in kinds:
        return list(segments)
    from_end = kinds[::-1].index(Kind.THOUGHT)
    has_opening = Kind.MARKER in kinds[: kinds.index(Kind.THOUGHT)]
    has_closing = Kind.MARKER in kinds[len(kinds) - from_end :]
    before = [] if has_opening else [Segment(opened, kind=Kind.MARKER)]
    after = [] if has_closing else [Segment(closes, kind=Kind.MARKER)]
    return [*before, *segments, *after]


def _text(segments: Iterable[Segment], kind: Kind) -> str:
    return "".join(segment.text for segment in segments if segment.kind is kind)


# Renders each segment as the function given has it.
Render = Callable[[Callable[[Segment], str]], str]


def known_segments(render: Render, segments: Iterable[Segment], mark: str) -> list[Segment]:
    """What the template renders, in parts: the segments with ids that it leaves unchanged keep
    these. `mark` is a character that occurs in none."""
    rendered = render(lambda each: each.text)
    found = [Segment(rendered)]
    known = [each for each in segments if each.ids is not None]
    # Marks would keep a template from trimming: leave out first the texts that it could trim.
    untrimmed = [each for each in known if each.text == each.text.strip()]
    for some in (untrimmed, known if len(known) > len(untrimmed) else []):
        parts = split_at(render, some, mark) if some else found
        if "".join(each.text for each in parts) == rendered:
            found = parts
    return found


def split_at(render: Render, segments: Iterable[Segment], mark: str) -> list[Segment]:
    """What the template renders, in parts: the segments that it leaves unchanged, once, are apart
    from what is between them."""
    any_mark = re.compile(f"{mark}[0-9]+{mark}")
    marks = {each: f"{mark}{n}{mark}" for n, each in enumerate(segments)}
    rendered = render(lambda each: f"{marks.get(each, '')}{each.text}{marks.get(each, '')}")
    found: list[Segment] = []
    for each, own in marks.items():
        before, *after = rendered.split(f"{own}{each.text}{own}")
        if len(after) == 1:
            found += [Segment(any_mark.sub("", before)), each]
            (rendered,) = after
    return [*found, Segment(any_mark.sub("", rendered))]
