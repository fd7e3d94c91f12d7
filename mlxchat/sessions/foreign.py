"""A conversation of another program, built message by message.

What a session cannot hold, such as images and tool calls, is counted by kind.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime

from mlxchat.chat.turn import Turn
from mlxchat.sessions.saved import Saved
from mlxchat.units import count

# The setting that identifies an imported conversation, so that it is not imported again.
SOURCE = "imported"
MOST_TITLE_CHARS = 1_000
# The text of a message of which nothing could be imported.
NOTHING = "[{}]"


@dataclass(slots=True)
class Foreign:
    """A conversation of another `program`, with its `id` there.

    `left_out` counts what has no place in a session, by the singular of its kind, such as "image".
    """

    program: str
    id: str
    title: str = ""
    updated_s: float | None = None
    left_out: Counter[str] = field(default_factory=Counter[str])
    system: str | None = None
    turns: list[Turn] = field(default_factory=list[Turn])

    def says(self, system: str) -> None:
        """Add a system prompt; a session has only one."""
        if self.system is None or self.system == system:
            self.system = system
        else:
            self.left_out["later system prompt"] += 1

    def asks(self, text: str, time: str = "", left_out: Counter[str] | None = None) -> None:
        """Begin a turn with the user's message, of which `left_out` could not be imported."""
        left_out = left_out or Counter()
        self.left_out += left_out
        if not text.strip() and left_out:
            text = NOTHING.format(listed(left_out))
        self.turns.append(Turn(text, time=time))

    def answers(self, reply: str = "", thought: str = "") -> None:
        """Add to the reply, or the thought, of the last turn."""
        if not (reply.strip() or thought.strip()):
            return
        if not self.turns:
            self.turns.append(Turn(""))
        turn = self.turns[-1]
        turn.reply = _joined(turn.reply, reply)
        turn.thought = _joined(turn.thought, thought)

    @property
    def source(self) -> str:
        """Identifies the conversation with all that was said; another one if it continues."""
        said = [self.id, self.system, *([turn.user, turn.reply] for turn in self.turns)]
        digest = hashlib.sha256(json.dumps(said).encode()).hexdigest()
        return f"{self.program} {digest[:32]}"

    @property
    def omissions(self) -> str:
        """What was left out, such as "3 images, 1 tool call"; empty if it is complete."""
        return listed(self.left_out)

    def saved(self, otherwise_s: float) -> Saved:
        """As it is saved; `otherwise_s` is when it was last used if that is unknown."""
        turns = self.turns
        for turn in turns:
            turn.user, turn.reply, turn.thought = map(
                _without_surrogates, (turn.user, turn.reply, turn.thought)
            )
        return Saved(
            system=None if self.system is None else _without_surrogates(self.system),
            turns=turns,
            serials=list(range(1, len(turns) + 1)),
            settings={SOURCE: self.source},
            updated_s=otherwise_s if self.updated_s is None else self.updated_s,
            last_serial=len(turns),
        )


def listed(kinds: Counter[str]) -> str:
    """How many there are of each kind, such as "3 images, 2 parts of an unknown kind"."""
    found = ((number, *kind.partition(" of ")) for kind, number in sorted(kinds.items()) if number)
    return ", ".join(count(number, noun) + of + rest for number, noun, of, rest in found)


def time_s(value: object) -> float | None:
    """A time in seconds since 1970, from a number or ISO 8601; None for anything else."""
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return datetime.fromtimestamp(value, UTC).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    return None


def time_text(value: object) -> str:
    """As the time of a turn; empty if it is not known."""
    seconds = time_s(value)
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _joined(before: str, after: str) -> str:
    return "\n\n".join(text for text in (before, after) if text.strip())


def _without_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
