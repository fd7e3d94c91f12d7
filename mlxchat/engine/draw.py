"""Choose the next token of one sequence: biases and penalties, the constraint, the sampler, in this
order.

Knows the tokens before it, and nothing of the network or the cache.
"""

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlxchat.engine.constrained import Constrained
from mlxchat.engine.sampling import (
    Draw,
    LogProbs,
    log_probs,
    make_draw,
    make_penalty,
    penalty_context,
)
from mlxchat.settings import SamplingSettings
from mlxchat.text.spans import TokenIds


@dataclass(frozen=True, slots=True)
class Decoded:
    """One decoded token: its id and, if requested, log-probabilities (natural log)."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token drawn but not read yet, `(1,)`, and its log-probabilities."""

    token: mx.array
    scores: LogProbs | None = None

    def arrays(self) -> list[mx.array]:
        return [self.token, *(self.scores.arrays() if self.scores is not None else ())]

    def read(self) -> Decoded:
        # MLX types every scalar as possibly complex.
        id_: Any = self.token.item()
        if self.scores is None:
            return Decoded(id_)
        logprob: Any = self.scores.drawn.item()
        ids: Any = self.scores.top_ids.tolist()
        values: Any = self.scores.top.tolist()
        top = zip(ids[0], values[0], strict=True)
        # Without those that a constraint has ruled out.
        return Decoded(id_, logprob, tuple(each for each in top if each[1] > -math.inf))


class Chooser:
    """Chooses the tokens that follow `ids: (T,)`, of which the next has the index `first_index`.

    `sampling` needs a seed unless it is greedy. With `logprobs`, tokens come with that many
    alternatives. The `eos_ids` are not drawn before the index `min_tokens`.
    """

    def __init__(
        self,
        ids: TokenIds,
        sampling: SamplingSettings,
        *,
        first_index: int = 0,
        logprobs: int | None = None,
        constrained: Constrained | None = None,
        eos_ids: Collection[int] = (),
        min_tokens: int = 0,
    ) -> None:
        self.constrained = constrained
        self._sampling = sampling
        self._first_index = first_index
        self._logprobs = logprobs
        self._eos_ids = sorted(eos_ids)
        self._penalize = make_penalty(sampling, self._eos_ids)
        context = penalty_context(sampling)
        self._latest = deque(ids[-context:].tolist(), maxlen=context)
        self._min_tokens = min_tokens if eos_ids else 0
        self._draw: Draw | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the next token is always the likeliest, and nothing else is asked for."""
        extras = (self._penalize, self.constrained, self._logprobs)
        is_greedy = self._sampling.temp == 0 and self._min_tokens == 0
        return is_greedy and all(each is None for each in extras)

    def draw(self, logits: mx.array, count: int, after: mx.array | list[int]) -> Drawn:
        """A lazily drawn token from logits `(1, V)`, after `count` others. `after` are the last
        tokens, if they have not been `taken` yet."""
        if self._draw is None:
            self._draw = make_draw(self._sampling, logits.shape[-1], self._eos_ids)
        if self._penalize is not None:
            latest = mx.array([*self._latest], mx.int32)
            last = mx.array(after, mx.int32) if isinstance(after, list) else after
            latest = mx.concatenate([latest, last.astype(mx.int32)])
            logits = self._penalize(latest[-penalty_context(self._sampling) :], logits)
        if self.constrained is not None:
            assert isinstance(after, list), "not drawn yet"
            logits = self.constrained.apply(logits, after)
        if self._first_index + count < self._min_tokens:
            logits = mx.put_along_axis(
                logits, mx.array([self._eos_ids]), mx.array(-mx.inf, logits.dtype), axis=-1
            )
        token = self._draw(logits, self._first_index + count)
        return Drawn(
            token, None if self._logprobs is None else log_probs(logits, token, self._logprobs)
        )

    def take(self, id_: int) -> None:
        """Add the next token to those before the following ones."""
        self._latest.append(id_)
        if self.constrained is not None:
            self.constrained.accept(id_)

    def forced(self) -> Sequence[int]:
        """The tokens that follow if a constraint leaves only one way to continue."""
        return () if self.constrained is None else self.constrained.forced()

    def certain(self, id_: int) -> Decoded:
        """A token without an alternative."""
        if self._logprobs is None:
            return Decoded(id_)
        return Decoded(id_, 0.0, ((id_, 0.0),) if self._logprobs else ())

    @property
    def is_over(self) -> bool:
        """Whether a constraint lets nothing follow."""
        return self.constrained is not None and self.constrained.is_complete
