"""Seconds from the start of the process to --help, and to the first token of a short prompt."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mlxchat.bench import theirs
from mlxchat.bench.paired import Side, Spread, interleave, ratios
from mlxchat.bench.report import Figures
from mlxchat.bench.subject import Subject
from mlxchat.errors import ModelError

PROMPT = " one two three four five six seven eight nine ten" * 2
ROUNDS, QUICK_ROUNDS = 5, 3
OURS, THEIRS = "mlxchat", theirs.NAME
HELP, FIRST_TOKEN = "--help", "first token"
TITLES = {"start": "Seconds from the start of the process, with the model's files in memory"}


def measure(subject: Subject) -> Iterator[Sequence[Figures]]:
    """Each run is a process. Neither side applies the chat template, so both read the same text."""
    directory = theirs.same_weights(subject) if subject.against else subject.directory
    names = (OURS, THEIRS) if subject.against else (OURS,)
    sides = {
        (until, name): _side(subject, until, name, directory)
        for until in (HELP, FIRST_TOKEN)
        for name in names
    }
    rounds = QUICK_ROUNDS if subject.quick else ROUNDS
    for runs in interleave(sides, rounds, subject.tick):
        yield [_figures(until, name, runs) for until, name in runs]


def _side(subject: Subject, until: str, name: str, directory: Path) -> Side[float]:
    if name == OURS:
        command, environment = _our_command(subject, directory, until), os.environ
    else:
        command, environment = _their_command(directory, until), theirs.environment()

    def run() -> float:
        return process_seconds(command, environment)

    # The first run compiles everything, and reads the model's files.
    return Side(f"{until}, {name}", run, warm_up=run)


def _our_command(subject: Subject, directory: Path, until: str) -> list[str]:
    program = [sys.executable, "-m", "mlxchat", "generate"]
    if until == HELP:
        return [*program, "--help"]
    return [
        *(*program, "-m", str(directory), *subject.program_options()),
        *("--offline", "--no-json", "--no-prefix-cache", "-n", "1", "--raw", PROMPT),
    ]


def _their_command(directory: Path, until: str) -> list[str]:
    if until == HELP:
        return theirs.command("--help")
    return theirs.command(
        *("--model", str(directory), "--max-tokens", "1", "--ignore-chat-template"),
        *("--prompt", PROMPT),
    )


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


def _figures(until: str, name: str, runs: dict[tuple[str, str], list[float]]) -> Figures:
    own, others = runs[until, name], runs.get((until, THEIRS), []) if name == OURS else []
    seconds, ratio = Spread.of(own), ratios(own, others)
    values = {"until": until, "side": name, "seconds": seconds, "time_ratio": ratio}
    return Figures("start", values)
