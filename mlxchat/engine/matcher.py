"""The state of one constrained answer: which token may come next, and which ones must."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from mlxchat.constraint.constraint import Constraint
from mlxchat.constraint.library import failure, new_matcher
from mlxchat.errors import ConstraintError, InputError
from mlxchat.options import flag
from mlxchat.text.tokens import Tokenizer

# Forced tokens are verified in one step, in which each costs time.
MAX_FORCED = 64

SHOWN_CHARS = 40  # of an answer that is stuck

# Tokens that are allowed together in most states of a string of JSON, whose masks are computed in
# advance. Each further set takes longer to build than it saves.
SLICES = [r'[^"\\\x00-\x1F\x7F]{1,30}']


class Vocabulary:
    """The tokens of `tokenizer` in the form that llguidance looks up; `size` counts ids, and
    `ends` are those that end an answer.

    Built directly from the tokens' bytes, which takes a fraction of the time of reading a
    tokenizer's definition, and little more than hashing one to find a stored table would.
    llguidance can neither save nor load its tables.

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


class Matcher:
    """Follows an answer token by token. Any failure raises ConstraintError, at once and again at
    every later call, so that an answer is never continued without its constraint."""

    def __init__(self, vocabulary: Vocabulary, constraint: Constraint) -> None:
        self._vocabulary = vocabulary
        self._kind = constraint.kind
        self._inner = new_matcher(vocabulary.table, constraint.grammar)
        self._ids: list[int] = []
        self._words = (vocabulary.size + 31) // 32
        self._check()

    def mask(self) -> np.ndarray:
        """The tokens allowed next: bit `id % 32` of word `id // 32`, uint32 `((size + 31) // 32,)`.

        At least one is allowed; ends are if the answer may end.
        """
        words = (self._vocabulary.table.vocab_size + 31) // 32
        mask = np.zeros(words, np.uint32)
        self._inner.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        # llguidance allows only ends if it fails, as if the answer were complete.
        self._check()
        if words * 32 > self._vocabulary.size:
            # Without any end token, llguidance adds one after the last.
            mask = mask[: self._words]
            mask[-1] &= np.uint32((1 << ((self._vocabulary.size - 1) % 32 + 1)) - 1)
        return mask

    def free_mask(self) -> np.ndarray:
        """As `mask`, without the constraint: everything but ends."""
        return ~self._vocabulary.ends_mask

    def accept(self, id_: int) -> None:
        """Append a token to the answer. Raises ConstraintError if it is not allowed."""
        self._check()
        if self._inner.is_stopped() and id_ in self._vocabulary.ends:
            return
        self._inner.consume_token(id_)
        self._check()
        self._ids.append(id_)

    def accepts(self, ids: Sequence[int]) -> int:
        """How many of the next tokens could be accepted in turn; changes nothing."""
        accepted = self._inner.validate_tokens(list(ids))
        self._check()
        return accepted

    def forced(self, most: int = MAX_FORCED) -> list[int]:
        """The next tokens, if the text leaves no choice; at most `most`, often none.

        They spell that text as the tokenizer does, and are certain to be accepted.
        """
        if self.is_complete:
            return []
        ids = self._inner.compute_ff_tokens()[:most]
        self._check()
        return ids[: self.accepts(ids)] if ids else []

    @property
    def text(self) -> str:
        """The answer so far."""
        return self._vocabulary.decode(self._ids)

    @property
    def may_end(self) -> bool:
        """Whether the answer so far is valid as a whole."""
        return self._inner.is_accepting()

    @property
    def is_complete(self) -> bool:
        """Whether the answer is valid, and nothing may follow but an end."""
        if not self.may_end:
            return False
        # The empty text may be complete before llguidance notices.
        return self._inner.is_stopped() or np.array_equal(self.mask(), self._vocabulary.ends_mask)

    def _check(self) -> None:
        reason = failure(self._inner)
        if reason is not None:
            after = f", after {self.text[-SHOWN_CHARS:]!r}" if self._ids else ""
            raise ConstraintError(f"{flag(self._kind)}: {reason}{after}")
