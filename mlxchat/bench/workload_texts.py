"""Prompts whose replies repeat more or less of what was read: from an edited file to prose.

Each may include the beginning of the reply, so that even a small model does what is asked. It ends
between two words, because a token may span the end of a line and the beginning of the next.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

SHIPS = ("Anchor", "Beacon", "Compass", "Dolphin", "Ensign", "Lantern", "Pelican", "Quay", "Tide")
NAMES = ("Ada", "Bruno", "Chidi", "Dagny", "Emeka", "Frida", "Goran", "Hanna")
TOWNS = ("Lisbon", "Bergen", "Cork", "Gdansk", "Palermo", "Odessa", "Rotterdam")

DOCUMENT = (
    "The lighthouse at Skerry Point was finished in 1871, three years late and at twice its price.",
    "Its builder, a quiet man from Bergen, had never seen the Atlantic before.",
    "He measured the rock in summer, when it was dry for six hours a day, and ordered granite "
    "for a tower of forty metres.",
    "In October the first storm carried off his crane, his boat and most of his drawings.",
    "The second attempt began with iron.",
    "Long bolts were sunk into the rock and filled with lead, and the lowest courses were cut "
    "so that every stone locked into its neighbours.",
    "Forty masons lived on an old coal barge, ate salted herring and played cards for buttons.",
    "A cook named Magnus kept a diary, which is the only reason that we know what the work was "
    "like.",
    "Magnus wrote about weather, soup and rumours.",
    "On the ninth of May a whale came close enough to wet the mortar.",
    "In July the pay was late again and the masons refused to row back until someone from the "
    "ministry came to explain.",
    "No answer came, but a sack of coins did, along with a barrel of very bad wine and a letter "
    "that blamed the post.",
    "When the lamp was lit at last, it could be seen from the hills above the town, and "
    "farmers who had never cared about ships walked up at night to look.",
    "The builder was not there.",
    "He had gone home in spring with a cough, and the newspaper gave him two lines under the "
    "price of oats.",
    "His tower still stands, although the lamp has been electric since 1958.",
)

REPLACED, REPLACEMENT = "lighthouse", "beacon"


class WorkloadName(StrEnum):
    """The replies that `decode` can measure, from much repetition to little."""

    ALL = "all"
    EDIT = "edit"
    QUOTE = "quote"
    RECORDS = "records"
    TABLE = "table"
    PROSE = "prose"
    CHAT = "chat"


@dataclass(frozen=True, slots=True)
class Workload:
    """Messages in turn, the first and the last by the user, and how the reply begins."""

    name: WorkloadName
    messages: tuple[str, ...]
    reply: str = ""


def workloads(*, quick: bool) -> Sequence[Workload]:
    """In order of how much their replies repeat. Quick ones read less."""
    lines, sentences, count = (40, 5, 6) if quick else (200, len(DOCUMENT), 40)
    return edit(lines), quote(sentences), records(count), table(count), PROSE, CHAT


def edit(lines: int) -> Workload:
    """Rename a function in a file of short functions, whose numbers show a small model where it
    is."""
    file = list(islice(_python_file(), lines))
    begun = _lines(file[: lines * 3 // 10]).replace(REPLACED, REPLACEMENT)
    request = f"Rename {REPLACED} to {REPLACEMENT}. Reply with the whole file."
    return Workload(
        WorkloadName.EDIT,
        (f"{request}\n\n```python\n{_lines(file)}```",),
        f"```python\n{begun.rstrip()}",
    )


def _python_file() -> Iterator[str]:
    words = (word for sentence in DOCUMENT for word in re.findall(r"\b[a-z]{5,}", sentence))
    for number, word in enumerate(dict.fromkeys(words), 1):
        yield from (f"def {word}():", f"    return {number}", "", "")


def quote(sentences: int) -> Workload:
    """Repeat a document with numbered sentences word for word."""
    document = [f"{n}. {text}" for n, text in enumerate(DOCUMENT[:sentences], 1)]
    return Workload(
        WorkloadName.QUOTE,
        (f"Quote the following text word for word.\n\n{_lines(document)}",),
        _lines(document[:2]).rstrip(),
    )


def _sailors(count: int) -> list[dict[str, str | float]]:
    return [
        {
            "name": NAMES[n % len(NAMES)],
            "town": TOWNS[n % len(TOWNS)],
            "born": 1950 + n * 7 % 50,
            "ship": SHIPS[n * 5 % len(SHIPS)],
            "pay": 20 + n * 37 % 90 / 4,
        }
        for n in range(count)
    ]


def _listed(sailors: Iterable[dict[str, str | float]]) -> str:
    return _lines("{name} from {town}, born {born}, {ship}, {pay}".format(**s) for s in sailors)


def records(count: int) -> Workload:
    """Write lines as JSON records with the same keys."""
    sailors = _sailors(count)
    request = "Write each sailor's name, town, year of birth, ship and pay as a JSON record."
    return Workload(
        WorkloadName.RECORDS,
        (f"{request}\n\n{_listed(sailors)}",),
        f"```json\n[\n{_lines(f'  {each},' for each in map(json.dumps, sailors[:4]))}".rstrip(),
    )


def table(count: int) -> Workload:
    """Write lines as a Markdown table."""
    sailors = _sailors(count)
    rows = ["| {name} | {town} | {born} | {ship} | {pay} |".format(**s) for s in sailors[:4]]
    request = "Write each sailor's name, town, year of birth, ship and pay into a Markdown table."
    head = ["| Name | Town | Born | Ship | Pay |", "| --- | --- | --- | --- | --- |"]
    return Workload(
        WorkloadName.TABLE,
        (f"{request}\n\n{_listed(sailors)}",),
        _lines([*head, *rows]).rstrip(),
    )


PROSE = Workload(
    WorkloadName.PROSE, ("Write a story about a lighthouse keeper who finds a letter in a bottle.",)
)
CHAT = Workload(
    WorkloadName.CHAT,
    (
        "Hi! I would like to bake bread for the first time. What do I need?",
        "You need flour, water, salt and yeast, a large bowl and an oven. A kitchen scale helps, "
        "because bread forgives wrong times more easily than wrong amounts.",
        "How long does the dough have to rest?",
        "About two hours in a warm room, or overnight in the fridge. It is ready when it has "
        "doubled in size.",
        "Why does it rise at all?",
    ),
)


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
