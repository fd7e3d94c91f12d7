"""Count valid answers to the schemas in `schemas.json`, and measure what schemas cost and gain.

    python -m scripts.bench_answers -m tiny --seeds 20    # 20 of a tiny random model to each
    python -m scripts.bench_answers --speed               # speeds, in turn with free answers

Answers are checked with jsonschema, apart from the program. `--speed` compares JSON with a free
answer, and any text, masked, with the same unconstrained.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from mlxchat.app.batch_run import open_batch
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.constrained import Constrained
from mlxchat.engine.generate import generate
from mlxchat.engine.reply import Reply
from mlxchat.models.load import load
from mlxchat.models.model import Model
from mlxchat.request import BatchInput, BatchRequest, Setup
from mlxchat.settings import GenerationSettings, SamplingSettings
from scripts.tiny_model import write_tiny_model

SCHEMAS: dict[str, Any] = json.loads(Path(__file__).with_name("schemas.json").read_text())
PROMPT = "Invent a plausible record."
ROUNDS, TOKENS, MAX_TOKENS = 5, 100, 8_000


def speed(
    model: Model, constraint: Constraint | None, seed: int, tokens: int, temp: float
) -> float:
    """Tokens per second after the first."""
    constrained = constraint and Constrained(constraint, model.tokenizer, None)
    reply = Reply(
        model,
        model.tokenizer.prompt(PROMPT).ids,
        model.make_cache(512, 4),
        sampling=SamplingSettings(temp=temp, seed=seed),
        settings=GenerationSettings(max_tokens=tokens, ignore_eos=constraint is None),
        constrained=constrained,
    )
    list(generate(reply))
    return reply.stats.decode_tokens_per_s


def count_valid(name: str | None, seeds: int) -> int:
    """Answer each schema that often, print the counts, and return how many are invalid."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as directory:
        source, output = Path(directory, "rows.jsonl"), Path(directory, "answers.jsonl")
        rows = [
            {"id": f"{seed} {key}", "prompt": PROMPT, "seed": seed, "schema": schema}
            for key, schema in SCHEMAS.items()
            for seed in range(seeds)
        ]
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # Unbounded, because rows that fill their window run one after the other.
        setup = Setup(model=name, window=None, sampling={"temp": 1.0}, offline=True)
        given = BatchInput(path=source)
        request = BatchRequest(setup=setup, input=given, output=output, max_tokens=MAX_TOKENS)
        with open_batch(request, write=print) as batch:
            list(batch.results())
        for line in output.read_text().splitlines():
            result = json.loads(line, parse_float=Decimal)
            counts[outcome := _outcome(SCHEMAS[result["id"].partition(" ")[2]], result)] += 1
            if outcome != "valid":
                print(f"{result['id']}: {outcome}: {result.get('error', line[:200])}")
    print(", ".join(f"{count:,} {outcome}" for outcome, count in counts.items()))
    return counts["invalid"]


def _outcome(schema: Any, result: dict[str, Any]) -> str:
    if "error" in result:
        return "error"
    if not result["complete"]:
        return "cut off"
    draft: Any = validator_for(schema, Draft202012Validator)
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    checker = draft(exact, format_checker=draft.FORMAT_CHECKER)
    return "valid" if checker.is_valid(result.get("value")) else "invalid"


def measure_speed(model: Model) -> None:
    """Print ratios of speeds, each pair measured in turn."""
    anything = Constraint.from_regex(r"[\s\S]*")
    masks = [
        speed(model, anything, seed, TOKENS, 1) / speed(model, None, seed, TOKENS, 1)
        for seed in range(ROUNDS)
    ]
    print(f"any text, with masks: {statistics.median(masks):.3f} times the speed without")
    gains: list[float] = []
    for schema in SCHEMAS.values():
        free = speed(model, None, 0, TOKENS, 0.7)
        gains.append(speed(model, Constraint.from_schema(schema), 0, 500, 0.7) / free)
    low, median, high = statistics.quantiles(gains, n=4)
    print(f"JSON: {median:.2f} times a free answer (half of the schemas {low:.2f} to {high:.2f})")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-m", "--model", default=None, help="a model, or tiny")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--speed", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        is_tiny = asked.model == "tiny"
        name = str(write_tiny_model(Path(directory, "tiny"))) if is_tiny else asked.model
        if asked.speed:
            measure_speed(load(name, offline=True))
        else:
            return int(count_valid(name, asked.seeds) > 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
