"""The bytes that each token of a vocabulary stands for, which may be parts of a character.

Derived from the tokenizer's decoder: byte-level BPE, or SentencePiece's with bytes as a fallback.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import tokenizers

from mlxchat.errors import ModelUnsupported

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")

_UNREADABLE = "the model's vocabulary cannot be read for constraints"
_READABLE = {"ByteLevel", "ByteFallback", "Metaspace", "Replace"}
# Models may write these around a tag, within one token.
AROUND = (b"", b"\n", b"\n\n")
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


def _alphabet() -> dict[int, int]:
    """The byte of each character's code in byte-level BPE. Source: GPT-2's encoder."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {
        0x100 + number: byte for number, byte in enumerate(others)
    }


_ALPHABET = _alphabet()


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


class TagTokens:
    """The tokens of a vocabulary, given the bytes of each; control tokens spell nothing."""

    def __init__(self, tokens: Sequence[bytes], control_ids: Collection[int]) -> None:
        self.tokens = tokens
        self._ids = {text: id_ for id_, text in enumerate(tokens) if id_ not in control_ids}
        self._ids.pop(b"", None)

    def continuing(self, tags: Iterable[str], written: bytes) -> set[int]:
        """The tokens that may follow `written`, the text so far, if it is to begin with a tag."""
        texts = {
            before + tag.encode() + after for tag in tags for before in AROUND for after in AROUND
        }
        rests = [text[len(written) :] for text in texts if text.startswith(written)]
        beginnings = {rest[:length] for rest in rests for length in range(1, len(rest) + 1)}
        return {self._ids[each] for each in beginnings if each in self._ids}

    def crossing(self, tag: str, written: bytes) -> list[int]:
        """The tokens with which the text, `written` so far, would continue after the tag with more
        than newlines."""
        end = tag.encode()
        found: list[int] = []
        for length in range(1, len(end)):
            if written.endswith(end[:length]):
                found += self._beginning_with(end[length:])
        return found

    def _beginning_with(self, rest: bytes) -> Iterable[int]:
        for text, id_ in self._ids.items():
            if text.startswith(rest) and text[len(rest) :].strip(b"\n"):
                yield id_
