"""Whether a model would answer a question as a fact did: how likely it finds the right answer in a
reply that begins as the statement of the fact."""

from typing import Any

import mlx.core as mx
import numpy as np

from mlxchat.bench.recall_set import Fact
from mlxchat.cache import Cache
from mlxchat.models.model import Model
from mlxchat.text.spans import TokenIds

PREFILL_STEP = 512


class Answering:
    """Prompts that begin with the ids `begins`, which are read once, in a window or without."""

    def __init__(
        self, model: Model, begins: TokenIds, window: int | None = None, keep: int = 4
    ) -> None:
        self._model = model
        self._window, self._keep = window, keep
        self._begins = begins
        self._cache = self._read(begins, self._empty())

    def answer(self, prompt: TokenIds, fact: Fact) -> tuple[bool, float]:
        """Whether the answer is the model's likeliest, and its logarithmic probability."""
        encode = self._model.tokenizer.encode
        begins = (fact.change or fact.statement).partition(fact.answer)[0].rstrip()
        lead, whole = encode(begins), encode(f"{begins} {fact.answer}".lstrip())
        own = whole[common(lead, whole) :]
        logits = self._logits(np.concatenate([prompt, whole]), len(own) + 1)[:-1]
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        each = mx.take_along_axis(logprobs, mx.array(own)[:, None], axis=-1)
        likeliest: Any = (mx.argmax(logits, axis=-1) == mx.array(own)).all().item()
        total: Any = each.sum().item()
        return likeliest, total

    def _logits(self, ids: TokenIds, last: int) -> mx.array:
        """Logits `(last, V)` after the last tokens of `ids`."""
        known = self._begins
        begins = len(known) < len(ids) - last and common(known, ids) == len(known)
        done, cache = (len(known), self._cache.fork()) if begins else (0, self._empty())
        cache = self._read(ids[done:-last], cache)
        return self._model.network(mx.array(ids[-last:])[None], cache=cache)[0].astype(mx.float32)

    def _read(self, ids: TokenIds, cache: Cache) -> Cache:
        for start in range(0, len(ids), PREFILL_STEP):
            self._model.network(mx.array(ids[start : start + PREFILL_STEP])[None], cache=cache)
            mx.eval([layer.state for layer in cache])
        return cache

    def _empty(self) -> Cache:
        return self._model.make_cache(self._window, self._keep)


def common(known: TokenIds, ids: TokenIds) -> int:
    """How many of the first ids are the same."""
    length = min(len(known), len(ids))
    different = np.flatnonzero(known[:length] != ids[:length])
    return int(different[0]) if len(different) else length
