"""Writes a short text, such as a note about turns or an answer from a section of a document: only
what is said once, in whole sentences."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from mlxchat.engine.generate import generate
from mlxchat.engine.reply import LoopDetector, Reply, asked

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
# The number of an item that was cut off ends no sentence.
LIST_NUMBER = re.compile(r"\n[\s*_#]*(?:\d+|[a-zA-Z])\.\Z")


def write_brief(
    reply: Reply,
    limit: int,
    should_stop: Callable[[], bool],
    *,
    on_tokens: Callable[[int], object] = lambda tokens: None,
    **how: Any,
) -> str:
    """Generate a text of at most `limit` tokens besides thoughts; empty if the model wrote nothing.

    `how` are other arguments of `generate`; `on_tokens` is called with the number of tokens so far.
    The finish reason is "interrupted" if `should_stop` stopped it, "loop" if it repeats itself.
    """
    text, tokens, repeated = "", 0, 0
    enough = asked(lambda: tokens >= limit or repeated >= MAX_REPEATED, "length")
    for token in generate(reply, ends=[asked(should_stop), LoopDetector(), enough], **how):
        if not token.thought:
            text += token.text
            tokens += token.id is not None
            on_tokens(tokens)
        if token.text.rstrip(" ").endswith(tuple(SENTENCE_ENDS)):
            repeated = said_once(text)[1]
    if reply.finish_reason != "stop":
        text = up_to_a_sentence(text.strip())
    text = said_once(text)[0]
    # Characters that were generated in part have more tokens than were generated.
    while (size := len(reply.model.tokenizer.encode(text))) > limit:
        text = up_to_a_sentence(text[: len(text) * (limit - SPARE_TOKENS) // size])
    return text


def said_once(text: str) -> tuple[str, int]:
    """The text without repeated sentences, and how many of the last ones those are."""
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
    whole = LIST_NUMBER.sub("", text[:end].rstrip()).rstrip()
    return whole if 2 * len(whole) >= len(text) else f"{text} …"
