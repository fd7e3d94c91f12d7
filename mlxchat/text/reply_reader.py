"""Separate thoughts from the answer while a reply is generated.

Markers are recognized by their token ids; tags that are not tokens are searched for in the text.
Both are removed from the text, as are headers.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from mlxchat.text.reply_format import NO_THOUGHTS, ReplyFormat, Role
from mlxchat.text.stop import length_begun
from mlxchat.text.stream_decoder import StreamDecoder
from mlxchat.text.thinking import Piece

# A longer header is not one: the model has omitted it.
MAX_HEADER_CHARS = 120

# A reader's own state, ready for JSON, and its decoder's.
State = tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]]


class Place(Enum):
    """The part of a reply in which the next token falls."""

    START = "start"
    THOUGHT = "thought"
    ANSWER = "answer"
    HEADER = "header"
    CLOSING = "closing"


AFTER = {
    Role.THOUGHT: Place.THOUGHT,
    Role.ANSWER: Place.ANSWER,
    Role.HEADER: Place.HEADER,
    Role.CLOSE: Place.CLOSING,
}


@dataclass(frozen=True)
class Markers:
    """A format's markers by id; without any, its tags are searched for in the text.

    Those that are not `special` count as text wherever they are not expected, since models also
    write about `<think>`. `is_announced` if anything suggests that the model thinks in this format.
    """

    format: ReplyFormat
    roles: Mapping[int, Role]
    special: frozenset[int] = frozenset()
    is_announced: bool = True

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """The opening and closing tag, if they are not tokens."""
        is_text = not self.roles and self.format is not NO_THOUGHTS
        return (self.format.opens, self.format.closes) if is_text else ()

    def role(self, id_: int, place: Place) -> Role | None:
        """What the token begins at this place; None for text."""
        role = self.roles.get(id_)
        if role is None or id_ in self.special:
            return role
        # A reply without a thought may begin with the closing tag.
        expected = {Place.START: (Role.THOUGHT, Role.ANSWER), Place.THOUGHT: (Role.ANSWER,)}
        return role if role in expected.get(place, ()) else None

    @cached_property
    def openers(self) -> frozenset[int]:
        """The markers that may begin a reply."""
        return self._having(Role.THOUGHT, Role.ANSWER, Role.HEADER)

    @cached_property
    def answer_openers(self) -> frozenset[int]:
        """The markers that may begin a reply without a thought."""
        return self._having(Role.ANSWER)

    @cached_property
    def has_ends(self) -> bool:
        return bool(self._having(Role.END))

    def _having(self, *roles: Role) -> frozenset[int]:
        return frozenset(id_ for id_, role in self.roles.items() if role in roles)

    def is_tag(self, id_: int) -> bool:
        """Whether the token is a marker in some places and text in others."""
        return id_ in self.roles and id_ not in self.special

    def after(self, role: Role, place: Place, header: str) -> Place:
        """The place that a marker begins."""
        if role is Role.BODY and place is Place.HEADER:
            return Place.THOUGHT if self.format.is_thought(header) else Place.ANSWER
        return AFTER.get(role, Place.START)


class Reader:
    """Reads a reply from `place` on. `may_think` if a thought is to be expected."""

    def __init__(
        self,
        decoder: StreamDecoder,
        markers: Markers,
        place: Place = Place.START,
        *,
        may_think: bool = True,
    ) -> None:
        self._decoder = decoder
        self._markers = markers
        self._may_think = may_think and markers.is_announced
        self._keeps_newlines = False
        self._place = place
        # The header so far, or text that may have to be dropped or turn out to be a tag.
        self._held = ""
        # Whether a marker in the reply began the place and no text has followed yet.
        self._leads = place is Place.THOUGHT
        self._thoughts = int(place is Place.THOUGHT)

    def keep_newlines(self) -> None:
        """Show the newlines between a thought and the answer, because a constraint counts them."""
        self._keeps_newlines = True

    @property
    def ends_by_marker(self) -> bool:
        """Whether a token can end the turn in one place, and something else in another."""
        return self._markers.has_ends

    @property
    def thoughts(self) -> int:
        """Number of thoughts begun so far, including one begun by the prompt."""
        return self._thoughts

    @property
    def place(self) -> Place:
        return self._place

    @property
    def has_pending(self) -> bool:
        """Whether the last tokens are an incomplete character."""
        return bool(self._decoder.state[1])

    @property
    def is_thought(self) -> bool:
        return self._place is Place.THOUGHT

    @property
    def in_answer(self) -> bool:
        """Whether the next token belongs to the answer, unless it is one of the `openers`."""
        return self._place in (Place.START, Place.ANSWER)

    @property
    def openers(self) -> Collection[int]:
        """The tokens that may begin something else here, such as a thought."""
        if self._place is not Place.START:
            return ()
        return self._markers.openers if self._may_think else self._markers.answer_openers

    @property
    def tags(self) -> Sequence[str]:
        """The texts that may begin something else here; empty once the reply has begun."""
        return self._markers.tags if self._may_think and self._place is Place.START else ()

    @property
    def closing_tag(self) -> str:
        """The text that ends the current thought; empty if it ends with a marker."""
        return self._markers.tags[1] if self.is_thought and self._markers.tags else ""

    @property
    def state(self) -> State:
        leads = "leads" if self._leads else ""
        return (self._place.value, self._held, leads), *self._decoder.state

    def restore(self, reading: Sequence[str], shown: Sequence[int], pending: Sequence[int]) -> None:
        """Continue from a `state`."""
        self._decoder.restore(shown, pending)
        if reading:
            place, self._held, leads = reading
            self._place, self._leads = Place(place), bool(leads)

    def ends(self, id_: int) -> bool:
        """Whether this token ends the turn here, even if it does not elsewhere."""
        is_answer = self._place is Place.ANSWER or self._has_no_header
        return is_answer and self._markers.role(id_, self._place) is Role.END

    def add(self, id_: int) -> list[Piece]:
        """Take one more token and return the text completed by it, in pieces."""
        before = self._unfinished_before(id_)
        role = self._markers.role(id_, self._place)
        if role is None:
            return [*before, *self.read(self._decoder.add(id_))]
        pieces = [] if self._is_header and role is not Role.END else self._rest()
        header = f"{self._held}{self._decoder.finish()} " if self._is_header else ""
        self._begin(self._markers.after(role, self._place, header))
        self._held = header if self._is_header else ""
        # Decode what follows as text after this marker, without showing the marker.
        self._decoder.restore([id_], [])
        return [*before, *pieces]

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
        match self._place:
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
        self._place, self._held, self._leads = place, "", True
        self._thoughts += self.is_thought

    def _unfinished_before(self, id_: int) -> list[Piece]:
        """Bytes of an incomplete character before a tag that is one only at the start: they count
        as text nevertheless."""
        if self._place is Place.START and self._markers.is_tag(id_):
            return self.read(self._decoder.finish())
        return []

    @property
    def _is_header(self) -> bool:
        return self._place is Place.HEADER

    @property
    def _has_no_header(self) -> bool:
        """Whether the model has answered although the prompt left a header to it."""
        return self._is_header and not self._leads and bool(self._held.strip())

    def _rest(self) -> list[Piece]:
        """The text held back when this place ends, without the beginning of a label."""
        pieces = self.read(self._decoder.finish())
        if self._place is Place.START:
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
        # If nothing suggests that the model thinks, do not hold back its leading blanks.
        begun = self._held.lstrip() if self._markers.is_announced else self._held
        for tag, place in zip(self._markers.tags, (Place.THOUGHT, Place.ANSWER), strict=False):
            if begun.startswith(tag):
                self._begin(place)
                return self.read(begun.removeprefix(tag))
        if not begun or any(tag.startswith(begun) for tag in self._markers.tags):
            return []
        return self._begin_answer(self._held)

    def _begin_answer(self, text: str) -> list[Piece]:
        """Begin the answer with text that no marker precedes."""
        self._place, self._held, self._leads = Place.ANSWER, "", False
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


def place_after_prompt(
    tail: Sequence[int], markers: Markers, text_of: Callable[[Sequence[int]], str]
) -> Place:
    """The state in which a reply to a prompt ending in `tail` begins, as the template leaves it."""
    last = max((i for i, id_ in enumerate(tail) if id_ in markers.roles), default=None)
    if last is None:
        return Place.START
    role, text = markers.roles[tail[last]], text_of(tail[last + 1 :])
    if role is Role.THOUGHT:
        is_begun = text.strip() in ("", markers.format.label.strip())
        return Place.THOUGHT if is_begun else Place.START
    if role is Role.BODY:
        before = [i for i in range(last) if tail[i] in markers.roles]
        header = text_of(tail[before[-1] + 1 : last]) if before else ""
        return Place.START if text.strip() else markers.after(role, Place.HEADER, header)
    return Place.HEADER if role is Role.HEADER else Place.START
