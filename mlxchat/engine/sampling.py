"""Draw a token from a row of logits, with mlx-lm's samplers.

The random numbers of a token depend on the seed and the token's index only, so however tokens are
computed, one by one or several at a time, or in another process, the same ones are drawn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import mlx.core as mx
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from mlxchat.engine.dry import RANGE, make_dry
from mlxchat.errors import UsageError
from mlxchat.settings import SamplingSettings

REPETITION_CONTEXT = 20  # tokens; mlx-lm's default

Draw = Callable[[mx.array, int], mx.array]
SEEDS = 2**64


@dataclass(frozen=True, slots=True)
class LogProbs:
    """Lazy log-probabilities (natural log) of one step: of the drawn token and the K likeliest.

    `drawn: (1,)`, `top_ids: (1, K)`, `top: (1, K)`, likeliest first. Holds nothing of the size of
    the vocabulary.
    """

    drawn: mx.array
    top_ids: mx.array
    top: mx.array

    def arrays(self) -> list[mx.array]:
        return [self.drawn, self.top_ids, self.top]


def make_draw(
    settings: SamplingSettings, vocabulary_size: int, spared_ids: Sequence[int] = ()
) -> Draw:
    """Return a function from logits `(1, V)` and the token's index to a drawn token `(1,)`.

    Both arrays are lazy. Sets MLX's global random state. XTC never excludes the `spared_ids`.
    """
    if settings.temp == 0:
        return lambda logits, index: mx.argmax(logits, axis=-1)
    assert settings.seed is not None
    first = _scattered(settings.seed)
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
        # All samplers but top-p treat logits and log-probabilities alike.
        return sampler(logits if settings.top_p == 1 else _log_softmax(logits))

    return draw


def _scattered(seed: int) -> int:
    """A number from which to count a generation's tokens: far from those of adjacent seeds."""
    return int.from_bytes(blake2b(seed.to_bytes(8), digest_size=8).digest())


def penalty_context(settings: SamplingSettings) -> int:
    """How many of the latest tokens the penalties look at."""
    return RANGE if settings.dry_multiplier > 0 else REPETITION_CONTEXT


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
        processors.append(
            make_dry(
                settings.dry_multiplier, settings.dry_base, settings.dry_allowed_length, eos_ids
            )
        )
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


def log_probs(logits: mx.array, drawn: mx.array, k: int) -> LogProbs:
    """Log-probabilities of the drawn token `(1,)` and the `k` likeliest, from logits `(1, V)`."""
    logits = logits.astype(mx.float32)
    total = mx.logsumexp(logits, axis=-1, keepdims=True)
    of_drawn = mx.take_along_axis(logits, drawn[:, None], axis=-1) - total
    k = min(k, logits.shape[-1])
    if k == 0:
        empty = mx.zeros((1, 0))
        return LogProbs(of_drawn[0], empty, empty)
    ids = mx.argpartition(-logits, kth=k - 1, axis=-1)[:, :k]
    values = mx.take_along_axis(logits, ids, axis=-1)
    order = mx.argsort(-values, axis=-1)
    return LogProbs(
        of_drawn[0],
        mx.take_along_axis(ids, order, axis=-1),
        mx.take_along_axis(values, order, axis=-1) - total,
    )


def _log_softmax(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)
