"""A constraint on a reply while it is generated: which tokens may follow, and which ones must.

Thoughts and markers are free, but the reply cannot end before its answer, with which the constraint
begins. Where tags are ordinary text, a thought is one that the prompt has opened.
"""

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import mlx.core as mx
import numpy as np

from mlxchat.constraint.constraint import Constraint
from mlxchat.constraint.library import failure, new_matcher
from mlxchat.errors import ConstraintError, InputError, UsageError
from mlxchat.options import flag
from mlxchat.text.tokens import Prompt, Tokenizer

# Forced tokens are verified in one step, in which each costs time.
MAX_FORCED = 64

SHOWN_CHARS = 40  # of an answer that is stuck

# Tokens that are allowed together in most states of a string of JSON, whose masks are computed in
# advance. Each further set takes longer to build than it saves.
SLICES = [r'[^"\\\x00-\x1F\x7F]{1,30}']


class Vocabulary:
    """The tokens of `tokenizer` as llguidance needs them; `size` counts ids, `ends` end an answer.

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
        self._check()

    def mask(self) -> np.ndarray:
        """Which tokens are allowed next, bool `(size,)`: at least one; ends if it may end."""
        words = np.zeros((self._vocabulary.table.vocab_size + 31) // 32, np.uint32)
        self._inner.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        # llguidance allows only ends if it fails, as if the answer were complete.
        self._check()
        # Without any end token, llguidance adds one after the last.
        bits = np.unpackbits(words.view(np.uint8), bitorder="little", count=self._vocabulary.size)
        return bits.view(bool)

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
        """The next tokens, if the text leaves no choice; at most `most`, often none. They spell
        that text as the tokenizer does, and are certain to be accepted."""
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
        allowed = np.flatnonzero(self.mask()) if not self._inner.is_stopped() else ()
        return set(allowed) <= set(self._vocabulary.ends)

    def _check(self) -> None:
        reason = failure(self._inner)
        if reason is not None:
            after = f", after {self.text[-SHOWN_CHARS:]!r}" if self._ids else ""
            raise ConstraintError(f"{flag(self._kind)}: {reason}{after}")


_vocabulary = lru_cache(maxsize=1)(Vocabulary)


class Constrained:
    """Follows the reply to `prompt` token by token; with None, plain text without thoughts.

    Without `may_think`, the model cannot begin a thought. Raises UsageError if the prompt has the
    beginning of an answer, and the constraint does not allow it.
    """

    def __init__(
        self,
        constraint: Constraint,
        tokenizer: Tokenizer,
        prompt: Prompt | None,
        *,
        may_think: bool = True,
    ) -> None:
        asked = None if prompt is None else prompt.asked
        self._vocabulary = _vocabulary(tokenizer)
        self._matcher = matcher = Matcher(self._vocabulary, constraint)
        self._reader = tokenizer.reader(asked, may_think=may_think)
        self._reader.keeps_newlines = True
        self._eos_ids = tokenizer.eos_ids
        # Tokens that precede the answer, if nothing else may.
        self._header = deque(() if may_think else tokenizer.header_of_answer(asked).tolist())
        # Nothing else may begin within an answer, not even within its first character.
        self._has_begun = False
        self._check = constraint.problem
        if prompt is not None and prompt.written:
            answer = prompt.ids[len(prompt.ids) - prompt.answer :]
            if matcher.accepts(answer.tolist()) < prompt.answer:
                hint = "; its JSON has a space after each : and ," if constraint.schema else ""
                raise UsageError(f"--prefill is no beginning the {constraint.kind} allows{hint}")
            for id_ in prompt.begun.tolist():
                self.accept(id_)

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
        precede answers in the model's format, or within the end of a thought: unconstrained."""
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
        """Rule out the tokens that may not follow, in logits `(1, V)`. Computes the mask on the
        CPU: let the logits be computed meanwhile."""
        return apply_mask(logits, self._mask())

    def _mask(self) -> np.ndarray:
        if not self._header and not self._reader.in_answer:
            # Anything but the end of the reply.
            mask = np.ones(self._vocabulary.size, bool)
            mask[[*self._vocabulary.ends]] = False
            return mask
        mask = self._matcher.mask()
        if self._header:
            mask[:] = False
            mask[self._header[0]] = True
        elif not self._has_begun:
            mask[[*self._reader.openers]] = True
        return mask

    @property
    def _is_certain(self) -> bool:
        """Whether the next token is certain to belong to the answer."""
        return self._reader.in_answer and not self._reader.openers


def apply_mask(logits: mx.array, mask: np.ndarray) -> mx.array:
    """Set the logits `(1, V)` of tokens that are not allowed to minus infinity.

    Tokens beyond the mask, which are padding of the network's output, are not allowed.
    """
    allowed = np.zeros(logits.shape[-1], bool)
    allowed[: len(mask)] = mask[: len(allowed)]
    return mx.where(mx.array(allowed), logits, mx.array(-float("inf"), logits.dtype))
