"""A reply's tokens as text while it is generated: thoughts apart from the answer, and up to a stop
text. And one model's replies: where each begins after its prompt, and the segments of earlier ones.

Markers are recognized by their token ids; tags that are not tokens are searched for in the text.
Both are removed from the text, as are headers.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product

import numpy as np

from mlxchat.text.encoder import Decoder, StreamDecoder, TokenIds
from mlxchat.text.reply_format import NO_THOUGHTS, Markers, Place, ReplyFormat
from mlxchat.text.template import Kind, Segment

# Whether it is a thought, and its text.
Piece = tuple[bool, str]

# A longer header is not one: the model has omitted it.
MAX_HEADER_CHARS = 120

# The tokens at the end of a prompt to search for the marker that begins the reply.
PROMPT_TAIL = 16
# Where a reply begins, as the prompt leaves it.
BEGINNINGS = (Place.START, Place.THOUGHT, Place.ANSWER, Place.HEADER)

# A reader's own state, and the tokens shown and pending of its decoder.
State = tuple[str, str, bool, tuple[int, ...], tuple[int, ...]]


class Reader:
    """Reads a reply from `place` on. `may_think` if a thought is to be expected; `thoughts` counts
    those begun so far, including one begun by the prompt."""

    def __init__(
        self,
        decoder: StreamDecoder,
        markers: Markers,
        place: Place = Place.START,
        *,
        may_think: bool = True,
    ) -> None:
        self.place = place
        self.thoughts = int(place is Place.THOUGHT)
        self._decoder = decoder
        self._markers = markers
        self._may_think = may_think
        self._keeps_newlines = False
        # The header so far, or text that may have to be dropped or turn out to be a tag.
        self._held = ""
        # Whether a marker in the reply began the place and no text has followed yet.
        self._leads = place is Place.THOUGHT

    def keep_newlines(self) -> None:
        """Show the newlines between a thought and the answer, because a constraint counts them."""
        self._keeps_newlines = True

    @property
    def ends_by_marker(self) -> bool:
        """Whether a token can end the turn in one place, and something else in another."""
        return bool(self._markers.having(Place.END))

    @property
    def has_pending(self) -> bool:
        """Whether the last tokens are an incomplete character."""
        return bool(self._decoder.state[1])

    @property
    def is_thought(self) -> bool:
        return self.place is Place.THOUGHT

    @property
    def in_answer(self) -> bool:
        """Whether the next token belongs to the answer, unless it is one of the `openers`."""
        return self.place in (Place.START, Place.ANSWER)

    @property
    def openers(self) -> Collection[int]:
        """The tokens that may begin something else here, such as a thought."""
        if self.place is not Place.START:
            return ()
        others = (Place.THOUGHT, Place.HEADER) if self._may_think else ()
        return self._markers.having(Place.ANSWER, *others)

    @property
    def closing_tag(self) -> str:
        """The text that ends the current thought; empty if it ends with a marker."""
        return self._markers.tags[1] if self.is_thought and self._markers.tags else ""

    @property
    def state(self) -> State:
        return self.place.value, self._held, self._leads, *self._decoder.state

    def restore(self, state: State) -> None:
        """Continue from a `state`."""
        place, self._held, self._leads, shown, pending = state
        self.place = Place(place)
        self._decoder.restore(shown, pending)

    def ends(self, id_: int) -> bool:
        """Whether this token ends the turn here, even if it does not elsewhere."""
        is_answer = self.place is Place.ANSWER or self._has_no_header
        return is_answer and self._markers.role(id_, self.place) is Place.END

    def add(self, id_: int) -> list[Piece]:
        """Take one more token and return the text completed by it, in pieces."""
        role = self._markers.role(id_, self.place)
        if role is None:
            return self.read(self._decoder.add(id_))
        if self.place is Place.START and (begun := self.read(self._decoder.finish())):
            # Bytes of an incomplete character began the answer, in which a tag is text.
            return [*begun, *self.add(id_)]
        header, pieces = "", list[Piece]()
        if self.place is Place.HEADER and role is not Place.END:
            header = f"{self._held}{self._decoder.finish()} "
        else:
            pieces = self._rest()
        self._begin(self._markers.after(role, self.place, header))
        self._held = header if self.place is Place.HEADER else ""
        # Decode what follows as text after this marker, without showing the marker.
        self._decoder.restore([id_], [])
        return pieces

    def finish(self) -> list[Piece]:
        """Return the text held back, after the last token."""
        pieces = self._rest()
        # Blanks that no marker has followed are the whole reply.
        held, self._held = self._held, ""
        return [*pieces, (False, held)] if held else pieces

    def read(self, text: str) -> list[Piece]:
        """Take text in place of a token, and return what it completes."""
        if not text:
            return []
        match self.place:
            case Place.CLOSING:
                return []
            case Place.HEADER:
                return self._read_header(text)
            case Place.START:
                return self._read_start(text)
            case Place.THOUGHT if self.closing_tag:
                return self._read_up_to_tag(text)
            case Place.THOUGHT:
                text = self._without_label(text)
            case Place.ANSWER if self._leads and not self._keeps_newlines:
                text = text.lstrip("\n")
                self._leads = not text
            case Place.ANSWER:
                self._leads = False
        return [(self.is_thought, text)] if text else []

    def _begin(self, place: Place) -> None:
        """Begin the place after a marker."""
        self.place, self._held, self._leads = place, "", True
        self.thoughts += self.is_thought

    @property
    def _has_no_header(self) -> bool:
        """Whether the model has answered although the prompt left a header to it."""
        return self.place is Place.HEADER and not self._leads and bool(self._held.strip())

    def _rest(self) -> list[Piece]:
        """The text held back when this place ends, without the beginning of a label."""
        pieces = self.read(self._decoder.finish())
        if self.place is Place.START:
            return pieces
        if self._has_no_header or (self.closing_tag and self._held):
            pieces.append((self.is_thought, self._held))
        self._held = ""
        return pieces

    def _read_header(self, text: str) -> list[Piece]:
        self._held += text
        if len(self._held) <= MAX_HEADER_CHARS and "\n" not in self._held.strip():
            return []
        # The model has begun without a header.
        return self._begin_answer(self._held.lstrip())

    def _read_start(self, text: str) -> list[Piece]:
        self._held += text
        begun = self._held.lstrip()
        for tag, place in zip(self._markers.tags, (Place.THOUGHT, Place.ANSWER), strict=False):
            if begun.startswith(tag):
                self._begin(place)
                return self.read(begun.removeprefix(tag))
        if not begun or any(tag.startswith(begun) for tag in self._markers.tags):
            return []
        return self._begin_answer(self._held)

    def _begin_answer(self, text: str) -> list[Piece]:
        """Begin the answer with text that no marker precedes."""
        self.place, self._held, self._leads = Place.ANSWER, "", False
        return [(False, text)]

    def _read_up_to_tag(self, text: str) -> list[Piece]:
        closes = self.closing_tag
        thought, tag, after = (self._held + text).partition(closes)
        if tag:
            self._begin(Place.ANSWER)
        else:
            shown = len(thought) - length_begun(thought, (closes,))
            thought, self._held = thought[:shown], thought[shown:]
        return [*([(True, thought)] if thought else []), *self.read(after)]

    def _without_label(self, text: str) -> str:
        label = self._markers.format.label
        if not self._leads or not label:
            return text
        self._held += text
        if self._held != label and label.startswith(self._held):
            return ""
        text, self._held, self._leads = self._held.removeprefix(label), "", False
        return text


class StopTexts:
    """Holds back text that may be the beginning of a stop text until that is decided. Stop texts
    are found across token boundaries, and never shown."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = tuple(texts)
        self.held = ""
        self.found = False

    def add(self, text: str) -> str:
        """Take more text and return what may be shown now. Sets `found` at a stop text."""
        if not self._texts:
            return text
        self.held += text
        starts = [start for stop in self._texts if (start := self.held.find(stop)) >= 0]
        if starts:
            self.found = True
            shown, self.held = self.held[: min(starts)], ""
            return shown
        return self._release(len(self.held) - length_begun(self.held, self._texts))

    def finish(self) -> str:
        """Return the text held back: no stop text follows."""
        return self._release(len(self.held))

    def _release(self, n: int) -> str:
        shown, self.held = self.held[:n], self.held[n:]
        return shown


def length_begun(text: str, searched: Sequence[str]) -> int:
    """Length of the longest suffix of `text` that begins one of the texts searched for."""
    longest = min(max(map(len, searched), default=1) - 1, len(text))
    ends = (text[-n:] for n in range(longest, 0, -1))
    return next((len(end) for end in ends if any(each.startswith(end) for each in searched)), 0)


def joined(pieces: Iterable[Piece]) -> tuple[str, str]:
    """Join the pieces into the thought and the answer."""
    pieces = list(pieces)
    thought, answer = (
        "".join(text for is_, text in pieces if is_ is kind) for kind in (True, False)
    )
    return thought, answer


@dataclass(frozen=True, slots=True)
class Replies:
    """How to read one model's replies."""

    markers: Markers
    decoder: Decoder

    @property
    def format(self) -> ReplyFormat:
        return self.markers.format

    def reader(self, prompt: TokenIds | None = None, *, may_think: bool = True) -> Reader:
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

    def segments(self, ids: bytes | None, reply: str, thought: str) -> list[Segment]:
        """The reply in segments: as the model wrote it if the `ids` spell exactly that, with
        nothing cut off or left out, else as it would."""
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


def _text(segments: Iterable[Segment], kind: Kind) -> str:
    return "".join(segment.text for segment in segments if segment.kind is kind)
