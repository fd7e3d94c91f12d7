"""Seconds from the start of the process to --help, and to the first token of a short prompt."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

from mlxchat.bench import theirs
from mlxchat.bench.compare import Comparison, Figures, Side, Spread, ratios
from mlxchat.bench.subject import OURS, Subject
from mlxchat.errors import ModelError

PROMPT = " one two three four five six seven eight nine ten" * 2
ROUNDS, QUICK_ROUNDS = 5, 3
HELP, FIRST_TOKEN = "--help", "first token"
TITLE = "Seconds from the start of the process, with the model's files in memory"

# Until when, and the side.
Case = tuple[str, str]


def comparisons(subject: Subject) -> list[Comparison[Case, float]]:
    """Each run is a process. Neither side applies the chat template, so both read the same text."""
    directory = theirs.same_weights(subject) if subject.against else subject.directory
    generate = [sys.executable, "-m", "mlxchat", "generate"]
    commands = {
        (HELP, OURS): [*generate, "--help"],
        (FIRST_TOKEN, OURS): [
            *(*generate, "-m", str(directory), *subject.program_options()),
            *("--offline", "--no-json", "--no-prefix-cache", "-n", "1", "--raw", PROMPT),
        ],
        (HELP, theirs.NAME): theirs.command("--help"),
        (FIRST_TOKEN, theirs.NAME): theirs.command(
            *("--model", str(directory), "--max-tokens", "1", "--ignore-chat-template"),
            *("--prompt", PROMPT),
        ),
    }
    sides = {
        (until, name): _side(f"{until}, {name}", commands[until, name], name)
        for until in (HELP, FIRST_TOKEN)
        for name in subject.sides
    }
    rounds = QUICK_ROUNDS if subject.quick else ROUNDS
    return [Comparison("start", TITLE, sides, rounds, _figures)]


def _side(title: str, command: Sequence[str], name: str) -> Side[float]:
    environment = os.environ if name == OURS else theirs.environment()

    def run() -> float:
        return process_seconds(command, environment)

    # The first run compiles everything, and reads the model's files.
    return Side(title, run, warm_up=run)


def process_seconds(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Seconds until the first character of the answer, after mlx-lm's line of equals signs.

    The process then runs to its end. Raises ModelError, with the last line of its output, if it
    fails.
    """
    with tempfile.TemporaryFile() as errors:
        started_s = time.perf_counter()
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
        ) as process:
            assert process.stdout is not None
            try:
                while process.stdout.read(1) in (b"=", b"\n"):
                    pass
                first_s = time.perf_counter() - started_s
                process.stdout.read()
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip().splitlines() or ["nothing"]
            status = f"status {process.returncode}"
            raise ModelError(f"{' '.join(command[1:4])} failed with {status}: {said[-1]}")
    return first_s


def _figures(case: Case, runs: Mapping[Case, Sequence[float]]) -> Sequence[Figures]:
    until, name = case
    others = runs.get((until, theirs.NAME), []) if name == OURS else []
    ratio = ratios(runs[case], others)
    seconds = Spread.of(runs[case])
    return [{"until": until, "side": name, "seconds": seconds, "time_ratio": ratio}]
