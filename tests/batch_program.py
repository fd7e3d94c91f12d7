"""Runs a batch whose rows need no model, and kills it with SIGKILL at random moments.

    python -m tests.batch_program IN OUT KILLS SEED

Exits with a message if a finished line was lost or changed. The last run is not killed.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from mlxchat.request import BatchInput
from mlxchat.rows.output import open_output
from mlxchat.rows.pending import Pending
from mlxchat.rows.read import Rows
from mlxchat.rows.results import Result
from mlxchat.rows.row import Row

SIDE_BY_SIDE = 8
MAX_S = 0.02


def answer(row: Row) -> Result:
    """Most are short; some are so long that a kill can interrupt their write."""
    text = f"{row.prompt}!" * (20_000 if row.number % 50 == 0 else 1)
    return Result(row, text=text, finish_reason="stop")


def run_batch(source: Path, out: Path, *, seed: int = 0) -> Pending:
    """Finish every row, several side by side, in a random order."""
    drawn = random.Random(seed)
    with Rows(BatchInput(path=source)) as rows, open_output(out, rows.stream) as output:
        pending = Pending(rows, output)
        running: list[Row] = []
        while True:
            while len(running) < SIDE_BY_SIDE and (row := pending.take()) is not None:
                running.append(row)
            if not running:
                if pending.is_over:
                    return pending
                continue
            time.sleep(drawn.random() * 2e-4)
            pending.finish(answer(running.pop(drawn.randrange(len(running)))))


def _killed(source: Path, out: Path, *, seed: int) -> None:
    child = os.fork()
    if child == 0:
        run_batch(source, out, seed=seed)
        os._exit(0)
    time.sleep(random.Random(seed).uniform(0, MAX_S))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _whole_lines(out: Path) -> bytes:
    data = out.read_bytes() if out.exists() else b""
    return data[: data.rfind(b"\n") + 1]


def main() -> None:
    source, out = map(Path, sys.argv[1:3])
    kills, seed = (int(each) for each in sys.argv[3:])
    before = b""
    for at in range(kills):
        _killed(source, out, seed=seed + at)
        now = _whole_lines(out)
        if not now.startswith(before):
            sys.exit(f"kill {at}: a finished line was lost")
        before = now
    pending = run_batch(source, out)
    print(before.count(b"\n"), pending.tally.skipped, pending.tally.finished)


if __name__ == "__main__":
    main()
