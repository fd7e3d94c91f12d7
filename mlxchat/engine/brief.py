"""Writes a short text, such as a note about turns or an answer from a section of a document: only
what is said once, in whole sentences."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from mlxchat.cache import Cache
from mlxchat.engine.generate import Generation, Stats
from mlxchat.engine.repetition import LoopDetector
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings
from mlxchat.text.spans import TokenIds

# A text may have more tokens than it was written with.
SPARE_TOKENS = 8
# A text is about facts: no higher temperature is used.
MAX_TEMP = 0.3
SENTENCE_ENDS = ".!?…。！？\n"
# A full stop within a number ends nothing.
SENTENCE = re.compile(r".+?(?:[.!?…]+\s+|[。！？]+\s*|\n\s*|$)", re.DOTALL)
# Characters of a sentence that may not be repeated, at least.
MIN_REPEATED_CHARS = 12
# After this many repeated sentences, nothing new is expected.
MAX_REPEATED = 2


class Brief:
    """A text of at most `limit` tokens, besides thoughts; with them it has at most `max_tokens`.

    `how` are other arguments of Generation. `is_stopped` is called between its steps, `on_tokens`
    with the number of tokens so far. After `write`, `looping` is whether the text repeated itself,
    `stopped` whether it was stopped, and `stats` is the cost.
    """

    def __init__(
        self,
        model: Model,
        ids: TokenIds,
        cache: Cache,
        *,
        limit: int,
        max_tokens: int,
        is_stopped: Callable[[], bool],
        on_tokens: Callable[[int], object] = lambda tokens: None,
        **how: Any,
    ) -> None:
        self._model = model
        self._limit = limit
        self._is_stopped = is_stopped
        self._on_tokens = on_tokens
        self._loop = LoopDetector()
        self._tokens = self._repeated = 0
        self._generation = Generation(
            model,
            ids,
            cache,
            settings=GenerationSettings(max_tokens=max_tokens),
            reply=model.tokenizer.reader(ids),
            should_stop=self._is_over,
            **how,
        )
        self.stopped = False

    @property
    def looping(self) -> bool:
        return self._loop.looping

    @property
    def stats(self) -> Stats:
        return self._generation.stats

    def write(self) -> str:
        """Generate the text. Empty if the model wrote nothing."""
        text = ""
        for token in self._generation:
            if token.id is not None:
                self._loop.add(token.id)
            if not token.thought:
                text += token.text
                self._tokens += token.id is not None
                self._on_tokens(self._tokens)
            if token.text.rstrip(" ").endswith(tuple(SENTENCE_ENDS)):
                self._repeated = said_once(text)[1]
        text = text.strip()
        if self.stats.finish_reason != "stop":
            text = up_to_a_sentence(text)
        return self._within_limit(said_once(text)[0])

    def _is_over(self) -> bool:
        self.stopped = self.stopped or self._is_stopped()
        is_long = self._tokens >= self._limit or self._repeated >= MAX_REPEATED
        return self.stopped or is_long or self._loop.looping

    def _within_limit(self, text: str) -> str:
        """Characters that were generated in part have more tokens than were generated."""
        while (tokens := len(self._model.tokenizer.encode(text))) > self._limit:
            chars = len(text) * (self._limit - SPARE_TOKENS) // tokens
            text = up_to_a_sentence(text[:chars])
        return text


def said_once(text: str) -> tuple[str, int]:
    """The text without sentences that it has already, and how many of its last ones those are:
    small models repeat themselves."""
    kept, seen, repeated = "", set[str](), 0
    for sentence in SENTENCE.findall(text):
        words = sentence.strip()
        repeated = repeated + 1 if words in seen else 0
        if not repeated:
            kept += sentence
        if len(words) >= MIN_REPEATED_CHARS:
            seen.add(words)
    return kept.strip(), repeated


def up_to_a_sentence(text: str) -> str:
    """A text that was cut off, up to its last sentence, unless that is less than half of it."""
    end = max(text.rfind(each) for each in SENTENCE_ENDS) + 1
    return text[:end].rstrip() if 2 * end >= len(text) else f"{text} …"
