"""A long conversation at a fixed window, with scripted questions and short, greedy replies.

    python -m scripts.bench.chat turns > chat.jsonl
    python -m scripts.bench.chat divergence|system

turns       the time to the first token of each turn, with each way to make room and, at every sixth
            turn, with everything read again
divergence  mean KL divergence (nats per token) of shift's next-token distributions from refill's,
            on the user's turns of the same conversation
system      whether the system prompt still works at the last turn: the log-probability of the name
            it sets, with and without the prompt
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from scripts.bench.common import kl_divergence, logprobs, parser, picked, settle, show

# isort: split

import mlx.core as mx
import numpy as np

from mlxchat.chat.conversation import Conversation
from mlxchat.chat.eviction import RESERVE
from mlxchat.chat.turn import Turn
from mlxchat.engine.loops import prefill
from mlxchat.engine.reply import Token
from mlxchat.models.load import load
from mlxchat.models.model import Model
from mlxchat.settings import CacheSettings, GenerationSettings, Roll
from mlxchat.text.spans import TokenIds
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


def main() -> None:
    options_of = parser(__doc__)
    options_of.add_argument("what", choices=[run.__name__ for run in RUNS])
    options = options_of.parse_args()
    talk = Talk(load(options.model, offline=True), options.quick)
    next(run for run in RUNS if run.__name__ == options.what)(talk)


class Talk:
    """The questions, and a window in which the conversation does not fit."""

    def __init__(self, model: Model, quick: bool) -> None:
        self.model = model
        self.reply_tokens, turns, self.again_every = (8, 9, 4) if quick else (24, 60, 6)
        self.questions = [
            QUESTIONS[n % len(QUESTIONS)].format(TOPICS[n // len(QUESTIONS) % len(TOPICS)])
            for n in range(turns)
        ]
        first, second = (Turn(each) for each in self.questions[:2])
        beginning, both = (self.said_tokens(each) for each in ([first], [first, second]))
        # Room for the system prompt and about four turns.
        least = beginning + 2 * RESERVE + 2 * (both - beginning + self.reply_tokens)
        self.window = least if quick else max(512, least)

    def begin(
        self, roll: Roll = Roll.SHIFT, system: str | None = SYSTEM, *, whole: bool = False
    ) -> Conversation:
        return Conversation(
            self.model,
            CacheSettings(None if whole else self.window),
            system=system,
            roll=roll,
            generation=GenerationSettings(max_tokens=1 if whole else self.reply_tokens),
        )

    def said_tokens(self, turns: Sequence[Turn]) -> int:
        """The number of tokens ever said, up to where the last reply begins."""
        messages: list[ChatMessage] = []
        for turn in turns:
            messages.append(ChatMessage("user", turn.user))
            messages.append(ChatMessage("assistant", turn.reply, turn.ids if turn.exact else None))
        return len(self.model.tokenizer.chat(messages[:-1], SYSTEM).ids) if messages else 0


def turns(talk: Talk) -> None:
    """The ways take turns at every question, each in its own conversation; "everything" is an empty
    cache without a window, which reads the conversation of shift."""
    ways = {roll: talk.begin(roll) for roll in (Roll.SHIFT, Roll.REFILL)}
    list(talk.begin(whole=True).say(talk.questions[0]))
    for n, question in enumerate(talk.questions, start=1):
        before = [replace(turn, forgotten=False) for turn in ways[Roll.SHIFT].turns]
        for roll, conversation in ways.items():
            ask(talk, conversation, question, str(roll))
        if n % talk.again_every == 0 or n == len(talk.questions):
            reader = talk.begin(whole=True)
            reader.resume(SYSTEM, before)
            ask(talk, reader, question, "everything")


def ask(talk: Talk, conversation: Conversation, question: str, way: str) -> None:
    settle()
    turns = conversation.turns
    before = talk.said_tokens(turns) + len(_ids(turns[-1])) if turns else 0
    started_s = time.perf_counter()
    ttft_s = 0.0
    for each in conversation.say(question):
        if isinstance(each, Token) and not ttft_s:
            ttft_s = time.perf_counter() - started_s
    stats = conversation.stats
    assert stats is not None
    show(
        bench="chat",
        way=way,
        turn=len(conversation.turns),
        own_tokens=talk.said_tokens(conversation.turns) - before,
        prefilled_tokens=stats.prompt_tokens - stats.cached_tokens,
        forgotten_turns=len(conversation.forgotten),
        ttft_s=ttft_s,
    )


def divergence(talk: Talk) -> None:
    """Both read the same conversation, the one from shift."""
    source = talk.begin()
    for question in talk.questions:
        list(source.say(question))
    shift, refill = talk.begin(Roll.SHIFT), talk.begin(Roll.REFILL)
    by_turn: list[float] = []
    for turn in source.turns:
        kept, afresh = read(shift, turn.user), read(refill, turn.user)
        n = min(len(kept), len(afresh))
        by_turn.append(kl_divergence(afresh[-n:], kept[-n:]))
        for reader in (shift, refill):
            answer_with(reader, turn)
    in_view = len(source.turns) - len(shift.forgotten)
    for name, part in (("almost all in view", by_turn[:in_view]), ("after", by_turn[in_view:])):
        show(bench="chat", turns=name, count=len(part), mean_kl=statistics.mean(part or [0.0]))


def system(talk: Talk) -> None:
    for pinned in (SYSTEM, None):
        conversation = talk.begin(system=pinned)
        for question in talk.questions[:-1]:
            list(conversation.say(question))
        asked = read(conversation, "What is your name?")
        ids = talk.model.tokenizer.encode("My name is Zorblax")
        logits = talk.model.network(mx.array(ids)[None], cache=conversation.cache)[0]
        found = picked(mx.concatenate([asked[-1:], logprobs(logits)])[: len(ids)], ids)
        turn = len(conversation.turns)
        show(bench="chat", system_prompt=pinned is not None, turn=turn, logprob=found)


def read(conversation: Conversation, text: str) -> mx.array:
    """Say it without asking for an answer; log-probabilities `(T, V)` after its tokens."""
    conversation.view.begin_turn()
    conversation.turns.append(Turn(text))
    list(conversation.view.make_room(lambda _, __: None))
    ids = conversation.view.prompt
    # However much was prefilled, return only the last turn's own tokens.
    own = len(ids) - len(conversation.view.render([*conversation.retained[:-1], Turn("")]))
    cached = min(conversation.view.begin(ids)[0], len(ids) - own)
    read_into(conversation, ids[len(conversation.held_ids) : len(ids) - own])
    rest = ids[max(cached, len(ids) - own) :]
    logits = conversation.model.network(mx.array(rest)[None], cache=conversation.cache)[0]
    conversation.ledger.add(rest)
    mx.eval(logits)
    return logprobs(logits)


def answer_with(conversation: Conversation, turn: Turn) -> None:
    """Add a given reply after the tokens read so far."""
    answered = conversation.turns[-1]
    answered.reply, answered.ids, answered.exact = turn.reply, turn.ids, turn.exact
    read_into(conversation, _ids(turn))


def read_into(conversation: Conversation, ids: TokenIds) -> None:
    network, on_held = conversation.model.network, conversation.ledger.add
    prefill(network, conversation.cache, ids, step_size=512, on_held=on_held)


def _ids(turn: Turn) -> TokenIds:
    return np.empty(0, np.int32) if turn.ids is None else turn.ids


RUNS = (turns, divergence, system)

if __name__ == "__main__":
    main()
