"""A long conversation at a fixed window, with scripted questions and short, greedy replies.

    python -m scripts.bench.chat > chat.jsonl

Prints the time to the first token of each turn and, every sixth turn, with everything read again.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

from scripts.bench.common import parser, show

# isort: split

import numpy as np

from mlxchat.bench.compare import settle
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.rendering import RESERVE
from mlxchat.chat.state import State, Turn
from mlxchat.engine.sampling import Token
from mlxchat.models.load import load
from mlxchat.models.model import Model
from mlxchat.settings import CacheSettings, GenerationSettings
from mlxchat.text.encoder import TokenIds
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
    options = parser(__doc__).parse_args()
    turns(Talk(load(options.model, offline=True), options.quick))


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

    def begin(self, *, whole: bool = False) -> Conversation:
        return Conversation(
            self.model,
            CacheSettings(None if whole else self.window),
            system=SYSTEM,
            generation=GenerationSettings(max_tokens=1 if whole else self.reply_tokens),
        )

    def said_tokens(self, turns: Sequence[Turn]) -> int:
        """The number of tokens ever said, up to where the last reply begins."""
        messages: list[ChatMessage] = []
        for turn in turns:
            messages.append(ChatMessage("user", turn.user))
            messages.append(ChatMessage("assistant", turn.reply, turn.ids))
        return len(self.model.tokenizer.chat(messages[:-1], SYSTEM).ids) if messages else 0


def turns(talk: Talk) -> None:
    """ "everything" is an empty cache without a window, which reads the same conversation."""
    conversation = talk.begin()
    list(talk.begin(whole=True).say(talk.questions[0]))
    for n, question in enumerate(talk.questions, start=1):
        before = [replace(turn, forgotten=False) for turn in conversation.turns]
        ask(talk, conversation, question, "shift")
        if n % talk.again_every == 0 or n == len(talk.questions):
            reader = talk.begin(whole=True)
            reader.resume(State(SYSTEM, turns=tuple(before)))
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
        forgotten_turns=len(conversation.state.forgotten),
        ttft_s=ttft_s,
    )


def _ids(turn: Turn) -> TokenIds:
    return np.empty(0, np.int32) if turn.ids is None else turn.ids


if __name__ == "__main__":
    main()
