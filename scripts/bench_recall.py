"""Search forgotten turns for planted facts: how many are found, and what is recalled wrongly.

    python -m scripts.bench_recall             # the set that is reported
    python -m scripts.bench_recall --tuning    # the set on which the thresholds are tuned

No model runs, so this shows what would be quoted, not what would be answered.
"""

import argparse
import statistics
import time
from collections.abc import Sequence

from mlxchat.chat.memory import Memory
from mlxchat.chat.turn import Turn
from mlxchat.chat.turns import Turns
from scripts.recall_fact import RecallSet
from scripts.recall_reporting import REPORTING
from scripts.recall_tuning import TUNING

TURNS = (60, 200, 1_000)
AT_MOST = 2
FILLERS = (
    "What is special about {}?",
    "Tell me something about the history of {}.",
    "How would you describe {} to a friend?",
)


def conversation(planted: RecallSet, length: int) -> tuple[Turns, dict[str, list[int]]]:
    """About `length` forgotten turns and one in view, and by a fact's statement the numbers of the
    turns that state and change it."""
    said = [(fact.statement, fact) for fact in planted.facts]
    said += [(fact.change, fact) for fact in planted.facts if fact.change]
    between = max(1, (length - len(said)) // len(said))
    turns, places = Turns(), dict[str, list[int]]()
    for n, (text, fact) in enumerate(said):
        turns.append(forgotten(text))
        places.setdefault(fact.statement, []).append(len(turns))
        for m in range(between):
            topic = planted.topics[(n * between + m) % len(planted.topics)]
            turns.append(forgotten(FILLERS[(n + m) % len(FILLERS)].format(topic)))
    turns.append(Turn("And now?"))
    return turns, places


def forgotten(text: str) -> Turn:
    return Turn(text, "Noted.", finish_reason="stop", forgotten=True)


def measure(planted: RecallSet, length: int) -> str:
    turns, places = conversation(planted, length)
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
