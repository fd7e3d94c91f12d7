"""Encode text so that nothing in it becomes a control token: any text that spells one is cut. And
the bytes that each token stands for.

Cuts are marked with a character that does not occur in the text, so that a template can be rendered
between cutting and encoding.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import tokenizers
from tokenizers.models import Unigram

from mlxchat.errors import InputError, ModelBroken, ModelUnsupported
from mlxchat.units import Progress

TokenIds = np.ndarray  # one dimension, int32

# Characters per call of the tokenizer, during which Ctrl-C waits. Its bookkeeping takes some 150
# bytes per token, which would be gigabytes for a document of 100 MB in one piece.
CHUNK_CHARS = 1 << 16

# A chat encodes the same turns repeatedly, so the ids of chunks at least this long are cached: the
# latest 512, or about 30 million characters.
LONG_CHARS = 1 << 14
LONG_REMEMBERED = 512

# Unicode's noncharacters are reserved for internal use: here they mark cuts and spans.
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]

# The shape of control tokens that neither a flag nor the chat template identifies.
_CONTROL_SHAPE = re.compile(
    r"<\|.*\|>|<｜.*｜>|</?(?:think|thinking|tool_call|tool_response|tools)>"
)

# Up to the last place at which every pre-tokenizer in use ends a piece: after a line break that no
# whitespace follows, else between two words.
_PIECES = (re.compile(r"(?s).*\n(?=\S)"), re.compile(r"(?s).*[^\W_](?= [^\W_])"))


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
        unknown = _unknown(backend)
        self.control_ids = {
            id_: token.content
            for id_, token in backend.get_added_tokens_decoder().items()
            if id_ in markers or (token.content != unknown and _is_control(token, template_source))
        }
        self._control = _Literals(self.control_ids.values())
        self.cut = self._control.cut
        self._encode_long = lru_cache(maxsize=LONG_REMEMBERED)(self._encode_now)
        self._anchor = self.encode_piece("\n")

    def encode(
        self, text: str, on_progress: Progress | None = None, *, begins: bool = True
    ) -> TokenIds:
        """Token ids `(T,)` of text without control tokens; it `begins`, or continues another."""
        mark, _ = unused_marks(text)
        return self.encode_cut(self.cut(text, mark), mark, on_progress, begins)

    def encode_cut(
        self, text: str, mark: str, on_progress: Progress | None, begins: bool = True
    ) -> TokenIds:
        """Encode text in which marks show where control tokens' texts were cut."""
        done, total = 0, len(text) - text.count(mark)
        if on_progress is not None and total > CHUNK_CHARS:
            on_progress(0, total)
        encoded: list[TokenIds] = [np.empty(0, np.int32)]
        for chunk in (chunk for piece in text.split(mark) for chunk in _chunks(piece)):
            is_first = begins and len(encoded) == 1
            encoded.append(self.encode_piece(chunk) if is_first else self._encode_anchored(chunk))
            done += len(chunk)
            if on_progress is not None:
                on_progress(done, total)
        ids = np.concatenate(encoded)
        # Normalization may turn look-alike characters into a control token.
        if np.isin(ids, list(self.control_ids)).sum() > self._control.count(text):
            raise InputError(
                "the text contains look-alike characters that the tokenizer turns into one of the "
                "model's control tokens: remove them"
            )
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
        return ids[n:] if np.array_equal(ids[:n], self._anchor) else self.encode_piece(text)


def _unknown(backend: tokenizers.Tokenizer) -> str | None:
    """The token for unknown characters, which a Unigram model does not expose."""
    if not isinstance(backend.model, Unigram):
        return getattr(backend.model, "unk_token", None)
    id_ = json.loads(backend.model.__getstate__())["unk_id"]
    return None if id_ is None else backend.id_to_token(id_)


class _Literals:
    """Finds a set of strings in texts, quickly even if there are thousands of them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = {text for text in texts if text}
        self._lengths = {len(text) for text in self._texts}
        first = "".join({text[0] for text in self._texts})
        self._first = re.compile(f"[{re.escape(first)}]" if first else "(?!)")

    def _begins(self, match: re.Match[str]) -> bool:
        text, start = match.string, match.start()
        return any(text[start : start + length] in self._texts for length in self._lengths)

    def count(self, text: str) -> int:
        """Number of occurrences, overlaps included."""
        return sum(map(self._begins, self._first.finditer(text)))

    def cut(self, text: str, mark: str) -> str:
        """Insert `mark` after the first character of each occurrence."""
        return self._first.sub(lambda m: m[0] + mark if self._begins(m) else m[0], text)


def _is_control(token: tokenizers.AddedToken, template_source: str) -> bool:
    """Whether an added token steers the model, unlike runs of spaces, HTML tags and such."""
    content = token.content
    if token.special or not content.strip():
        return token.special
    return content in template_source or _CONTROL_SHAPE.fullmatch(content) is not None


def common_length(a: TokenIds, b: TokenIds) -> int:
    """How many tokens the two begin with alike."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def unused_marks(text: str) -> tuple[str, str]:
    """Two characters that do not occur in the text."""
    unused = [mark for mark in _MARKS if mark not in text]
    if len(unused) < 2:
        raise InputError("the text contains nearly all Unicode noncharacters: it is not text")
    return unused[0], unused[1]


def _chunks(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > CHUNK_CHARS:
        end = start + CHUNK_CHARS
        found = (piece.match(text, start, end + 1) for piece in _PIECES)
        end = next((match.end() for match in found if match is not None), end)
        yield text[start:end]
        start = end
    if start < len(text) or not text:
        yield text[start:]


# The bytes of tokens

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")

_UNREADABLE = "the model's vocabulary cannot be read for constraints"
_READABLE = {"ByteLevel", "ByteFallback", "Metaspace", "Replace"}
# These join or strip tokens, and leave the bytes of each as they are.
_NEUTRAL = {"Fuse", "Strip"}


def token_bytes(backend: tokenizers.Tokenizer) -> list[bytes]:
    """The bytes of each id, empty for an id without token; of added tokens, their text.

    Raises ModelUnsupported if the decoder is of an unknown kind.
    """
    vocabulary = backend.get_vocab(with_added_tokens=True)
    found = [b""] * (max(vocabulary.values(), default=-1) + 1)
    decoder = backend.decoder
    steps = [] if decoder is None else list(_steps(json.loads(decoder.__getstate__())))
    kinds = {step["type"] for step in steps}
    if not kinds & _READABLE or kinds - _READABLE - _NEUTRAL:
        named = ", ".join(sorted(kinds)) or "none"
        raise ModelUnsupported(f"{_UNREADABLE}: unknown decoder ({named})")
    to_bytes = _byte_level if "ByteLevel" in kinds else _sentencepiece(steps)
    for text, id_ in vocabulary.items():
        found[id_] = to_bytes(text)
    for id_, token in backend.get_added_tokens_decoder().items():
        found[id_] = token.content.encode()
    return found


def _steps(decoder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if decoder["type"] == "Sequence":
        for each in decoder["decoders"]:
            yield from _steps(each)
    else:
        yield decoder


# The byte of each character's code in byte-level BPE. Source: GPT-2's encoder.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_ALPHABET = {byte: byte for byte in _PRINTABLE} | dict(enumerate(_OTHERS, 0x100))


def _byte_level(text: str) -> bytes:
    try:
        # Translates to Latin-1, whose codes are the bytes.
        return text.translate(_ALPHABET).encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _sentencepiece(steps: list[dict[str, Any]]) -> Callable[[str], bytes]:
    has_bytes = any(step["type"] == "ByteFallback" for step in steps)
    replaced = [(step["replacement"], " ") for step in steps if step["type"] == "Metaspace"]
    for step in steps:
        if step["type"] == "Replace":
            if "String" not in step["pattern"]:
                raise ModelUnsupported(f"{_UNREADABLE}: it replaces a regular expression")
            replaced.append((step["pattern"]["String"], step["content"]))

    def to_bytes(text: str) -> bytes:
        byte = _BYTE.fullmatch(text) if has_bytes else None
        if byte is not None:
            return bytes([int(byte[1], 16)])
        for old, new in replaced:
            text = text.replace(old, new)
        return text.encode()

    return to_bytes
