"""Encode text so that nothing in it becomes a control token: any text that spells one is cut.

Cuts are marked with a character that does not occur in the text, so that a template can be rendered
between cutting and encoding.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import tokenizers
from tokenizers.models import Unigram

from mlxchat.errors import InputError, ModelBroken
from mlxchat.text.spans import TokenIds
from mlxchat.units import Progress

# Characters per call of the tokenizer. Its bookkeeping takes some 150 bytes per token, which would
# be gigabytes for a document of 100 MB in one piece.
CHUNK_CHARS = 1 << 18

# A chat encodes the same turns repeatedly, so the ids of chunks at least this long are cached: the
# latest 128, or about 30 million characters.
LONG_CHARS = 1 << 14
LONG_REMEMBERED = 128

# Unicode's noncharacters are reserved for internal use: here they mark cuts and spans.
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]

# The shape of control tokens that neither a flag nor the chat template identifies.
_CONTROL_SHAPE = re.compile(
    r"<\|.*\|>|<｜.*｜>|</?(?:think|thinking|tool_call|tool_response|tools)>"
)


class Encoder:
    """Encodes text with a `tokenizers` backend.

    Control tokens are those flagged special, those named in `template_source` and those whose ids
    are in `markers`; `control_ids` maps the id of each to its text.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, template_source: str, markers: Collection[int] = ()
    ) -> None:
        self._backend = backend
        # The token for unknown characters is flagged special as well, but text may contain it.
        unknown = _unknown(backend.model)
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
        """Insert `mark` into every text of a control token, except those in `spared`."""
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
        """Encode text in which marks show where control tokens' texts were cut."""
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
        """Token ids, possibly shared with a cache: do not modify them."""
        return self._encode_now(text) if len(text) < LONG_CHARS else self._encode_long(text)

    def _encode_now(self, text: str) -> TokenIds:
        # Invalid UTF-8 and JSON can have lone surrogates, which no tokenizer accepts.
        valid = text if text.isascii() else text.encode("utf-8", "replace").decode()
        try:
            return np.array(self._backend.encode(valid, add_special_tokens=False).ids, np.int32)
        except Exception as error:  # The library raises no narrower one.
            raise ModelBroken(f"the model's tokenizer cannot encode the text: {error}") from error

    def _encode_anchored(self, text: str) -> TokenIds:
        """Encode text that continues other text: some tokenizers prefix the first with a space."""
        ids = self.encode_piece("\n" + text)
        n = len(self._anchor)
        if np.array_equal(ids[:n], self._anchor):
            return ids[n:]
        return self.encode_piece(text)

    def _check_no_disguise(self, ids: TokenIds, text: str) -> None:
        """Check that normalization did not turn look-alike characters into a control token."""
        found = int(np.isin(ids, list(self.control_ids)).sum())
        if found > self._control.count(text):
            raise InputError(
                "the text contains look-alike characters that the tokenizer turns into one of the "
                "model's control tokens: remove them"
            )


def _unknown(model: Any) -> str | None:
    """The token for unknown characters, which a Unigram model does not expose."""
    if not isinstance(model, Unigram):
        return getattr(model, "unk_token", None)
    id_ = json.loads(model.__getstate__())["unk_id"]
    return None if id_ is None else model.id_to_token(id_)


class _Literals:
    """Finds a set of strings in texts, quickly even if there are thousands of them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = {text for text in texts if text}
        self._lengths = sorted({len(text) for text in self._texts})
        first = "".join(sorted({text[0] for text in self._texts}))
        self._first = re.compile(f"[{re.escape(first)}]" if first else "(?!)")

    def _begins(self, text: str, start: int) -> bool:
        return any(text[start : start + length] in self._texts for length in self._lengths)

    def count(self, text: str) -> int:
        """Number of occurrences, overlaps included."""
        return sum(self._begins(text, match.start()) for match in self._first.finditer(text))

    def cut(self, text: str, mark: str, spared: Collection[str] = ()) -> str:
        """Insert `mark` after the first character of each occurrence, except of those `spared`."""

        def with_mark(match: re.Match[str]) -> str:
            is_spared = any(text.startswith(each, match.start()) for each in spared)
            is_cut = not is_spared and self._begins(text, match.start())
            return match[0] + mark if is_cut else match[0]

        return self._first.sub(with_mark, text)


def _is_control(content: str, special: bool, template_source: str) -> bool:
    """Whether an added token steers the model, unlike runs of spaces, HTML tags and such."""
    if special:
        return True
    if not content.strip():
        return False
    return content in template_source or _CONTROL_SHAPE.fullmatch(content) is not None


def announce(text: str, on_progress: Progress | None) -> None:
    """Report zero progress before encoding a long text."""
    if on_progress is not None and len(text) > CHUNK_CHARS:
        on_progress(0, len(text))


def unused_marks(text: str) -> tuple[str, str]:
    """Two characters that do not occur in the text."""
    unused = [mark for mark in _MARKS if mark not in text]
    if len(unused) < 2:
        raise InputError("the text contains nearly all Unicode noncharacters: it is not text")
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
    """The latest index up to `end` at which every pre-tokenizer in use ends a piece.

    That is after a line break that no whitespace follows, else between two words; `end` itself in a
    text without lines and words.
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
