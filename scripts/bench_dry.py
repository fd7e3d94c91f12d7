"""Compare the model's perplexity of its own text with that of text written with DRY.

    python -m scripts.bench_dry [-m smollm2] [--tokens 400] [--seeds 6] [--temp 0] [--temp 0.7]
                                [--multiplier 0.4]

Both write an answer to each prompt, with each seed. They are compared up to where the model's own
text first repeats eight tokens: from there on, DRY is meant to differ, and repetition is easy to
predict. The perplexity is the model's own, without penalties. Prints one JSON line for each
temperature and multiplier; `worse` is how much higher DRY's perplexity is, with its standard error
over texts.
"""

import argparse
import io
import json
import math
from collections.abc import Iterator
from itertools import product

import mlxchat

# isort: split

import mlx.core as mx
import numpy as np

from scripts.bench_loops import repetitions

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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--temp", type=float, action="append")
    parser.add_argument("--multiplier", type=float, action="append")
    options = parser.parse_args()
    model = mlxchat.load(options.model, offline=True)
    for temp in options.temp or (0.0, 0.7):
        # Without chance, all seeds are the same.
        seeds = range(options.seeds if temp else 1)
        plain = write(options.model, seeds, options.tokens, temp, 0.0)
        for multiplier in options.multiplier or (0.4,):
            dry = write(options.model, seeds, options.tokens, temp, multiplier)
            found = {"temp": temp, "multiplier": multiplier} | compare(model, plain, dry)
            print(json.dumps(found), flush=True)


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
    own, with_dry = (dict(losses(model, texts)) for texts in (plain, dry))
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for key, (ids, loss) in own.items():
        repeated = repetitions(ids)
        end = repeated.index(True) if True in repeated else len(ids)
        end = min(end, len(with_dry[key][0]))
        pairs.append((loss[:end], with_dry[key][1][:end]))
    of_own, of_dry = (np.concatenate(each) for each in zip(*pairs, strict=True))
    differences = [float(b.mean() - a.mean()) for a, b in pairs if len(a)]
    return {
        "texts": len(pairs),
        "tokens": len(of_own),
        "own_perplexity": round(math.exp(of_own.mean()), 3),
        "dry_perplexity": round(math.exp(of_dry.mean()), 3),
        "worse": round(math.exp(of_dry.mean() - of_own.mean()) - 1, 4),
        "standard_error": round(float(np.std(differences) / math.sqrt(len(differences))), 4),
    }


def losses(
    model: mlxchat.Model, texts: dict[tuple[str, int], str]
) -> Iterator[tuple[tuple[str, int], tuple[list[int], np.ndarray]]]:
    """The ids of each text and the loss of each, after its prompt."""
    for key, text in texts.items():
        prompt = model.tokenizer.prompt(key[0]).ids.tolist()
        ids = model.tokenizer.encode(text).tolist()
        logits = model.network(mx.array([prompt + ids]))[0, len(prompt) - 1 : -1]
        chosen = mx.take_along_axis(logits, mx.array(ids)[:, None], axis=-1)[:, 0]
        yield key, (ids, np.array(mx.logsumexp(logits, axis=-1) - chosen))


if __name__ == "__main__":
    main()
