"""Count valid answers, and measure what constraints cost and gain, on one model.

    python -m scripts.bench_answers                      # 2 answers to each of 50 schemas
    python -m scripts.bench_answers -m tiny --seeds 20   # 1,000 answers of a tiny model
    python -m scripts.bench_answers --speed              # speeds, in turn with free answers

Answers are sampled at temperature 1 and checked with jsonschema, formats included. `--speed`
compares the tokens per second of JSON with those of a free answer to the same prompt, and those of
an answer that may be any text with the same answer unconstrained, which is the cost of the masks.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import mlxchat  # noqa: F401  first, so that OpenBLAS and mlx-lm's modules are prepared

# isort: split

import jsonschema
from jsonschema.validators import validator_for

from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.constrained import Constrained
from mlxchat.engine.generate import Generation
from mlxchat.models.load import load
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings, SamplingSettings
from scripts.schemas import SCHEMAS

PROMPT = "Invent a plausible record."
ANYTHING = r"[\s\S]*"
ROUNDS, TOKENS = 5, 100
# A random model writes a string up to its maximum length, or longer without one.
MAX_TOKENS = 8_000


def generate(
    model: Model, constraint: Constraint | None, seed: int, max_tokens: int, temp: float = 1.0
) -> tuple[str, bool | None, float]:
    """The answer, whether it is complete, and its tokens per second."""
    ids = model.tokenizer.prompt(PROMPT).ids
    constrained = None
    if constraint is not None:
        constrained = Constrained.begin(constraint, model.tokenizer, None)
    generation = Generation(
        model,
        ids,
        model.make_cache(512, 4),
        sampling=SamplingSettings(temp=temp, seed=seed),
        settings=GenerationSettings(max_tokens=max_tokens, ignore_eos=constraint is None),
        constrained=constrained,
    )
    text, tokens, begun_s = "", 0, 0.0
    for token in generation:
        begun_s = begun_s or time.perf_counter()
        text, tokens = text + token.text, tokens + (token.id is not None)
    took_s = time.perf_counter() - begun_s
    return text, generation.is_complete, (tokens - 1) / took_s if tokens > 1 else 0.0


def _exact(text: str) -> Any:
    """JSON with decimal numbers: 8730.64 is a multiple of 0.01, but not of its nearest float."""
    return json.loads(text, parse_float=Decimal)


def count_valid(model: Model, seeds: int) -> int:
    """Print the counts; return the number of answers that are not valid."""
    valid = cut_off = wrong = 0
    for name, schema in SCHEMAS.items():
        constraint = Constraint.from_schema(schema)
        kind: Any = validator_for(schema, jsonschema.Draft202012Validator)
        checker = kind(_exact(json.dumps(schema)), format_checker=kind.FORMAT_CHECKER)
        for seed in range(seeds):
            text, complete, _ = generate(model, constraint, seed, MAX_TOKENS)
            if not complete:
                cut_off += 1
                print(f"{name}, seed {seed}: not complete after {MAX_TOKENS:,} tokens")
                continue
            problems = list(checker.iter_errors(_exact(text)))
            valid, wrong = valid + (not problems), wrong + bool(problems)
            for problem in problems[:1]:
                print(f"{name}, seed {seed}: {problem.message[:100]}: {text[:200]}")
        print(f"{name}: {valid:,} valid so far", flush=True)
    total = valid + cut_off + wrong
    print(f"{valid:,} of {total:,} answers valid; {cut_off:,} cut off, {wrong:,} invalid")
    return cut_off + wrong


def measure_speed(model: Model, names: Sequence[str]) -> None:
    """Print ratios of speeds, each pair measured in turn."""
    anything = Constraint.from_regex(ANYTHING)
    masks: list[float] = []
    for seed in range(ROUNDS):
        free = generate(model, None, seed, TOKENS)[2]
        masks.append(generate(model, anything, seed, TOKENS)[2] / free)
    print(f"any text, with masks: {statistics.median(masks):.3f} times the speed without")
    gains: list[float] = []
    for name in names:
        constraint = Constraint.from_schema(SCHEMAS[name])
        for seed in range(2):
            free = generate(model, None, seed, TOKENS, 0.7)[2]
            gains.append(generate(model, constraint, seed, 500, 0.7)[2] / free)
    low, high = min(gains), max(gains)
    median = statistics.median(gains)
    print(
        f"JSON by {len(names)} schemas: {median:.2f} times a free answer ({low:.2f} to {high:.2f})"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-m", "--model", default=None)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--speed", action="store_true")
    arguments = parser.parse_args()
    model = load(arguments.model, offline=True)
    if arguments.speed:
        measure_speed(model, list(SCHEMAS)[::5])
        return 0
    return int(count_valid(model, arguments.seeds) > 0)


if __name__ == "__main__":
    sys.exit(main())
