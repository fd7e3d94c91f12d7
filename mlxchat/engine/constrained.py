"""A constraint on a reply while it is generated: which tokens may follow.

Thoughts and markers are free, but the reply cannot end before its answer, with which the constraint
begins. Where tags are ordinary text, a thought is one that the prompt has opened.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Self

import mlx.core as mx
import numpy as np

from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.matcher import Matcher, Vocabulary
from mlxchat.errors import ConstraintError, UsageError
from mlxchat.options import flag
from mlxchat.text.reply_reader import Reader
from mlxchat.text.spans import TokenIds
from mlxchat.text.tokens import Beginning, Tokenizer

BITS = 32


@lru_cache(maxsize=1)
def _vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer)


class Constrained:
    """Follows a reply token by token. `reader` is one of its own, at the reply's beginning;
    `eos_ids` end the reply. `header` are tokens that precede the answer, if only one is allowed.
    """

    def __init__(
        self,
        matcher: Matcher,
        reader: Reader,
        eos_ids: Collection[int],
        *,
        header: Iterable[int] = (),
    ) -> None:
        self._matcher = matcher
        self._reader = reader
        self._eos_ids = eos_ids
        self._header = deque(header)
        # Nothing else may begin within an answer, not even within its first character.
        self._has_begun = False
        self._check: Callable[[str], str | None] = lambda answer: None

    @classmethod
    def begin(
        cls,
        constraint: Constraint,
        tokenizer: Tokenizer,
        prompt: TokenIds | None,
        *,
        may_think: bool = True,
        beginning: Beginning | None = None,
    ) -> Self:
        """A constraint on the reply to `prompt`; with None, on plain text without thoughts.

        Without `may_think`, the model cannot begin a thought. Raises UsageError if the `beginning`
        of the reply is none that the constraint allows.
        """
        matcher = Matcher(_vocabulary(tokenizer), constraint)
        reader = tokenizer.reader(prompt, may_think=may_think)
        header = () if may_think else tokenizer.header_of_answer(prompt).tolist()
        begun = cls(matcher, reader, tokenizer.eos_ids, header=header)
        begun._check = constraint.problem
        if beginning is not None:
            if matcher.accepts(beginning.answer_ids) < len(beginning.answer_ids):
                raise UsageError(
                    f"--prefill is not a beginning that {flag(constraint.kind)} allows"
                )
            for id_ in beginning.ids.tolist():
                begun.accept(id_)
        return begun

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow."""
        return self._reader.in_answer and self._matcher.is_complete

    @property
    def may_end(self) -> bool:
        """Whether the answer so far is one that the constraint describes."""
        return self._reader.in_answer and self._matcher.may_end

    @property
    def problem(self) -> str | None:
        """Why an answer that may end here is not valid, with the place; None if it is."""
        return self._check(self._matcher.text)

    def accept(self, id_: int) -> None:
        """Add the next token. Raises ConstraintError if an answer begins without the markers that
        precede answers in the model's format, or within the token that ends a thought: it would not
        be constrained."""
        if id_ in self._eos_ids or self._reader.ends(id_):
            return
        if self._header:
            expected = self._header.popleft()
            assert id_ == expected
            self._reader.add(id_)
            return
        if self._reader.in_answer and id_ not in self._reader.openers:
            self._matcher.accept(id_)
            self._has_begun = True
            self._reader.add(id_)
        elif any(text.strip() for is_thought, text in self._reader.add(id_) if not is_thought):
            raise ConstraintError("the model began its answer in a way that cannot be constrained")

    def forced(self) -> Sequence[int]:
        """The tokens that follow if there is only one way to continue."""
        if self._header:
            return list(self._header)
        return self._matcher.forced() if self._is_certain else ()

    def accepted(self, ids: Sequence[int]) -> Sequence[int]:
        """The first of these tokens, as far as they may follow."""
        return ids[: self._matcher.accepts(ids)] if self._is_certain else ()

    def apply(self, logits: mx.array) -> mx.array:
        """Rule out the tokens that may not follow, in logits `(1, V)`.

        Computes the mask on the CPU: let the logits be computed meanwhile.
        """
        return apply_mask(logits, self._mask())

    def _mask(self) -> np.ndarray:
        """A bit for each token, in uint32."""
        if not self._header and not self._reader.in_answer:
            # Rules out the end of the reply.
            return self._matcher.free_mask()
        mask = self._matcher.mask()
        if self._header:
            mask[:] = 0
            _allow(mask, [self._header[0]])
            return mask
        if not self._has_begun:
            _allow(mask, self._reader.openers)
        return mask

    @property
    def _is_certain(self) -> bool:
        """Whether the next token is certain to belong to the answer."""
        return self._reader.in_answer and not self._reader.openers


def _allow(mask: np.ndarray, ids: Iterable[int]) -> None:
    for id_ in ids:
        mask[id_ // BITS] |= np.uint32(1 << id_ % BITS)


def apply_mask(logits: mx.array, mask: np.ndarray) -> mx.array:
    """Set the logits `(B, V)` of tokens that are not allowed to minus infinity.

    `mask` is uint32 `(W,)` for all rows or `(B, W)`, bit `id % 32` of word `id // 32`. Tokens
    beyond the mask, which are padding of the network's output, are not allowed.
    """
    size = logits.shape[-1]
    bits = np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), axis=-1, bitorder="little")
    bits = bits[..., :size]
    missing = size - bits.shape[-1]
    if missing:
        bits = np.concatenate([bits, np.zeros((*bits.shape[:-1], missing), np.uint8)], axis=-1)
    allowed = mx.array(bits.view(bool))
    return mx.where(allowed, logits, mx.array(-float("inf"), logits.dtype))
