"""Random answers under a constraint, without a model: each token is drawn from those allowed.

Drawn uniformly, a string would hardly ever end, so after some tokens those that close something
are preferred.
"""

import random
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from mlxchat.constraint import library
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.constrained import Matcher, Vocabulary
from mlxchat.errors import UsageError
from mlxchat.text.tokens import Tokenizer

MAX_TOKENS = 4_000
LONG_TOKENS = 30  # of an answer that should end soon


class Walker:
    """Draws answers of a vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = Vocabulary(tokenizer)
        self.bytes = tokenizer.token_bytes()

    @cached_property
    def _closing(self) -> np.ndarray:
        """Tokens that end a string, a list or an object of JSON."""
        return np.array([bool(set(each) & set(b'"}],:')) for each in self.bytes])

    @cached_property
    def _short(self) -> np.ndarray:
        """Tokens of one byte, among which those that end anything else are not rare."""
        return np.array([len(each) == 1 for each in self.bytes])

    def answer(self, constraint: Constraint, rng: random.Random) -> str:
        """A complete answer, decoded strictly."""
        matcher = Matcher(self.vocabulary, constraint)
        ids: list[int] = []
        while len(ids) < MAX_TOKENS:
            allowed = matcher.mask()
            ends = [id_ for id_ in self.vocabulary.ends if allowed[id_]]
            assert bool(ends) == matcher.may_end, "an end is allowed if the answer may end"
            allowed[list(self.vocabulary.ends)] = False
            assert allowed.any() or ends
            assert matcher.is_complete == (not allowed.any())
            may_end_here = bool(ends) and rng.random() < (0.3 if len(ids) < LONG_TOKENS else 0.9)
            if may_end_here or not allowed.any():
                matcher.accept(rng.choice(ends))
                return b"".join(self.bytes[id_] for id_ in ids).decode()
            id_ = self._drawn(allowed, len(ids), rng)
            matcher.accept(id_)
            ids.append(id_)
        raise AssertionError(f"no end after {MAX_TOKENS} tokens: {self.tokenizer.decode(ids)!r}")

    def _drawn(self, allowed: np.ndarray, length: int, rng: random.Random) -> int:
        for preferred in (allowed & self._closing, allowed & self._short):
            if length > LONG_TOKENS and preferred.any() and rng.random() < 0.6:
                allowed = preferred
                break
        return int(rng.choice(np.flatnonzero(allowed).tolist()))


def accepted(constraint: Constraint, texts: list[str]) -> list[str]:
    """The texts that are complete answers, on a vocabulary of bytes."""
    matcher = library.new_matcher(library.byte_tokenizer(), constraint.grammar)
    found: list[str] = []
    for text in texts:
        data = list(text.encode())
        if matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting():
            found.append(text)
        if matcher.is_error():  # too complex
            return found
        matcher.reset()
    return found


def assert_works_or_is_refused(build: Callable[[Any], Constraint], value: Any) -> None:
    """A constraint made of anything is either usable, or a UsageError of one printable line."""
    try:
        constraint = build(value)
    except UsageError as error:
        message = str(error)
    else:
        accepted(constraint, ["\0", ""])
        return
    assert message.partition(": ")[0] in ("--schema", "--regex", "--choice", "--grammar")
    assert message.isprintable()
    assert len(message) < 500


def accepts(constraint: Constraint, text: str) -> bool:
    return accepted(constraint, [text]) == [text]


def refusal(build: Callable[[Any], Constraint], value: Any) -> str:
    """The one line in which it is refused."""
    with pytest.raises(UsageError) as caught:
        build(value)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message
