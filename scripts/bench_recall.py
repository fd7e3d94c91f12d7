"""Search forgotten turns for planted facts: how many are found, and what is recalled wrongly.

    python -m scripts.bench_recall             # the set that is reported
    python -m scripts.bench_recall --tuning    # the sets on which the thresholds are tuned

The facts are planted among short turns, then among sentences and pages: of prose like what users
paste, or of Python's own documentation. Facts in long sentences are counted separately. No model
runs, so this shows what would be quoted, not what would be answered.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pydoc_data.topics import topics

from mlxchat.bench.recall import conversation
from mlxchat.bench.recall_reporting import REPORTING
from mlxchat.bench.recall_set import RecallSet
from mlxchat.chat.memory import Memory
from mlxchat.chat.turn import Turn
from mlxchat.chat.turns import Turns
from mlxchat.recall.said import sentences
from scripts import (
    recall_long,
    recall_prose,
    recall_tuning,
    recall_tuning_prose,
    recall_tuning_second,
    recall_tuning_third,
)

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


def documentation(half: int) -> str:
    """Every other page of Python's documentation of itself."""
    return "\n".join(topics[name] for name in sorted(topics)[half::2])


def single(text: str) -> list[str]:
    return [each for each in sentences(text) if len(each.split()) >= WORDS_OF_A_SENTENCE]


def pages(text: str) -> list[str]:
    words = text.split(" ")
    starts = range(0, len(words), WORDS_OF_A_PAGE)
    return [" ".join(words[start : start + WORDS_OF_A_PAGE]) for start in starts]


def of_each(sources: Sequence[str], divide: Callable[[str], list[str]]) -> list[str]:
    """The parts of one source in random order, then those of the next."""
    parts = map(divide, sources)
    return [each for own in parts for each in random.Random(0).sample(own, len(own))]


@dataclass(frozen=True, slots=True)
class _Set:
    planted: RecallSet
    long: LongFacts
    sources: Sequence[str]


def reported() -> _Set:
    return _Set(REPORTING, recall_long.LONG, [recall_prose.PROSE, documentation(1)])


def tuning_sets() -> list[_Set]:
    first, second, third = recall_tuning, recall_tuning_second, recall_tuning_third
    return [
        _Set(first.TUNING, first.LONG, [documentation(0)]),
        _Set(second.TUNING, second.LONG, [documentation(1)]),
        _Set(third.TUNING, third.LONG, [recall_tuning_prose.PROSE, documentation(0)]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tuning", action="store_true")
    for each in tuning_sets() if parser.parse_args().tuning else [reported()]:
        for what, lengths, among in (
            ("short turns", TURNS, []),
            ("sentences", SENTENCES, of_each(each.sources, single)),
            ("pages", PAGES, of_each(each.sources, pages)),
        ):
            for length in lengths:
                print(f"among {what}, {measure(each.planted, each.long, length, among)}")


if __name__ == "__main__":
    main()
