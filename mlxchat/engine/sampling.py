"""Choose the next token of one sequence: biases and penalties, the constraint, the sampler, in this
order. The samplers are mlx-lm's.

Knows the tokens before it, and nothing of the network or the cache. The random numbers of a token
depend on the seed and the token's index only, so however tokens are computed, one by one or several
at a time, or in another process, the same ones are drawn.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from mlxchat.engine.budget import Budget
from mlxchat.engine.constrained import Constrained
from mlxchat.errors import UsageError
from mlxchat.settings import GenerationSettings, SamplingSettings
from mlxchat.text.encoder import TokenIds

# How many latest tokens the penalties (mlx-lm's default), DRY, and anything at all look at.
REPETITION_CONTEXT, DRY_CONTEXT, LATEST = 20, 2048, 2568
# DRY penalizes longer repetitions like those of this length.
MAX_REPETITION = 32

Draw = Callable[[mx.array, int], mx.array]
SEEDS = 2**64


class Token(NamedTuple):
    """A generated token, the text it completed; if requested, log-probabilities (natural log).

    The text is empty within a character, for a marker of the reply format, and while it may be the
    beginning of a stop text. Text may come without a token (id None): at the end, and if one token
    both ends the thought and begins the answer. `another` marks the beginning of another thought.
    """

    id: int | None
    text: str = ""
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    thought: bool = False
    another: bool = False


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token drawn but not read yet, `(1,)`. `scores` are the log-probabilities (natural log) of
    this token `(1,)`, and the ids and log-probabilities of the K likeliest `(1, K)`, likeliest
    first; empty unless requested. Holds nothing of the size of the vocabulary."""

    token: mx.array
    scores: tuple[mx.array, ...] = ()

    def read(self) -> Token:
        # MLX types every scalar as possibly complex.
        id_: Any = self.token.item()
        if not self.scores:
            return Token(id_)
        scores: Any = [each.tolist() for each in self.scores]
        logprob, (ids,), (values,) = scores
        # Without those that a constraint has ruled out.
        top = (each for each in zip(ids, values, strict=True) if each[1] > -math.inf)
        return Token(id_, "", logprob[0], tuple(top))


class Chooser:
    """Chooses the tokens that follow `ids: (T,)`, of which the next one has the `index`.

    `sampling` needs a seed unless it is greedy. The `eos_ids` are not drawn before the index
    `min_tokens` of the settings. A `budget` is one for thoughts. `latest` are the last tokens, at
    most `LATEST`. `share` makes a token drawn `(1,)` that of all machines.
    """

    def __init__(
        self,
        ids: TokenIds,
        sampling: SamplingSettings,
        settings: GenerationSettings,
        *,
        eos_ids: Collection[int] = (),
        constrained: Constrained | None = None,
        budget: Budget | None = None,
        index: int = 0,
        share: Callable[[mx.array], mx.array] = lambda token: token,
    ) -> None:
        self.constrained = constrained
        self.budget = budget
        self.index = index
        self._sampling = sampling
        self._logprobs = settings.logprobs
        self._eos_ids = [] if settings.ignore_eos else sorted(eos_ids)
        self._min_tokens = settings.min_tokens if self._eos_ids else 0
        self._penalize = make_penalty(sampling, self._eos_ids)
        self._context = DRY_CONTEXT if sampling.dry_multiplier > 0 else REPETITION_CONTEXT
        self.latest = deque(ids[-LATEST:].tolist(), maxlen=LATEST)
        self._share = share
        self._draw: Draw | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the next token is always the likeliest, and nothing else is asked for."""
        extras = (self._penalize, self.constrained, self._logprobs)
        is_greedy = self._sampling.temp == 0 and self._min_tokens == 0
        return is_greedy and all(each is None for each in extras)

    def draw(self, logits: mx.array, after: mx.array | None = None) -> Drawn:
        """A lazily drawn token from logits `(1, V)`: the next, or `after` it, if not taken yet."""
        if after is None and (closing := self.closing()) is not None:
            return closing
        index = self.index + (after is not None)
        if self._draw is None:
            self._draw = make_draw(self._sampling, logits.shape[-1], self._eos_ids)
        if self._penalize is not None:
            latest = mx.array([*self.latest][-self._context :], mx.int32)
            if after is not None:
                latest = mx.concatenate([latest, after.astype(mx.int32)])
            logits = self._penalize(latest[-self._context :], logits)
        if self.constrained is not None:
            assert after is None, "not known yet"
            logits = self.constrained.apply(logits)
        if index < self._min_tokens:
            never = mx.array(-mx.inf, logits.dtype)
            logits = mx.put_along_axis(logits, mx.array([self._eos_ids]), never, axis=-1)
        token = self._share(self._draw(logits, index))
        return Drawn(token, log_probs(logits, token, self._logprobs))

    def take(self, id_: int) -> None:
        """Add the next token to those before the following ones."""
        self.latest.append(id_)
        self.index += 1
        if self.budget is not None:
            self.budget.accept(id_)
        if self.constrained is not None:
            self.constrained.accept(id_)

    def forced(self) -> Sequence[int]:
        """The tokens that follow if the budget or a constraint leaves only one way to continue."""
        if self.budget is not None and self.budget.forced:
            return self.budget.forced
        return () if self.constrained is None else self.constrained.forced()

    def closing(self) -> Drawn | None:
        """The next token if it closes a thought, whatever was drawn."""
        if self.budget is None or not self.budget.forced:
            return None
        return self.certain(self.budget.forced[0])

    def certain(self, id_: int) -> Drawn:
        """A token without an alternative."""
        if self._logprobs is None:
            return Drawn(mx.array([id_]))
        top = min(self._logprobs, 1)
        return Drawn(mx.array([id_]), (mx.zeros(1), mx.array([[id_]])[:, :top], mx.zeros((1, top))))

    @property
    def is_over(self) -> bool:
        """Whether a constraint lets nothing follow."""
        return self.constrained is not None and self.constrained.is_complete


def make_draw(
    settings: SamplingSettings, vocabulary_size: int, spared_ids: Sequence[int] = ()
) -> Draw:
    """Return a function from logits `(1, V)` and the token's index to a drawn token `(1,)`.

    Both arrays are lazy. Sets MLX's global random state. XTC never excludes the `spared_ids`.
    """
    if settings.temp == 0:
        return lambda logits, index: mx.argmax(logits, axis=-1)
    assert settings.seed is not None
    # Far from those of adjacent seeds: the number from which a generation's tokens are counted.
    first = int.from_bytes(blake2b(settings.seed.to_bytes(8), digest_size=8).digest())
    sampler = make_sampler(
        temp=settings.temp,
        top_p=settings.top_p if settings.top_p < 1 else 0.0,
        min_p=settings.min_p,
        # mlx-lm rejects a top-k that excludes nothing.
        top_k=settings.top_k if settings.top_k < vocabulary_size else 0,
        xtc_probability=settings.xtc_probability,
        xtc_threshold=settings.xtc_threshold,
        xtc_special_tokens=list(spared_ids),
    )

    def draw(logits: mx.array, index: int) -> mx.array:
        mx.random.seed((first + index) % SEEDS)
        # mlx-lm divides by the temperature, and float16 overflows.
        logits = logits.astype(mx.float32)
        if settings.top_p < 1:
            # The others treat logits and log-probabilities alike.
            logits = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        # A filter that mlx-lm lacks belongs here, before mlx-lm's own.
        return sampler(logits)

    return draw


def make_penalty(
    settings: SamplingSettings, eos_ids: Sequence[int] = ()
) -> Callable[[mx.array, mx.array], mx.array] | None:
    """Return a function of the latest tokens `(N,)` and logits `(1, V)` that adds biases and
    penalties; None if there are none. It raises UsageError for the bias of an unknown token."""
    biases = settings.biases()
    penalty = settings.repetition_penalty
    processors = make_logits_processors(
        logit_bias=biases,
        repetition_penalty=None if penalty == 1 else penalty,
        repetition_context_size=REPETITION_CONTEXT,
        presence_penalty=settings.presence_penalty,
        presence_context_size=REPETITION_CONTEXT,
        frequency_penalty=settings.frequency_penalty,
        frequency_context_size=REPETITION_CONTEXT,
    )
    if settings.dry_multiplier > 0:
        dry = settings.dry_multiplier, settings.dry_base, settings.dry_allowed_length
        processors.append(make_dry(*dry, eos_ids))
    if not processors:
        return None

    def penalize(latest: mx.array, logits: mx.array) -> mx.array:
        vocabulary_size = logits.shape[-1]
        if biases and max(biases) >= vocabulary_size:
            raise UsageError(
                f"--logit-bias has the id {max(biases)}, but the model has only "
                f"{vocabulary_size:,} tokens"
            )
        for process in processors:
            logits = process(latest, logits)
        return logits

    return penalize


def log_probs(logits: mx.array, drawn: mx.array, k: int | None) -> tuple[mx.array, ...]:
    """Scores of a drawn token `(1,)` and the `k` likeliest, of logits `(1, V)`; none without k."""
    if k is None:
        return ()
    logits = logits.astype(mx.float32)
    total = mx.logsumexp(logits, axis=-1, keepdims=True)
    of_drawn = mx.take_along_axis(logits, drawn[:, None], axis=-1) - total
    k = min(k, logits.shape[-1])
    ids = mx.argpartition(-logits, kth=max(k - 1, 0), axis=-1)[:, :k]
    values = mx.take_along_axis(logits, ids, axis=-1)
    order = mx.argsort(-values, axis=-1)
    ids = mx.take_along_axis(ids, order, axis=-1)
    return of_drawn[0], ids, mx.take_along_axis(values, order, axis=-1) - total


def make_dry(
    multiplier: float, base: float, allowed_length: int, breakers: Collection[int] = ()
) -> Callable[[mx.array, mx.array], mx.array]:
    """Return a function of the latest tokens `(N,)` and logits `(1, V)` that subtracts
    `multiplier * base ** (length - allowed_length)` from the logit of each token that would extend
    a repetition of `allowed_length` tokens or more, the more the longer that is already.

    No repetition includes one of the `breakers`, and none is penalized: the ends of turns, which
    are followed by the same tokens each time.

    Source: DRY, "don't repeat yourself", p-e-w,
    https://github.com/oobabooga/text-generation-webui/pull/5677.
    """
    stopping = mx.array(sorted(breakers), mx.int32)

    def penalize(latest: mx.array, logits: mx.array) -> mx.array:
        if len(latest) <= allowed_length:
            return logits
        lengths = _lengths(latest, stopping)
        extra = (lengths - allowed_length).astype(mx.float32)
        penalties = mx.where(lengths >= allowed_length, multiplier * mx.power(base, extra), 0.0)
        total = mx.zeros(logits.shape[-1:]).at[latest[1:]].maximum(penalties)
        if len(stopping):
            total[stopping] = 0.0
        return logits - total.astype(logits.dtype)

    return penalize


def _lengths(latest: mx.array, stopping: mx.array) -> mx.array:
    """For each token but the last `(N - 1,)`: how many tokens up to it equal those at the end."""
    back = mx.arange(min(MAX_REPETITION, len(latest) - 1))[:, None]
    places = mx.arange(len(latest) - 1) - back
    own = latest[len(latest) - 1 - back]
    same = (latest[mx.maximum(places, 0)] == own) & (places >= 0)
    if len(stopping):
        same = same & ~(own == stopping).any(axis=-1, keepdims=True)
    return mx.cumprod(same.astype(mx.int32), axis=0).sum(axis=0)
