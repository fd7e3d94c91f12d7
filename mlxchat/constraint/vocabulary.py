"""A model's vocabulary in the form that llguidance looks tokens up in.

Built directly from the tokens' bytes, which takes a fraction of the time of reading a tokenizer
definition, and less than hashing that to look up a cached form.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from mlxchat.errors import InputError
from mlxchat.text.tokens import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer


class Vocabulary:
    """The tokens of `tokenizer`; `size` counts ids, and `ends` are those that end an answer.

    Control tokens match no text, so a constraint never allows one, except for ends.
    Raises ModelUnsupported if the vocabulary cannot be read.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokens = tokenizer.token_bytes()
        self.size = len(tokens)
        self.ends = tuple(sorted(id_ for id_ in tokenizer.eos_ids if id_ < self.size))
        self._source = _Source(tokenizer, tokens, self.ends)

    @cached_property
    def ends_mask(self) -> np.ndarray:
        """A mask, as `Matcher.mask` returns it, that allows only ends."""
        bits = np.zeros((self.size + 31) // 32 * 32, np.uint8)
        bits[list(self.ends)] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)

    @cached_property
    def table(self) -> "LLTokenizer":
        """llguidance's form: about 0.1 s for 50,000 tokens."""
        from llguidance import LLTokenizer

        source: Any = self._source  # like their TokenizerWrapper
        table = LLTokenizer(source, eos_token=list(self.ends) or None)
        source.built(table)
        return table


class _Source:
    """What llguidance reads when it builds its table, and calls to encode forced text."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, tokens: Sequence[bytes], ends: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._table: LLTokenizer | None = None
        self.tokens = tokens
        self.special_token_ids = sorted(id_ for id_ in tokenizer.control_ids if id_ < len(tokens))
        self.eos_token_id = ends[0] if ends else None

    def built(self, table: "LLTokenizer") -> None:
        self._table = table
        self.tokens = ()

    def __call__(self, text: str) -> list[int]:
        try:
            return self._tokenizer.encode(text, begins=False).tolist()
        except InputError:
            # Text that normalization would turn into a control token: any other tokens of it do.
            return [] if self._table is None else self._table.greedy_tokenize(text)
