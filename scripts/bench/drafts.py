"""Compare texts with and without drafts, on tiny float32 models of mlx-lm's families.

    python -m scripts.bench.drafts                             # 3 seeds of every family
    python -m scripts.bench.drafts --seeds 50 llama gemma3     # 50 seeds of these two

Each run fills a small window 20 times. The drafts come from the text without drafts, with an error
every 11 tokens, as if it were edited. Rows computed together may differ in their last bits from the
same rows computed one by one, and that can change which token is drawn. Each text that differs is
therefore printed with its first different token and with the gap: the least noise in the logits
that makes the run without drafts draw the other token. Exits with status 1 if a gap is too large
for rounding.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

from scripts.bench.common import parser, show

# isort: split

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat.cache import Cache, make_cache
from mlxchat.engine.decode import decode
from mlxchat.engine.drafts import Drafter
from mlxchat.engine.lookup import History
from mlxchat.engine.prefill import prefill
from mlxchat.engine.sampling import REPETITION_CONTEXT, Chooser, make_draw, make_penalty
from mlxchat.errors import CacheError, ModelUnsupported
from mlxchat.settings import MAX_DRAFT, SamplingSettings
from scripts.families import CONFIGS, METAL_ONLY, build_family

WINDOW, KEEP = 16, 4
TOKENS = 20 * WINDOW
PROMPT = np.array([7, 8, 9, 10, 11, 12, 13, 7, 8, 9] * 4, np.int32)

# Float32 logits of a tiny model differ by less than this if only rounding differs.
ROUNDING = 1e-3

# Standard deviations of noise added to the logits, and how often each is tried.
NOISES = tuple(10 ** (exponent / 2) for exponent in range(-14, 3))
TRIALS_OF_EACH_NOISE = 50


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token that differs, by index, and the noise in the logits that explains it."""

    seed: int
    index: int
    gap: float


@dataclass(frozen=True, slots=True)
class Compared:
    """The texts of one family, with and without drafts."""

    texts: int
    drafted: int
    accepted: int
    differences: Sequence[Difference]


def compare(family: str, seeds: int) -> Compared | None:
    """None if the family cannot be built or bounded, or its cache cannot take drafts back."""
    try:
        network = build_family(family)
        prefilled(network)
    except (CacheError, ModelUnsupported):
        return None
    drafted = accepted = 0
    differences: list[Difference] = []
    for seed in range(seeds):
        sampling = SamplingSettings(temp=0.8, top_p=0.9, repetition_penalty=1.1, seed=seed)
        plain = generate(network, sampling)
        drafter = Drafter(History(), MAX_DRAFT, clock=lambda: 0.0)
        edited = [id_ if index % 11 else 5 for index, id_ in enumerate(plain)]
        drafter.history.extend(np.array([*edited, *PROMPT], np.int32))
        ids = generate(network, sampling, drafter)
        drafted += drafter.drafted
        accepted += drafter.accepted
        if ids != plain:
            differences.append(difference(network, sampling, plain, ids))
        if drafter.drafted == 0:
            return None
    return Compared(seeds, drafted, accepted, differences)


def prefilled(network: nn.Module) -> Cache:
    cache = make_cache(network, WINDOW, KEEP)
    prefill(network, cache, PROMPT[:-1], step_size=WINDOW)
    return cache


def generate(
    network: nn.Module,
    sampling: SamplingSettings,
    drafter: Drafter | None = None,
) -> list[int]:
    tokens = decode(
        network,
        prefilled(network),
        Chooser(PROMPT, sampling),
        int(PROMPT[-1]),
        max_tokens=TOKENS,
        drafter=drafter,
    )
    return [token.id for token in tokens if token.id is not None]


def difference(
    network: nn.Module, sampling: SamplingSettings, plain: list[int], ids: list[int]
) -> Difference:
    pairs = zip(plain, ids, strict=True)
    index = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    logits = _logits(network, sampling, plain, index)
    draw = make_draw(sampling, logits.shape[-1])
    numbers = np.random.default_rng(0)

    def draws_it(noise: float) -> bool:
        changed = logits + noise * mx.array(numbers.standard_normal(logits.shape), logits.dtype)
        drawn: Any = draw(changed, index).item()
        return drawn == ids[index]

    noises = (
        noise for noise in NOISES if any(draws_it(noise) for _ in range(TRIALS_OF_EACH_NOISE))
    )
    return Difference(sampling.seed or 0, index, next(noises, math.inf))


def _logits(
    network: nn.Module, sampling: SamplingSettings, plain: list[int], index: int
) -> mx.array:
    """The logits `(1, V)` that `plain[index]` was drawn from."""
    cache = prefilled(network)
    logits = mx.zeros(0)
    for id_ in [int(PROMPT[-1]), *plain[:index]]:
        logits = network(mx.array([[id_]]), cache=cache)[:, -1, :]
        mx.eval(logits)
    penalize = make_penalty(sampling)
    latest = mx.array([*PROMPT.tolist(), *plain[:index]][-REPETITION_CONTEXT:])
    return logits if penalize is None else penalize(latest, logits)


def main() -> None:
    options_of = parser(__doc__)
    options_of.add_argument("families", nargs="*", metavar="FAMILY")
    options_of.add_argument("--seeds", type=int, default=3)
    options = options_of.parse_args()
    families = options.families or sorted(set(CONFIGS) - METAL_ONLY)
    too_large = False
    for family in families[: 3 if options.quick else None]:
        found = compare(family, 1 if options.quick else options.seeds)
        if found is not None:
            show(bench="drafts", family=family, **asdict(found))
            too_large |= any(each.gap > ROUNDING for each in found.differences)
    sys.exit(too_large)


if __name__ == "__main__":
    main()
