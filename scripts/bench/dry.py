"""The model's perplexity of its own text, compared with that of text written with DRY.

    python -m scripts.bench.dry [--tokens 400] [--seeds 6] [--temp 0.7] [--multiplier 0.4]

Both write an answer to each prompt, with each seed. They are compared up to where the model's own
text first repeats eight tokens: from there on, DRY is meant to differ, and repetition is easy to
predict. The perplexity is the model's own, without penalties. `worse` is how much higher DRY's
perplexity is, with its standard error over texts.
"""

import io
import json
import math
from itertools import product

from scripts.bench.common import losses, parser, show
from scripts.bench.loops import repetitions

# isort: split

import numpy as np

import mlxchat

PROMPTS = (
    "Write a very long story about a lighthouse keeper and the people who visit him.",
    "Explain in detail how bread is made, from the field to the table.",
    "Tell me about the history of the bicycle.",
    "Write a letter to a friend about a journey through the mountains.",
    "Describe a day in a large railway station.",
    "Give me advice for somebody who moves to a new city.",
    "Write an essay on why people keep diaries.",
    "Explain to a student what causes the seasons, and what would change without them.",
)


def main() -> None:
    options_of = parser(__doc__)
    options_of.add_argument("--tokens", type=int, default=400)
    options_of.add_argument("--seeds", type=int, default=6)
    options_of.add_argument("--temp", type=float, action="append")
    options_of.add_argument("--multiplier", type=float, default=0.4)
    options = options_of.parse_args()
    model = mlxchat.load(options.model, offline=True)
    tokens = 20 if options.quick else options.tokens
    for temp in options.temp or (0.0, 0.7):
        # Without chance, all seeds are the same.
        seeds = range(options.seeds if temp and not options.quick else 1)
        plain = write(options.model, seeds, tokens, temp, 0.0)
        dry = write(options.model, seeds, tokens, temp, options.multiplier)
        compared = compare(model, plain, dry)
        show(bench="dry", temp=temp, multiplier=options.multiplier, **compared)


def write(
    model: str, seeds: range, tokens: int, temp: float, multiplier: float
) -> dict[tuple[str, int], str]:
    """The texts by prompt and seed."""
    keys = list(product(PROMPTS, seeds))
    lines = (
        json.dumps({"id": n, "prompt": prompt, "seed": seed})
        for n, (prompt, seed) in enumerate(keys)
    )
    sampling = {"temp": temp, "dry_multiplier": multiplier}
    setup = mlxchat.Setup(model=model, offline=True, prefix_cache=False, sampling=sampling)
    request = mlxchat.BatchRequest(setup, max_tokens=tokens)
    rows = io.BytesIO("\n".join(lines).encode())
    with mlxchat.open_batch(request, piped=rows, write=lambda line: None) as batch:
        return {keys[int(str(result.row.id))]: result.text for result in batch.results()}


def compare(
    model: mlxchat.Model, plain: dict[tuple[str, int], str], dry: dict[tuple[str, int], str]
) -> dict[str, float]:
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for key, text in plain.items():
        (ids, own), (_, with_dry) = (losses_of(model, key[0], each) for each in (text, dry[key]))
        repeated = repetitions(ids)
        end = repeated.index(True) if True in repeated else len(ids)
        end = min(end, len(with_dry))
        pairs.append((own[:end], with_dry[:end]))
    of_own, of_dry = (np.concatenate(each) for each in zip(*pairs, strict=True))
    differences = [float(b.mean() - a.mean()) for a, b in pairs if len(a)]
    return {
        "texts": len(pairs),
        "tokens": len(of_own),
        "own_perplexity": math.exp(of_own.mean()),
        "dry_perplexity": math.exp(of_dry.mean()),
        "worse": math.exp(of_dry.mean() - of_own.mean()) - 1,
        "standard_error": float(np.std(differences) / math.sqrt(len(differences))),
    }


def losses_of(model: mlxchat.Model, prompt: str, text: str) -> tuple[list[int], np.ndarray]:
    """The ids of the text and the loss of each, after its prompt."""
    asked = model.tokenizer.prompt(prompt).ids
    ids = model.tokenizer.encode(text)
    whole = np.concatenate([asked, ids])
    found = list(losses(model.network, None, whole, len(whole)))
    return ids.tolist(), np.array(found[len(asked) - 1 :])


if __name__ == "__main__":
    main()
