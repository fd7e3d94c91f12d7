"""Search forgotten turns for planted facts: how many are found, and what is recalled wrongly.

    python -m scripts.bench_recall             # the set that is reported
    python -m scripts.bench_recall --tuning    # the set on which the thresholds are tuned

No model runs, so this shows what would be quoted, not what would be answered.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from mlxchat.bench.recall import conversation
from mlxchat.bench.recall_reporting import REPORTING
from mlxchat.bench.recall_set import RecallSet
from mlxchat.chat.memory import Memory
from mlxchat.chat.turn import Turn
from mlxchat.chat.turns import Turns
from scripts.recall_tuning import TUNING

TURNS = (60, 200, 1_000)
AT_MOST = 2


def measure(planted: RecallSet, length: int) -> str:
    said, places = conversation(planted, length)
    turns = Turns()
    turns.become([*(replace(turn, forgotten=True) for turn in said), Turn("And now?")])
    memory = Memory()
    times_s: list[float] = []

    def find(message: str) -> Sequence[int]:
        began_s = time.perf_counter()
        found = memory.find(message, turns, AT_MOST)
        times_s.append(time.perf_counter() - began_s)
        return found

    found = sum({*places[fact.statement]} <= {*find(fact.question)} for fact in planted.facts)
    wrong = sum(bool(find(message)) for message in planted.unrelated)
    # The first search also indexes the turns, which a chat does as it forgets them.
    p95_ms = statistics.quantiles(times_s[1:], n=20)[-1] * 1e3
    return (
        f"{len(turns):,} turns: {found} of {len(planted.facts)} facts found, {wrong} of "
        f"{len(planted.unrelated)} unrelated messages recall something, "
        f"search {p95_ms:.1f} ms (p95)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tuning", action="store_true")
    planted = TUNING if parser.parse_args().tuning else REPORTING
    for length in TURNS:
        print(measure(planted, length))


if __name__ == "__main__":
    main()
