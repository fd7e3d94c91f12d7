"""Ranks that run any number of commands, since starting the ranks takes the most time.

    python -m tests.ring_program

Each line of stdin is a command: its arguments, its input and its environment. Each line of stdout
is its result. This cannot show that a new process starts without the state of an earlier one.
"""

import json
import os
import sys
from dataclasses import replace

from mlxchat.bench import decode
from mlxchat.distributed import Ranks
from tests.in_process import run_in_process


def main() -> None:
    # The tests do not look at durations.
    decode.QUICK = replace(decode.QUICK, stretches=1, rounds=1)
    ring = Ranks.join()
    Ranks.join = classmethod(lambda _: Ranks(ring.group))  # type: ignore[assignment]
    for line in sys.stdin:
        command = json.loads(line)
        os.environ.update(command["environment"])
        done = run_in_process(*command["arguments"], stdin=command["stdin"])
        print(json.dumps([done.returncode, done.stdout, done.stderr]), flush=True)


if __name__ == "__main__":
    main()
