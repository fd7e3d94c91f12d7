"""Search forgotten turns for planted facts: how many are found, and what is recalled wrongly.

    python -m scripts.bench_recall             # the set that is reported
    python -m scripts.bench_recall --tuning    # the set on which the thresholds are tuned

The facts are planted among short turns, then among the sentences and the pages of Python's own
documentation; those in long sentences are counted separately. No model runs, so this shows what
would be quoted, not what would be answered.
"""

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pydoc_data.topics import topics

from mlxchat.bench.recall import conversation
from mlxchat.bench.recall_reporting import REPORTING
from mlxchat.bench.recall_set import RecallSet
from mlxchat.chat.memory import Memory
from mlxchat.chat.turn import Turn
from mlxchat.chat.turns import Turns
from mlxchat.recall.said import sentences
from scripts import recall_long
from scripts.recall_tuning import TUNING

TURNS = (60, 200, 1_000)
SENTENCES = (200, 1_000)
PAGES = (60, 200)
WORDS_OF_A_SENTENCE = 4
WORDS_OF_A_PAGE = 200
AT_MOST = 2

LongFacts = Sequence[tuple[str, str]]


def measure(planted: RecallSet, long: LongFacts, length: int, among: Sequence[str]) -> str:
    """Plant the facts among so many turns: those of a conversation, or these texts."""
    said, places = conversation(planted, length)
    if among:
        stated = {turn for numbers in places.values() for turn in numbers}
        texts = iter(among)
        said = [
            turn if number in stated else replace(turn, user=next(texts))
            for number, turn in enumerate(said, 1)
        ]
    said += [Turn(statement, "Noted.") for statement, _ in long]
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
    first = len(said) - len(long) + 1
    found_long = sum(number in find(question) for number, (_, question) in enumerate(long, first))
    wrong = sum(bool(find(message)) for message in planted.unrelated)
    # The first search also indexes the turns, which a chat does as it forgets them.
    p95_ms = statistics.quantiles(times_s[1:], n=20)[-1] * 1e3
    return (
        f"{len(said):,} turns: {found} of {len(planted.facts)} facts found, {found_long} of "
        f"{len(long)} long ones, {wrong} of {len(planted.unrelated)} unrelated messages recall "
        f"something, search {p95_ms:.1f} ms (p95)"
    )


def prose(half: int) -> str:
    """Every other page of Python's documentation of itself."""
    return "\n".join(topics[name] for name in sorted(topics)[half::2])


def shuffled(texts: Sequence[str]) -> list[str]:
    return random.Random(0).sample(texts, len(texts))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tuning", action="store_true")
    tuning = parser.parse_args().tuning
    planted = TUNING if tuning else REPORTING
    long = recall_long.TUNING if tuning else recall_long.REPORTING
    text = prose(0 if tuning else 1)
    single = [each for each in sentences(text) if len(each.split()) >= WORDS_OF_A_SENTENCE]
    words = text.split(" ")
    starts = range(0, len(words), WORDS_OF_A_PAGE)
    pages = [" ".join(words[start : start + WORDS_OF_A_PAGE]) for start in starts]
    for what, lengths, among in (
        ("short turns", TURNS, []),
        ("sentences", SENTENCES, shuffled(single)),
        ("pages", PAGES, shuffled(pages)),
    ):
        for length in lengths:
            print(f"among {what}, {measure(planted, long, length, among)}")


if __name__ == "__main__":
    main()
