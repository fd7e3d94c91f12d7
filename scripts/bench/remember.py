"""Standing instructions, sixty turns later: does the model still obey them?

    python -m scripts.bench.remember

Compares the log-probability of an answer that obeys with that of one that does not: instructions
are forgotten, quoted before the question, remembered, or said right before it.
"""

import csv
import statistics
from collections.abc import Sequence
from pathlib import Path

from scripts.bench.common import logprobs, parser, picked, show
from scripts.bench.facts import UNRELATED

# isort: split

import mlx.core as mx
import numpy as np

from mlxchat.chat.conversation import Conversation
from mlxchat.chat.state import State, Turn
from mlxchat.models.load import load
from mlxchat.models.model import Model
from mlxchat.settings import CacheSettings
from mlxchat.text.encoder import TokenIds

WINDOW, TURNS = 512, 60
WAYS = ("forgotten", "quoted", "remembered", "said last")


def main() -> None:
    options = parser(__doc__).parse_args()
    model = load(options.model, offline=True)
    path = Path(__file__).parent / "facts" / "standing.tsv"
    rows = list(csv.reader(path.read_text("utf-8").splitlines(), delimiter="\t", quotechar=None))
    fillers = [Turn(message, "Noted.") for message in UNRELATED[:TURNS]]
    for way in WAYS:
        margins: list[float] = []
        for instruction, question, *answers in rows[:2] if options.quick else rows:
            turns = [Turn(instruction, "Noted."), *fillers]
            prompt = prompt_of(model, turns, question, way)
            obeys, other = likelihoods(model, prompt, answers)
            margins.append(obeys - other)
        show(
            bench="remember",
            way=way,
            instructions=len(margins),
            obeying_is_likelier=sum(margin > 0 for margin in margins),
            margin=statistics.mean(margins),
        )


def prompt_of(model: Model, turns: Sequence[Turn], question: str, way: str) -> TokenIds:
    """The instruction is in the first of the turns."""
    chat = Conversation(model, CacheSettings(WINDOW))
    said = (*turns[1:], turns[0]) if way == "said last" else tuple(turns)
    chat.resume(State(turns=said))
    if way == "remembered":
        chat.remember(1)
    chat.say(question)
    assert chat.answering is not None
    if way == "quoted":
        chat.answering.recall = lambda _: [1]
    list(chat.answering.make_room())
    return chat.answering.prompt


def likelihoods(model: Model, prompt: TokenIds, answers: Sequence[str]) -> list[float]:
    """The logarithmic probability of each answer."""
    cache = model.make_cache(None)
    model.network(mx.array(prompt[:-1])[None], cache=cache)
    found: list[float] = []
    for own in map(model.tokenizer.encode, answers):
        ids = mx.array(np.concatenate([prompt[-1:], own])[:-1])
        found.append(picked(logprobs(model.network(ids[None], cache=cache.fork())[0]), own))
    return found


if __name__ == "__main__":
    main()
