"""Facts to plant in a conversation or a document, messages that need none of them, topics to put in
between, and whether a model answers as a fact did.

short.txt has a fact, a question about it in other words and its answer, and a fourth line if the
fact changes later; long.txt has facts as people state them in passing, and questions. All of it was
written by somebody who knew neither the rules of recall nor what they are tuned on. Never tune them
on it. A line of standing.tsv has what holds for a whole chat, a question, an answer that obeys and
one that does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.bench.common import logprobs, picked

# isort: split

import mlx.core as mx
import numpy as np

from mlxchat.cache.layers import Cache
from mlxchat.models.model import Model
from mlxchat.text.encoder import TokenIds

PREFILL_STEP = 512


@dataclass(frozen=True, slots=True)
class Fact:
    """If the fact changes later, `change` says how; `answer` is then the new one."""

    statement: str
    question: str
    answer: str
    change: str = ""


def _text(name: str) -> str:
    return (Path(__file__).parent / f"{name}.txt").read_text(encoding="utf-8")


def _blocks(name: str) -> list[list[str]]:
    return [block.splitlines() for block in _text(name).split("\n\n")]


SHORT = [Fact(*lines) for lines in _blocks("short")]
LONG = [(" ".join(statement), question) for *statement, question in _blocks("long")]
UNRELATED = _text("unrelated").splitlines()
TOPICS = _text("topics").splitlines()


class Answering:
    """Prompts that begin alike, as the prompts `some` and `others` do, which is read once, in a
    window or without."""

    def __init__(
        self, model: Model, some: TokenIds, others: TokenIds, window: int | None = None
    ) -> None:
        self._model, self._window = model, window
        self._begins = some[: common(some, others)]
        self._cache = self._read(self._begins, model.make_cache(window))

    def answer(self, prompt: TokenIds, fact: Fact) -> tuple[bool, float]:
        """Whether the answer is the model's likeliest in a reply that begins as the statement of
        the fact, and its logarithmic probability."""
        encode = self._model.tokenizer.encode
        begins = (fact.change or fact.statement).partition(fact.answer)[0].rstrip()
        lead, whole = encode(begins), encode(f"{begins} {fact.answer}".lstrip())
        own = whole[common(lead, whole) :]
        rows = self._logits(np.concatenate([prompt, whole]), len(own) + 1)[:-1]
        likeliest = bool((mx.argmax(rows, axis=-1) == mx.array(own)).all().item())
        return likeliest, picked(logprobs(rows), own)

    def _logits(self, ids: TokenIds, last: int) -> mx.array:
        """Logits `(last, V)` after the last tokens of `ids`."""
        done, cache = len(self._begins), self._cache.fork()
        if done >= len(ids) - last or common(self._begins, ids) < done:
            done, cache = 0, self._model.make_cache(self._window)
        cache = self._read(ids[done:-last], cache)
        return self._model.network(mx.array(ids[-last:])[None], cache=cache)[0]

    def _read(self, ids: TokenIds, cache: Cache) -> Cache:
        for start in range(0, len(ids), PREFILL_STEP):
            self._model.network(mx.array(ids[start : start + PREFILL_STEP])[None], cache=cache)
            mx.eval([layer.state for layer in cache])
        return cache


def common(known: Sequence[int] | TokenIds, ids: TokenIds) -> int:
    """How many of the first ids are the same."""
    length = min(len(known), len(ids))
    different = np.flatnonzero(known[:length] != ids[:length])
    return int(different[0]) if len(different) else length
