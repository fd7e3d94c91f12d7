"""Text to token ids, in which nothing is a control token: text that spells one is cut.

A cut is marked by a character that the text does not hold, so that a template can be rendered
between cutting and encoding.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache

import numpy as np
import tokenizers

from mlxchat.errors import InputError
from mlxchat.progress import Progress
from mlxchat.text.spans import TokenIds

# Characters given to the tokenizer at once: its own bookkeeping takes some 150 bytes a token, so
# that a document of 100 MB in one piece would take gigabytes.
CHUNK_CHARS = 1 << 18

# A chat encodes its turns again and again: the latest chunks at least this long are remembered
# with their ids: this many, 30 million characters in all.
LONG_CHARS = 1 << 14
LONG_REMEMBERED = 128

# Unicode's noncharacters are for internal use and never text: they mark cuts and spans.
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]

# What control tokens look like that neither their flag nor the chat template gives away.
_CONTROL_SHAPE = re.compile(
    r"<\|.*\|>|<｜.*｜>|</?(?:think|thinking|tool_call|tool_response|tools)>"
)


class Encoder:
    """What a `tokenizers` backend makes of text. `template_source` may name control tokens that
    are not flagged so, and `markers` are ids of others; `control_ids` has each one's text by its
    id."""

    def __init__(
        self, backend: tokenizers.Tokenizer, template_source: str, markers: Collection[int] = ()
    ) -> None:
        self._backend = backend
        # What stands for unknown characters is flagged special as well, but text may contain it.
        unknown = getattr(backend.model, "unk_token", None)
        self.control_ids = {
            id_: token.content
            for id_, token in backend.get_added_tokens_decoder().items()
            if id_ in markers
            or (
                _is_control(token.content, token.special, template_source)
                and token.content != unknown
            )
        }
        self._control = _Literals(self.control_ids.values())
        self._encode_long = lru_cache(maxsize=LONG_REMEMBERED)(self._encode_now)
        self._anchor = self.encode_piece("\n")

    def cut(self, text: str, mark: str, spared: Collection[str] = ()) -> str:
        """Put `mark` into each text of a control token, so that none is left whole but those
        `spared`."""
        return self._control.cut(text, mark, spared)

    def encode(
        self, text: str, on_progress: Progress | None = None, *, begins: bool = True
    ) -> TokenIds:
        """Token ids `(T,)` of plain text; `begins` False if it continues other text."""
        mark, _ = unused_marks(text)
        return self.encode_cut(self.cut(text, mark), mark, on_progress, begins)

    def encode_cut(
        self, text: str, mark: str, on_progress: Progress | None, begins: bool = True
    ) -> TokenIds:
        """Encode text whose marks say where a control token's text was cut in two."""
        done = 0
        announce(text, on_progress)
        encoded: list[TokenIds] = [np.empty(0, np.int32)]
        for piece_number, piece in enumerate(text.split(mark)):
            for chunk_number, chunk in enumerate(_chunks(piece)):
                first = begins and piece_number == chunk_number == 0
                encode = self.encode_piece if first else self._encode_anchored
                encoded.append(encode(chunk))
                done += len(chunk)
                if on_progress is not None:
                    on_progress(done, len(text))
        ids = np.concatenate(encoded)
        self._check_no_disguise(ids, text)
        return ids

    def encode_piece(self, text: str) -> TokenIds:
        """Token ids that must not be written into: they may be remembered."""
        return self._encode_now(text) if len(text) < LONG_CHARS else self._encode_long(text)

    def _encode_now(self, text: str) -> TokenIds:
        return np.array(self._backend.encode(text, add_special_tokens=False).ids, np.int32)

    def _encode_anchored(self, text: str) -> TokenIds:
        """Encode text that continues other text: some tokenizers put a space before the first."""
        ids = self.encode_piece("\n" + text)
        n = len(self._anchor)
        if np.array_equal(ids[:n], self._anchor):
            return ids[n:]
        return self.encode_piece(text)

    def _check_no_disguise(self, ids: TokenIds, text: str) -> None:
        """A tokenizer that normalizes could still read a control token out of look-alikes."""
        found = int(np.isin(ids, list(self.control_ids)).sum())
        if found > self._control.count(text):
            raise InputError(
                "the text disguises one of the model's control tokens (look-alike characters), "
                "which cannot be told from a real one: remove it"
            )


class _Literals:
    """A set of texts to be found in others, quickly even if there are thousands of them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = {text for text in texts if text}
        self._lengths = sorted({len(text) for text in self._texts})
        first = "".join(sorted({text[0] for text in self._texts}))
        self._first = re.compile(f"[{re.escape(first)}]") if first else None

    def starts(self, text: str) -> Iterator[int]:
        """Each index at which one of the texts begins, overlapping ones included."""
        if self._first is None:
            return
        for match in self._first.finditer(text):
            start = match.start()
            if any(text[start : start + length] in self._texts for length in self._lengths):
                yield start

    def count(self, text: str) -> int:
        return sum(1 for _ in self.starts(text))

    def cut(self, text: str, mark: str, spared: Collection[str] = ()) -> str:
        """Put `mark` after the first character of each occurrence, so that none is left whole but
        those `spared`."""
        pieces: list[str] = []
        done = 0
        for start in self.starts(text):
            if any(text.startswith(each, start) for each in spared):
                continue
            pieces.append(text[done : start + 1])
            done = start + 1
        return mark.join([*pieces, text[done:]])


def _is_control(content: str, special: bool, template_source: str) -> bool:
    """Whether an added token steers the model, as opposed to runs of spaces, HTML tags and such."""
    if special:
        return True
    if not content.strip():
        return False
    return content in template_source or _CONTROL_SHAPE.fullmatch(content) is not None


def announce(text: str, on_progress: Progress | None) -> None:
    """Report that nothing is done yet of what will take more than a moment."""
    if on_progress is not None and len(text) > CHUNK_CHARS:
        on_progress(0, len(text))


def unused_marks(text: str) -> tuple[str, str]:
    """Two characters that do not occur in the text."""
    unused = [mark for mark in _MARKS if mark not in text]
    if len(unused) < 2:
        raise InputError("the text holds nearly all of Unicode's noncharacters: it is not text")
    return unused[0], unused[1]


def _chunks(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > CHUNK_CHARS:
        end = _cut_before(text, start, start + CHUNK_CHARS)
        yield text[start:end]
        start = end
    if start < len(text) or not text:
        yield text[start:]


def _cut_before(text: str, start: int, end: int) -> int:
    """Where to cut at or before `end`: a place where every pre-tokenizer in use ends a piece.

    That is after a line's end that no space follows, or else between two words; in a text
    without lines and words it is anywhere.
    """
    newline = text.rfind("\n", start, end)
    while newline >= start:
        if not text[newline + 1].isspace():
            return newline + 1
        newline = text.rfind("\n", start, newline)
    space = text.rfind(" ", start + 1, end)
    while space > start:
        if text[space - 1].isalnum() and text[space + 1].isalnum():
            return space
        space = text.rfind(" ", start + 1, space)
    return end
