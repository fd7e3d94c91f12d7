"""A fact planted in a conversation, to be asked for once it has left the window."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fact:
    """What the user says, a question about it in other words, and the answer.

    If the fact changes later, `change` says how; `answer` is then the new one.
    """

    statement: str
    question: str
    answer: str
    change: str = ""


@dataclass(frozen=True, slots=True)
class RecallSet:
    """Planted facts, messages that need no recall, and topics for the turns in between."""

    facts: tuple[Fact, ...]
    unrelated: tuple[str, ...]
    topics: tuple[str, ...]
