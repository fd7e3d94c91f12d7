"""How much of a long text repeats itself, and the perplexity of the rest.

    python -m scripts.bench.loops [--tokens 20000] [--temp 0] [--temp 0.7] [--multiplier 0.4]

Each text is generated in a window of 512 tokens, without an end: as the model writes it, and with
DRY. A token is repetition if the eight tokens ending in it are also among the 2,048 before. A text
loops from the token on with which 80% of the latest 512 are. The perplexity is the model's own,
without penalties, of the tokens that are no repetition, each with at least 256 tokens before it.
"""

from collections.abc import Sequence

from scripts.bench.common import losses, parser, perplexity, show

# isort: split

import numpy as np

from mlxchat.engine.generate import generate
from mlxchat.engine.reply import LOOK_BACK, NGRAM, LoopDetector, Reply
from mlxchat.models.load import load
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings, SamplingSettings

PROMPT = "Write a very long story about a lighthouse keeper and the people who visit him."
WINDOW, KEEP, CONTEXT = 512, 4, 256


def main() -> None:
    options_of = parser(__doc__)
    options_of.add_argument("--tokens", type=int, default=20_000)
    options_of.add_argument("--temp", type=float, action="append")
    options_of.add_argument("--multiplier", type=float, default=0.4)
    options = options_of.parse_args()
    model = load(options.model, offline=True)
    for temp in options.temp or (0.0, 0.7):
        for multiplier in (0.0, options.multiplier):
            sampling = SamplingSettings(temp=temp, seed=1, dry_multiplier=multiplier)
            ids = write(model, sampling, 600 if options.quick else options.tokens)
            show(bench="loops", temp=temp, multiplier=multiplier, **figures(model, ids))


def write(model: Model, sampling: SamplingSettings, tokens: int) -> list[int]:
    """The ids of a text of that many tokens."""
    reply = Reply(
        model,
        model.tokenizer.prompt(PROMPT).ids,
        model.make_cache(WINDOW, KEEP),
        sampling=sampling,
        settings=GenerationSettings(max_tokens=tokens, ignore_eos=True),
    )
    return [token.id for token in generate(reply) if token.id is not None]


def figures(model: Model, ids: Sequence[int]) -> dict[str, float]:
    detector, looping = LoopDetector(), 0
    for id_ in ids:
        detector.add(id_)
        looping += detector.looping
    repeated = repetitions(ids)
    fresh = [loss for n, loss in losses_of(model, ids).items() if not repeated[n]]
    return {
        "tokens": len(ids),
        "looping": looping / len(ids),
        "repetition": sum(repeated) / len(ids),
        "perplexity_of_rest": perplexity(fresh or [0.0]),
    }


def repetitions(ids: Sequence[int]) -> list[bool]:
    latest: dict[tuple[int, ...], int] = {}
    found: list[bool] = []
    for end in range(len(ids)):
        ngram = tuple(ids[max(end - NGRAM + 1, 0) : end + 1])
        found.append(end - latest.get(ngram, -LOOK_BACK - 1) <= LOOK_BACK)
        if len(ngram) == NGRAM:
            latest[ngram] = end
    return found


def losses_of(model: Model, ids: Sequence[int]) -> dict[int, float]:
    """The loss of each token, by its place, without the first ones, which have too few before."""
    found: dict[int, float] = {}
    for start in range(0, len(ids) - WINDOW + 1, WINDOW - CONTEXT):
        values = list(losses(model.network, None, np.array(ids[start : start + WINDOW]), WINDOW))
        found |= enumerate(values[CONTEXT - 1 :], start + CONTEXT)
    return found


if __name__ == "__main__":
    main()
