"""Count valid answers, and measure what constraints cost and gain, on one model.

    python -m scripts.bench_answers                       # an answer to each of 270 constraints
    python -m scripts.bench_answers -m tiny --seeds 20    # 20 of a tiny random model to each
    python -m scripts.bench_answers --only regex --only 'grammar csv'
    python -m scripts.bench_answers -o night.jsonl        # in pieces: continues after a stop
    python -m scripts.bench_answers --speed               # speeds, in turn with free answers
    python -m scripts.bench_answers --ttft                # times to the first token, in turn

Answers are sampled at temperature 1 and checked with jsonschema, formats included, `re.fullmatch`
or a check of the grammar's own. `--speed` compares the tokens per second of JSON with those of a
free answer to the same prompt, and those of an answer that may be any text with the same answer
unconstrained, which is the cost of the masks. `--ttft` measures in new processes, from their start,
and in one process.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlxchat  # noqa: F401  first, so that OpenBLAS and mlx-lm's modules are prepared

# isort: split

from mlxchat.app.batch_run import open_batch
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.constrained import Constrained
from mlxchat.engine.generate import Generation
from mlxchat.models.load import load
from mlxchat.models.model import Model
from mlxchat.request import BatchInput, BatchRequest, Setup
from mlxchat.settings import GenerationSettings, SamplingSettings
from scripts.answer_cases import Case, cases
from scripts.schemas import SCHEMAS
from scripts.tiny_model import write_tiny_model

PROMPT = "Invent a plausible record."
ANYTHING = r"[\s\S]*"
SHORT = "name, age int, bio: one sentence"
ROUNDS, TOKENS = 5, 100
# Checking a value that is 550 levels deep takes more calls than Python allows by default.
MAX_CALLS = 30_000
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


def count_valid(name: str | None, wanted: Sequence[Case], options: argparse.Namespace) -> int:
    """Answer all cases in a batch and print the counts by kind; return the number of answers that
    are not valid. An answer that the output file has already is not generated again."""
    by_name = {case.name: case for case in wanted}
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory, "rows.jsonl")
        output = options.output or Path(directory, "answers.jsonl")
        with source.open("w") as file:
            for case in wanted:
                for seed in range(options.seeds):
                    row = {"id": f"{seed} {case.name}", "prompt": PROMPT, "seed": seed}
                    file.write(json.dumps({**row, **case.fields}) + "\n")
        request = BatchRequest(
            # Unbounded, because rows that fill their window run one after the other.
            setup=Setup(model=name, window=None, sampling={"temp": 1.0}, offline=True),
            input=BatchInput(path=source),
            output=output,
            rows=options.rows,
            max_tokens=options.max_tokens,
        )
        with open_batch(request, write=print) as batch:
            for done, _ in enumerate(batch.results(), 1):
                if done % 50 == 0:
                    print(f"{done:,} answers, {batch.figures.tokens_per_s:.0f} tok/s", flush=True)
        lines = [json.loads(line) for line in output.read_text().splitlines()]
    counts: Counter[tuple[str, str]] = Counter()
    for line in lines:
        case_name = line["id"].partition(" ")[2]
        if case_name in by_name:
            counts[case_name.partition(" ")[0], _outcome(by_name[case_name], line)] += 1
    for kind in dict.fromkeys(kind for kind, _ in counts):
        valid, cut_off, invalid = (counts[kind, each] for each in ("valid", "cut off", "invalid"))
        total = valid + cut_off + invalid
        print(f"{kind}: {valid:,} of {total:,} valid, {cut_off:,} cut off, {invalid:,} invalid")
    return sum(count for (_, outcome), count in counts.items() if outcome != "valid")


def _outcome(case: Case, line: Mapping[str, Any]) -> str:
    """Checks the text, or what the program has parsed, which is written as JSON again."""
    if not line.get("complete"):
        print(f"{line['id']}: {line.get('error', 'cut off')}")
        return "cut off"
    text = json.dumps(line["value"]) if "value" in line else line["text"]
    if case.is_right(text):
        return "valid"
    print(f"{line['id']}: invalid: {text[:200]!r}")
    return "invalid"


def measure_speed(model: Model) -> None:
    """Print ratios of speeds, each pair measured in turn."""
    anything = Constraint.from_regex(ANYTHING)
    masks: list[float] = []
    for seed in range(ROUNDS):
        free = generate(model, None, seed, TOKENS)[2]
        masks.append(generate(model, anything, seed, TOKENS)[2] / free)
    print(f"any text, with masks: {statistics.median(masks):.3f} times the speed without")
    gains: list[float] = []
    for schema in SCHEMAS.values():
        free = generate(model, None, 0, TOKENS, 0.7)[2]
        constrained = generate(model, Constraint.from_schema(schema), 0, 500, 0.7)[2]
        gains.append(constrained / free)
    low, median, high = statistics.quantiles(gains, n=4)
    print(
        f"JSON by {len(gains)} schemas: {median:.2f} times a free answer "
        f"(half of them {low:.2f} to {high:.2f})"
    )


def measure_first_token(name: str | None) -> None:
    """Print how much later the first token comes with a schema, in pairs."""
    with_schema = ("--schema", SHORT)
    first = [(_in_new_process(name), _in_new_process(name, *with_schema)) for _ in range(ROUNDS)]
    _print_first_token("first use, in a new process", first)
    model = load(name, offline=True)
    _in_this_process(model, SHORT)
    later = [(_in_this_process(model, None), _in_this_process(model, SHORT)) for _ in range(ROUNDS)]
    _print_first_token("later uses, in one process", later)


def _print_first_token(what: str, pairs: Sequence[tuple[float, float]]) -> None:
    without, with_ = (statistics.median(times) for times in zip(*pairs, strict=True))
    extra = sorted(slow - fast for fast, slow in pairs)
    print(
        f"{what}: first token after {without:.2f} s without, {with_:.2f} s with a schema: "
        f"{statistics.median(extra):+.2f} s ({extra[0]:+.2f} to {extra[-1]:+.2f})"
    )


def _in_new_process(name: str | None, *options: str) -> float:
    model = () if name is None else ("-m", name)
    program = (sys.executable, "-m", "mlxchat", "generate", "--json", "-n", "8", "--quiet")
    begun_s = time.perf_counter()
    with subprocess.Popen(
        [*program, *model, *options, PROMPT], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if '"event": "token"' in line)
        took_s = time.perf_counter() - begun_s
        process.communicate()
    return took_s


def _in_this_process(model: Model, schema: str | None) -> float:
    ids, cache = model.tokenizer.prompt(PROMPT).ids, model.make_cache(512, 4)
    begun_s = time.perf_counter()
    constrained = None
    if schema is not None:
        constrained = Constrained.begin(Constraint.from_schema(schema), model.tokenizer, ids)
    settings = GenerationSettings(max_tokens=8)
    generation = Generation(model, ids, cache, settings=settings, constrained=constrained)
    next(iter(generation))
    return time.perf_counter() - begun_s


def main() -> int:
    sys.setrecursionlimit(MAX_CALLS)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-m", "--model", default=None, help="a model, or tiny")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--only", action="append", default=[], help="how a constraint's name begins"
    )
    parser.add_argument("-o", "--output", type=Path, help="file of answers, to continue")
    parser.add_argument("--rows", type=int, default=32, help="answers side by side")
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--ttft", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        is_tiny = arguments.model == "tiny"
        name = str(write_tiny_model(Path(directory, "tiny"))) if is_tiny else arguments.model
        if arguments.ttft:
            measure_first_token(name)
            return 0
        if arguments.speed:
            measure_speed(load(name, offline=True))
            return 0
        return int(count_valid(name, list(cases(arguments.only)), arguments) > 0)


if __name__ == "__main__":
    sys.exit(main())
