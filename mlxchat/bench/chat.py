"""A conversation at a fixed window, turn by turn: the time to the first token for each way to make
room, and for reading everything again.

The questions are scripted; replies are greedy and short.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from mlxchat.bench.paired import Spread, settle
from mlxchat.bench.report import Chart, Point, Table, figure, middle, range_of, series
from mlxchat.bench.subject import Subject
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.eviction import RESERVE
from mlxchat.chat.turn import Turn
from mlxchat.engine.reply import Token
from mlxchat.models.model import Model
from mlxchat.settings import CacheSettings, GenerationSettings, Roll
from mlxchat.text.tokens import ChatMessage

SYSTEM = "You are a ship's cook called Zorblax. Answer in one short sentence."
TOPICS = ("bread", "storms", "onions", "maps", "whales", "rope", "salt", "stars", "cats", "pirates")
QUESTIONS = (
    "What do you think of {}?",
    "Tell me something that I may not know about {}.",
    "Why would anybody at sea care about {}?",
    "Compare {} with what we talked about before.",
    "What did your grandmother say about {}?",
    "Give me one rule about {} for the crew.",
)
EVERYTHING = "everything"
WAYS = (Roll.SHIFT, Roll.REFILL, EVERYTHING)


@dataclass(frozen=True, slots=True)
class Amounts:
    """`reply` is in tokens. Everything is read again at every `every`th turn and the last one."""

    turns: int
    reply: int
    least_window: int
    every: int


FULL = Amounts(turns=60, reply=24, least_window=512, every=6)
QUICK = Amounts(turns=9, reply=8, least_window=0, every=4)


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """`way` is a value of `--roll`, or "everything": an unbounded, empty cache.

    `own_tokens` are those the turn adds to the conversation before its reply; `ttft_s` is from the
    question to the first token, including eviction.
    """

    kind: ClassVar[str] = "turn"

    way: str
    turn: int
    max_kv_size: int | None
    own_tokens: int
    prefilled_tokens: int
    forgotten_turns: int
    ttft_s: float


def questions(count: int) -> list[str]:
    return [
        QUESTIONS[n % len(QUESTIONS)].format(TOPICS[n // len(QUESTIONS) % len(TOPICS)])
        for n in range(count)
    ]


def measure(subject: Subject) -> Iterator[Sequence[TurnFigures]]:
    """The ways take turns at every question, each in its own conversation; "everything" reads the
    one of shift."""
    amounts = QUICK if subject.quick else FULL
    model = subject.model
    window = _window(model, amounts)
    conversations = {
        roll: _conversation(model, window, roll, amounts.reply)
        for roll in (Roll.SHIFT, Roll.REFILL)
    }
    _warm_up(model)
    found: list[TurnFigures] = []
    for n, question in enumerate(questions(amounts.turns), start=1):
        before = [replace(turn, forgotten=False) for turn in conversations[Roll.SHIFT].turns]
        for roll, conversation in conversations.items():
            subject.tick(n - 1, amounts.turns, f"turn {n}, --roll {roll}")
            found.append(_ask(conversation, question, str(roll)))
            yield found
        if n % amounts.every == 0 or n == amounts.turns:
            subject.tick(n - 1, amounts.turns, f"turn {n}, reading everything again")
            reader = _conversation(model, None, Roll.SHIFT, 1)
            reader.resume(SYSTEM, before)
            found.append(_ask(reader, question, EVERYTHING))
            yield found
    subject.tick(amounts.turns, amounts.turns, "")


def _conversation(model: Model, window: int | None, roll: Roll, reply: int) -> Conversation:
    return Conversation(
        model,
        CacheSettings(window),
        system=SYSTEM,
        roll=roll,
        generation=GenerationSettings(max_tokens=reply),
    )


def _window(model: Model, amounts: Amounts) -> int:
    """Room for the system prompt and about four turns, so that it fills up before the end."""
    first, second = questions(2)
    beginning = len(_rendered(model, [Turn(first)]))
    own = len(_rendered(model, [Turn(first), Turn(second)])) - beginning + amounts.reply
    return max(amounts.least_window, beginning + 2 * RESERVE + 2 * own)


def _warm_up(model: Model) -> None:
    list(_conversation(model, None, Roll.SHIFT, 1).say(questions(1)[0]))


def _ask(conversation: Conversation, question: str, way: str) -> TurnFigures:
    settle()
    before = len(_rendered(conversation.model, conversation.turns)) if conversation.turns else 0
    said = conversation.turns[-1].ids if conversation.turns else None
    started_s = time.perf_counter()
    ttft_s = 0.0
    for each in conversation.say(question):
        if isinstance(each, Token) and not ttft_s:
            ttft_s = time.perf_counter() - started_s
    stats = conversation.stats
    assert stats is not None
    now = len(_rendered(conversation.model, conversation.turns))
    return TurnFigures(
        way=way,
        turn=len(conversation.turns),
        max_kv_size=conversation.settings.max_kv_size,
        own_tokens=now - before - (0 if said is None else len(said)),
        prefilled_tokens=stats.prompt_tokens - stats.cached_tokens,
        forgotten_turns=len(conversation.forgotten),
        ttft_s=ttft_s,
    )


def _rendered(model: Model, turns: Sequence[Turn]) -> Sequence[int]:
    """Everything ever said, up to where the last reply begins."""
    messages: list[ChatMessage] = []
    for turn in turns:
        messages.append(ChatMessage("user", turn.user))
        messages.append(ChatMessage("assistant", turn.reply, turn.ids if turn.exact else None))
    return model.tokenizer.chat(messages[:-1], SYSTEM).ids.tolist()


def tables(found: Sequence[TurnFigures]) -> Sequence[Table]:
    """The first turns, except the very first, and the last ones."""
    last_turn = max(each.turn for each in found)
    ends = min(10, max(last_turn // 3, 1))
    rows = [
        (way, name, *_cells([each for each in part if each.turn in turns]))
        for way in WAYS
        if (part := [each for each in found if each.way == way])
        for name, turns in (
            (_from_to(2, 1 + ends), range(2, 2 + ends)),
            (_from_to(last_turn - ends + 1, last_turn), range(last_turn - ends + 1, last_turn + 1)),
        )
        if any(each.turn in turns for each in part)
    ]
    window = next(each.max_kv_size for each in found if each.max_kv_size is not None)
    forgotten = max(each.forgotten_turns for each in found)
    return [
        Table(
            f"A conversation of {last_turn} turns at a window of {window}; medians",
            ("WAY", "TURNS", "OWN TOKENS", "PREFILLED", "FIRST TOKEN S", "RANGE", "COUNTED"),
            tuple(rows),
            (
                f"{forgotten} turns were forgotten; {EVERYTHING!r} is an unbounded cache that "
                "reads all turns again, at some turns.",
            ),
        )
    ]


def _from_to(first: int, last: int) -> str:
    return str(last) if first == last else f"{first} to {last}"


def _cells(found: Sequence[TurnFigures]) -> tuple[str, ...]:
    ttft_s = Spread.of([each.ttft_s for each in found])
    return (
        figure(statistics.median(each.own_tokens for each in found)),
        figure(statistics.median(each.prefilled_tokens for each in found)),
        middle(ttft_s),
        range_of(ttft_s),
        str(len(found)),
    )


def charts(found: Sequence[TurnFigures]) -> Sequence[Chart]:
    def chart(name: str, title: str, y: str, pick: str) -> Chart:
        points = [(each.way, Point.single(each.turn, getattr(each, pick))) for each in found]
        return Chart(name, title, "turn", y, "lines", series(points))

    return [
        chart("chat-first-token", "Waiting for a reply", "seconds to the first token", "ttft_s"),
        chart("chat-prefilled", "Tokens read for a reply", "tokens", "prefilled_tokens"),
    ]
