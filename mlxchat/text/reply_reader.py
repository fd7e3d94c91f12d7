"""A reply's tokens as text while they come: decoded, thoughts apart, and up to a stop text.

Markers are recognized by their token ids; tags that are not tokens are searched for in the text.
Both are removed from the text, as are headers. `template` has the replies of earlier turns.
"""

from collections.abc import Collection, Iterable, Sequence
from copy import copy

import tokenizers

from mlxchat.text.reply_format import Markers, Place

# Whether it is a thought, and its text.
Piece = tuple[bool, str]

# A longer header is not one: the model has omitted it.
MAX_HEADER_CHARS = 120

# A reader's own state, and the tokens shown and pending of its decoder.
State = tuple[str, str, bool, int, tuple[int, ...], tuple[int, ...]]


class Decoder:
    """The text of ids; `special_ids` are those of control tokens."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(id_ for id_, token in added.items() if token.special)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids, without control tokens."""
        # The library shows those of which it holds a normalized text.
        shown = [id_ for id_ in ids if id_ not in self.special_ids]
        return self._backend.decode(shown, skip_special_tokens=True)

    def spelled(self, ids: Iterable[int]) -> str:
        """Text of the ids, with control tokens."""
        return self._backend.decode(list(ids), skip_special_tokens=False)

    def is_silent(self, id_: int) -> bool:
        """Whether `decode` omits the token whatever its context."""
        return id_ in self.special_ids or self._backend.id_to_token(id_) is None


class StreamDecoder:
    """Turns ids into text one by one, into complete characters only.

    A token's text can depend on the preceding tokens, so each is decoded together with them, and
    the text of those alone is removed. Source: the prefix method of Hugging Face's
    text-generation-inference; the library's own has no state to save.
    """

    # A UTF-8 character has at most four bytes and a token at least one, so an incomplete character
    # spans at most three tokens; anything before them is final.
    _UNFINISHED_TOKENS = 3
    _MAX_PENDING = 8

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._shown: list[int] = []
        self._pending: list[int] = []

    def add(self, id_: int) -> str:
        """Take one more token and return the text completed by it, often empty."""
        if self._decoder.is_silent(id_):
            # A character may continue after it, so it must not count as one of its tokens.
            return ""
        self._pending.append(id_)
        text = self._text(len(self._pending))
        if not text.endswith("\ufffd"):
            return self._show(len(self._pending), text)
        # The first tokens can be shown if their own text begins it, so no character is cut.
        limit = len(self._pending) - self._UNFINISHED_TOKENS
        for n in range(limit, 0, -1):
            begun = self._text(n)
            if text.startswith(begun):
                return self._show(n, begun)
        return self._show(limit, self._text(limit)) if limit > self._MAX_PENDING else ""

    @property
    def state(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens kept as context, and those whose text is incomplete."""
        return tuple(self._shown), tuple(self._pending)

    def restore(self, shown: Sequence[int], pending: Sequence[int]) -> None:
        """Continue from a `state`."""
        self._shown, self._pending = list(shown), list(pending)

    def finish(self) -> str:
        """Text of the remaining tokens, with replacement characters if incomplete."""
        return self._show(len(self._pending), self._text(len(self._pending)))

    def _text(self, n: int) -> str:
        """The text of the first `n` pending tokens."""
        before = self._decoder.decode(self._shown)
        return self._decoder.decode(self._shown + self._pending[:n])[len(before) :]

    def _show(self, n: int, text: str) -> str:
        # Tokens without text wait for the next one, up to a limit.
        if text or n > self._MAX_PENDING:
            self._shown, self._pending = self._pending[:n], self._pending[n:]
        return text


class Reader:
    """Reads a reply from `place` on. `may_think` if a thought is to be expected; `thoughts` counts
    those begun so far, including one begun by the prompt, and `thought_tokens` the tokens in them,
    without markers and labels."""

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
        self.thought_tokens = 0
        self._decoder = decoder
        self._markers = markers
        self._may_think = may_think
        # Whether an answer begins right after a thought: a constraint counts the newlines there.
        self.keeps_newlines = False
        # The header so far, or text that may have to be dropped or turn out to be a tag.
        self._held = ""
        # Whether a marker began the place and no text has followed yet.
        self.leads = place is Place.THOUGHT

    def fork(self) -> "Reader":
        """Another one that reads the rest by itself."""
        reader = copy(self)
        reader._decoder = copy(self._decoder)
        reader.restore(self.state)
        return reader

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
    def holds_back(self) -> bool:
        """Whether the last tokens are part of a character, of a tag or of a label."""
        return bool(self._held) or self.has_pending

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
        return self.place.value, self._held, self.leads, self.thought_tokens, *self._decoder.state

    def restore(self, state: State) -> None:
        """Continue from a `state`."""
        place, self._held, self.leads, self.thought_tokens, shown, pending = state
        self.place = Place(place)
        self._decoder.restore(shown, pending)

    def role(self, id_: int) -> Place | None:
        """What the token begins here; None for text."""
        place = Place.START if self._may_begin else self.place
        # Nearly all tokens are text.
        return self._markers.role(id_, place) if id_ in self._markers.roles else None

    def ends(self, id_: int) -> bool:
        """Whether this token ends the turn here, even if it does not elsewhere."""
        return (self.place is Place.ANSWER or self._has_no_header) and self.role(id_) is Place.END

    def add(self, id_: int, *, counts: bool = True) -> list[Piece]:
        """Take one more token and return the text completed by it, in pieces. In a thought, it
        `counts` unless it was forced."""
        role = self.role(id_)
        if role is None:
            was_thought, held = self.is_thought, len(self._held)
            pieces = self.read(self._decoder.add(id_))
            # A label belongs to the marker.
            is_own = was_thought and not (len(self._held) > held and self._markers.format.label)
            self.thought_tokens += counts and is_own and self.is_thought
            return pieces
        if self._may_begin and (begun := self.read(self._decoder.finish())):
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
            case Place.START | Place.ANSWER if self._may_begin:
                return self._read_start(text)
            case Place.THOUGHT if self.closing_tag:
                self.leads = False
                return self._read_up_to_tag(text)
            case Place.THOUGHT:
                text = self._without_label(text)
            case Place.ANSWER:
                self.leads = False
        return [(self.is_thought, text)] if text else []

    def _begin(self, place: Place) -> None:
        """Begin the place after a marker."""
        self.place, self._held, self.leads = place, "", True
        self.thoughts += self.is_thought

    @property
    def _may_begin(self) -> bool:
        """Whether a thought or the answer may begin here, or after one: some models think twice."""
        is_after = self.place is Place.ANSWER and self.leads and not self.keeps_newlines
        return self.place is Place.START or is_after

    @property
    def _has_no_header(self) -> bool:
        """Whether the model has answered although the prompt left a header to it."""
        return self.place is Place.HEADER and not self.leads and bool(self._held.strip())

    def _rest(self) -> list[Piece]:
        """The text held back when this place ends, without the beginning of a label."""
        pieces = self.read(self._decoder.finish())
        if self._may_begin:
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
        is_after_thought = self.place is Place.ANSWER
        self._held += text.lstrip("\n") if is_after_thought and not self._held else text
        begun = self._held if is_after_thought else self._held.lstrip()
        for tag, place in zip(self._markers.tags, (Place.THOUGHT, Place.ANSWER), strict=False):
            if begun.startswith(tag):
                self._begin(place)
                return self.read(begun.removeprefix(tag))
        if not begun or any(tag.startswith(begun) for tag in self._markers.tags):
            return []
        return self._begin_answer(self._held)

    def _begin_answer(self, text: str) -> list[Piece]:
        """Begin the answer with text that no marker precedes."""
        self.place, self._held, self.leads = Place.ANSWER, "", False
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
        if not self.leads or not label:
            self.leads = False
            return text
        self._held += text
        if label.startswith(self._held):
            return ""
        text, self._held, self.leads = self._held.removeprefix(label), "", False
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
    ends = (text[-n:] for n in range(min(max(map(len, searched), default=1) - 1, len(text)), 0, -1))
    return next((len(end) for end in ends if any(each.startswith(end) for each in searched)), 0)


def joined(pieces: Iterable[Piece]) -> tuple[str, str]:
    """Join the pieces into the thought and the answer."""
    pieces = list(pieces)
    thought = "".join(text for is_thought, text in pieces if is_thought)
    return thought, "".join(text for is_thought, text in pieces if not is_thought)
