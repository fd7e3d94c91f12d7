"""The bytes that each token of a vocabulary stands for, which may be parts of a character.

Derived from the tokenizer's decoder: byte-level BPE, or SentencePiece's with bytes as a fallback.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import tokenizers

from mlxchat.errors import ModelUnsupported

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
