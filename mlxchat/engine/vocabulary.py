"""A model's vocabulary in the form that llguidance looks tokens up in.

Built directly from the tokens' bytes, which takes a fraction of the time of reading a tokenizer's
definition, and little more than hashing one to find a stored table would. llguidance can neither
save nor load its tables.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from mlxchat.errors import InputError
from mlxchat.text.tokens import Tokenizer

# Tokens that are allowed together in most states of a string of JSON, whose masks are computed in
# advance. Each further set takes longer to build than it saves.
SLICES = [r'[^"\\\x00-\x1F\x7F]{1,30}']


class Vocabulary:
    """The tokens of `tokenizer`; `size` counts ids, and `ends` are those that end an answer.

    Control tokens match no text, so a constraint never allows one, except for ends. Takes about
    0.1 s for 50,000 tokens, and may be made in another thread. Raises ModelUnsupported if the
    vocabulary cannot be read.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        from llguidance import LLTokenizer

        tokens = tokenizer.token_bytes()
        self.size = len(tokens)
        self.decode = tokenizer.decode
        self.ends = tuple(sorted(id_ for id_ in tokenizer.eos_ids if id_ < self.size))
        source: Any = _Source(tokenizer, tokens, self.ends)
        self.table = LLTokenizer(source, eos_token=list(self.ends) or None, slices=SLICES)
        # llguidance has its own copy.
        source.tokens = ()

    @cached_property
    def ends_mask(self) -> np.ndarray:
        """A mask, as `Matcher.mask` returns it, that allows only ends."""
        bits = np.zeros((self.size + 31) // 32 * 32, np.uint8)
        bits[list(self.ends)] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)


class _Source:
    """What llguidance reads when it builds its table, and calls to encode forced text."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, tokens: Sequence[bytes], ends: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self.tokens = tokens
        self.special_token_ids = sorted(id_ for id_ in tokenizer.control_ids if id_ < len(tokens))
        self.eos_token_id = ends[0] if ends else None

    def __call__(self, text: str) -> list[int]:
        try:
            return self._tokenizer.encode(text, begins=False).tolist()
        except InputError:
            # Normalization turns the text into a control token, but no character alone.
            return [id_ for char in text for id_ in self._tokenizer.encode(char, begins=False)]
