"""A constraint on a reply while it is generated: which tokens may follow.

Thoughts and markers are free. The constraint begins with the answer.
"""

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Self

import mlx.core as mx
import numpy as np

from mlxchat.constraint.apply import apply_mask
from mlxchat.constraint.constraint import Constraint
from mlxchat.constraint.matcher import Matcher
from mlxchat.constraint.vocabulary import Vocabulary
from mlxchat.errors import ModelError
from mlxchat.text.reply_reader import Reader
from mlxchat.text.spans import TokenIds
from mlxchat.text.tokens import Tokenizer

BITS = 32


@lru_cache(maxsize=1)
def _vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer)


class Constrained:
    """Follows a reply token by token. `reader` is one of its own, at the reply's beginning;
    `eos_ids` end the reply.
    """

    def __init__(self, matcher: Matcher, reader: Reader, eos_ids: Collection[int]) -> None:
        self._matcher = matcher
        self._reader = reader
        self._eos_ids = eos_ids

    @classmethod
    def begin(cls, constraint: Constraint, tokenizer: Tokenizer, prompt: TokenIds | None) -> Self:
        """A constraint on the reply to `prompt`; with None, on plain text without thoughts."""
        matcher = Matcher(_vocabulary(tokenizer), constraint)
        return cls(matcher, tokenizer.reader(prompt), tokenizer.eos_ids)

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow."""
        return self._reader.in_answer and self._matcher.is_complete

    @property
    def may_end(self) -> bool:
        """Whether the answer so far is one that the constraint describes."""
        return self._reader.in_answer and self._matcher.may_end

    def accept(self, id_: int) -> None:
        """Add the next token. Raises ModelError if an answer begins without the markers that
        precede answers in the model's format: it would not be constrained."""
        if id_ in self._eos_ids or self._reader.ends(id_):
            return
        if self._reader.in_answer and id_ not in self._reader.openers:
            self._matcher.accept(id_)
            self._reader.add(id_)
            return
        pieces = self._reader.add(id_)
        if any(text.strip() for is_thought, text in pieces if not is_thought):
            raise ModelError("the model began its answer in a way that cannot be constrained")

    def forced(self) -> Sequence[int]:
        """The tokens that follow if there is only one way to continue."""
        return self._matcher.forced() if self._is_certain else ()

    def accepted(self, ids: Sequence[int]) -> Sequence[int]:
        """The first of these tokens, as far as they may follow."""
        return ids[: self._matcher.accepts(ids)] if self._is_certain else ()

    def apply(self, logits: mx.array, after: Sequence[int] = ()) -> mx.array:
        """Rule out the tokens that may not follow, in logits `(1, V)`. `after` are tokens that have
        been `accepted`, but not added yet.

        The mask is computed on the CPU while the logits are.
        """
        if not self._reader.in_answer:
            return logits
        mx.async_eval(logits)
        return apply_mask(logits, self._mask(after))

    def _mask(self, after: Sequence[int]) -> np.ndarray:
        """A bit for each token, in uint32."""
        if after:
            ahead = self._matcher.copy()
            for id_ in after:
                ahead.accept(id_)
            return ahead.mask()
        mask = self._matcher.mask()
        for id_ in self._reader.openers:
            mask[id_ // BITS] |= np.uint32(1 << id_ % BITS)
        return mask

    @property
    def _is_certain(self) -> bool:
        """Whether the next token is certain to belong to the answer."""
        return self._reader.in_answer and not self._reader.openers
