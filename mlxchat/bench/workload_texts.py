"""Prompts whose replies repeat much or little of what was read: an edited file, prose, a chat.

Each may include the beginning of the reply, so that even a small model does what is asked. It ends
between two words, because a token may span the end of a line and the beginning of the next.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

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
)

REPLACED, REPLACEMENT = "lighthouse", "beacon"


class WorkloadName(StrEnum):
    """The replies that `decode` can measure, from much repetition to little."""

    ALL = "all"
    EDIT = "edit"
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
    return edit(40 if quick else 200), PROSE, CHAT


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
