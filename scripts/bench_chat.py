"""Measure how forgetting changes what the model says in a long conversation at a fixed window.

    python -m scripts.bench_chat system|divergence [-m MODEL] [--turns 60] [--window 512]

system      whether the system prompt still works at the last turn: the log-probability of the name
            it sets, with and without the prompt pinned
divergence  mean KL divergence (nats per token) of shift's next-token distributions from refill's,
            on the user's turns of the same conversation

The questions are those of `mlxchat bench chat`, which measures what a turn takes.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import mlxchat  # noqa: F401  first, so that OpenBLAS and mlx-lm's modules are prepared

# isort: split

import mlx.core as mx
import numpy as np

from mlxchat.bench.chat import FULL, SYSTEM, questions
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.turn import Turn
from mlxchat.engine.loops import prefill
from mlxchat.models.load import load
from mlxchat.models.model import Model
from mlxchat.settings import CacheSettings, GenerationSettings, Roll


def converse(model: Model, window: int | None, roll: Roll, system: str | None) -> Conversation:
    return Conversation(
        model,
        CacheSettings(window),
        system=system,
        roll=roll,
        generation=GenerationSettings(max_tokens=FULL.reply),
    )


def system(model: Model, window: int, turns: int) -> None:
    asked, answer = "What is your name?", "My name is Zorblax"
    for name, text in (("pinned", SYSTEM), ("without", None)):
        conversation = converse(model, window, Roll.SHIFT, text)
        for question in questions(turns - 1):
            list(conversation.say(question))
        logprobs = _read(conversation, asked)
        ids = model.tokenizer.encode(answer)
        logits = model.network(mx.array(ids)[None], cache=conversation.cache)[0]
        told = mx.concatenate([logprobs[-1:], _logprobs(logits)])[: len(ids)]
        total: Any = mx.take_along_axis(told, mx.array(ids)[:, None], axis=1).sum().item()
        print(f"system prompt {name:8} turn {turns}: log-probability of {answer!r} {total:8.2f}")


def divergence(model: Model, window: int, turns: int) -> None:
    """Both read the same conversation, the one from shift."""
    source = converse(model, window, Roll.SHIFT, SYSTEM)
    for question in questions(turns):
        list(source.say(question))
    readers = {roll: converse(model, window, roll, SYSTEM) for roll in (Roll.SHIFT, Roll.REFILL)}
    by_turn: list[float] = []
    for turn in source.turns:
        found = {roll: _read(reader, turn.user) for roll, reader in readers.items()}
        n = min(len(rows) for rows in found.values())
        kept, afresh = found[Roll.SHIFT][-n:], found[Roll.REFILL][-n:]
        kl: Any = (mx.exp(afresh) * (afresh - kept)).sum(axis=1).mean().item()
        by_turn.append(kl)
        for reader in readers.values():
            _answer_with(reader, turn)
    forgotten = len(readers[Roll.SHIFT].forgotten)
    in_view = turns - forgotten
    print(f"turns 1 to {in_view}, almost all still in view: mean KL {_mean(by_turn[:in_view])}")
    print(f"the {forgotten} turns after them: mean KL {_mean(by_turn[in_view:])}")


def _mean(values: list[float]) -> str:
    return f"{statistics.mean(values):.4f} nats per token" if values else "none"


def _logprobs(logits: mx.array) -> mx.array:
    logits = logits.astype(mx.float32)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _read(conversation: Conversation, text: str) -> mx.array:
    """Say it without asking for an answer; log-probabilities `(T, vocabulary)` of its tokens."""
    conversation.view.begin_turn()
    conversation.turns.append(Turn(text))
    list(conversation.view.make_room(lambda _, __: None))
    ids = conversation.view.prompt
    # However much was prefilled, return only the last turn's own tokens.
    own = len(ids) - len(conversation.view.render([*conversation.retained[:-1], Turn("")]))
    cached = min(conversation.view.begin(ids)[0], len(ids) - own)
    first = ids[len(conversation.held_ids) : len(ids) - own]
    prefill(
        conversation.model.network,
        conversation.cache,
        first,
        step_size=512,
        on_held=conversation.ledger.add,
    )
    rest = ids[max(cached, len(ids) - own) :]
    logits = conversation.model.network(mx.array(rest)[None], cache=conversation.cache)[0]
    conversation.ledger.add(rest)
    mx.eval(logits)
    return _logprobs(logits)


def _answer_with(conversation: Conversation, turn: Turn) -> None:
    """Add a given reply after the tokens read so far."""
    answered = conversation.turns[-1]
    answered.reply, answered.ids, answered.exact = turn.reply, turn.ids, turn.exact
    ids = turn.ids if turn.ids is not None else np.empty(0, np.int32)
    prefill(
        conversation.model.network,
        conversation.cache,
        ids,
        step_size=512,
        on_held=conversation.ledger.add,
    )


RUNS: dict[str, Callable[[Model, int, int], None]] = {
    "system": system,
    "divergence": divergence,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=list(RUNS))
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--window", type=int, default=512)
    options = parser.parse_args()
    RUNS[options.what](load(options.model, offline=True), options.window, options.turns)


if __name__ == "__main__":
    main()
