"""What the window forgot and a message needs: which turns to quote, and the quote."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from mlxchat.chat.turn import Turn
from mlxchat.chat.turns import Turns
from mlxchat.recall.choice import fits
from mlxchat.recall.excerpt import excerpt
from mlxchat.recall.index import Index

# A turn is quoted beside a better one if it fits nearly as well: a fact that changed.
NEARLY = 0.6
QUESTION_MARKS = ("?", "？", "؟")


class Memory:
    """An index of forgotten turns. Each is indexed once."""

    def __init__(self) -> None:
        self._index = Index()
        self._indexed: dict[int, tuple[str, str]] = {}

    def find(self, message: str, turns: Turns, at_most: int) -> list[int]:
        """The numbers of at most that many forgotten turns that the message needs, in order,
        counted from 1. None if nothing fits well, or a turn in view fits as well. Turns that were
        cleared away are never found."""
        self._update(turns)
        best: dict[int, float] = {}
        for fit in fits(self._index, message):
            number = fit.number // 2
            turn = turns[number - 1]
            if turn.forgotten and number > turns.cleared:
                # A question seldom has the answer.
                share = fit.share * (0.5 if _asks(turn) else 1)
                best[number] = max(best.get(number, 0), share)
        if not best or at_most < 1:
            return []
        top = max(best.values())
        if _in_view(message, turns.retained[:-1]) >= top:
            return []
        near = [number for number, share in best.items() if share >= NEARLY * top]
        near.sort(key=lambda number: (round(best[number], 6), number), reverse=True)
        return sorted(near[:at_most])

    def _update(self, turns: Turns) -> None:
        texts = {n: (turn.user, turn.reply) for n, turn in enumerate(turns, 1) if turn.forgotten}
        known = self._indexed.items()
        if any(n > len(turns) or texts.get(n, text) != text for n, text in known):
            # Turns were taken back, or others said in their place.
            self._index, self._indexed = Index(), {}
        for number in texts.keys() - self._indexed.keys():
            for place, text in enumerate(texts[number]):
                self._index.add(2 * number + place, text)
            self._indexed[number] = texts[number]


def _in_view(message: str, retained: Sequence[Turn]) -> float:
    """How well what was stated in view fits the message."""
    index = Index()
    for number, turn in enumerate(retained):
        if not _asks(turn):
            index.add(number, turn.user)
    return max((fit.share for fit in fits(index, message)), default=0.0)


def _asks(turn: Turn) -> bool:
    return turn.user.rstrip().endswith(QUESTION_MARKS)


def quote(turns: Sequence[Turn], numbers: Sequence[int], limit: int, *, replies: bool) -> str:
    """The turns as they were said; of each text at most `limit` characters, those around what the
    last turn asks about."""
    message = turns[-1].user
    parts: list[str] = []
    for number in numbers:
        turn = turns[number - 1]
        when = f"in turn {number}{_when(turn)}"
        part = f'(Earlier, {when}, I said: "{excerpt(turn.user, message, limit)}"'
        if replies and turn.reply.strip():
            part += f' You answered: "{excerpt(turn.reply, message, limit)}"'
        parts.append(f"{part})\n")
    return "".join([*parts, "\n"])


def _when(turn: Turn) -> str:
    """The local time, to the minute; empty if it is unknown."""
    try:
        time = datetime.fromisoformat(turn.time).astimezone()
    except ValueError:
        return ""
    return f" ({time:%Y-%m-%d %H:%M})"
