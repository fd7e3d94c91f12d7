"""Seconds from the start of the process to --help, and to the first token of a short prompt."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial

from mlxchat.bench.compare import Comparison, Figures, Side, Spread
from mlxchat.bench.subject import Subject
from mlxchat.errors import ModelError

PROMPT = " one two three four five six seven eight nine ten" * 2
ROUNDS, QUICK_ROUNDS = 5, 3
HELP, FIRST_TOKEN = "--help", "first token"
TITLE = "Seconds from the start of the process, with the model's files in memory"


def comparisons(subject: Subject) -> list[Comparison[str, float]]:
    """Each run is a process of mlxchat."""
    adapter = [] if subject.adapter is None else ["--adapter", subject.adapter]
    generate = [sys.executable, "-m", "mlxchat", "generate"]
    commands = {
        HELP: [*generate, "--help"],
        FIRST_TOKEN: [
            *(*generate, "-m", str(subject.directory), "--device", subject.device),
            *("--dtype", subject.dtype, *adapter, "--offline", "--no-json", "--no-prefix-cache"),
            *("-n", "1", "--raw", PROMPT),
        ],
    }
    sides: dict[str, Side[float]] = {}
    for until, command in commands.items():
        run = partial(process_seconds, command)
        # The first run compiles everything, and reads the model's files.
        sides[until] = Side(until, run, warm_up=run)
    return [Comparison("start", TITLE, sides, QUICK_ROUNDS if subject.quick else ROUNDS, _figures)]


def process_seconds(command: Sequence[str]) -> float:
    """Seconds until the first character of the answer; the process then runs to its end.

    Raises ModelError, with the last line of its output, if it fails.
    """
    with tempfile.TemporaryFile() as errors:
        started_s = time.perf_counter()
        # In its own group, Ctrl-C does not end it.
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": errors}
        with subprocess.Popen(command, process_group=0, **pipes) as process:
            assert process.stdout is not None
            try:
                process.stdout.read(1)
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


def _figures(until: str, runs: Mapping[str, Sequence[float]]) -> Sequence[Figures]:
    return [{"until": until, "seconds": Spread.of(runs[until])}]
