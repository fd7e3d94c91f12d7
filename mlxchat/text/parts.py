"""A prompt in parts, of which some are blocks: texts that are read once and kept for other prompts.

What is a block is said by the caller's parts, never found by what a text looks like. Each part is
encoded by itself, so that a block has the same ids in every prompt. Text becomes ids here; reading
them is `blocks`' business.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from mlxchat.progress import Progress
from mlxchat.text.tokens import Prompt, Tokenizer

# A shorter block is read as quickly as it is joined.
LEAST_BLOCK_TOKENS = 64

# Characters on both sides of a place that decide whether it is inside a word.
NEAR = 40


@dataclass(frozen=True, slots=True)
class Part:
    """Text of the user's message. `cache` marks it as a block, which notices call `name`."""

    text: str
    cache: bool = False
    name: str = "a block"


def encode_parts(
    tokenizer: Tokenizer,
    parts: Sequence[Part],
    system: str | None = None,
    *,
    raw: bool = False,
    variables: Mapping[str, Any] | None = None,
    on_progress: Progress | None = None,
) -> Prompt:
    """Encode the parts, one behind the other, as the user's message; with `raw`, as text alone.

    A block that is too short, or that begins or ends inside a word, is read as other text is: a
    notice says so. `variables` are the template's own. `on_progress(done, total)` counts the
    characters of a part. Raises what `Tokenizer.message` raises.
    """
    parts, notices = _without_cut_words(tokenizer, parts)
    # Behind the last part comes what the template writes: that belongs to no block.
    parts = _merged([*parts, Part("")])
    if raw:
        encoded = [tokenizer.raw_prompt("").ids]
        for part in parts:
            begins = len(encoded) == 1 and not part.cache
            encoded.append(tokenizer.encode(part.text, on_progress, begins=begins))
    else:
        texts = [part.text for part in parts]
        encoded = tokenizer.message(texts, system, on_progress, variables=variables)
        notices += tokenizer.system_notices(system)
    blocks: list[tuple[int, int]] = []
    ends = np.cumsum([len(ids) for ids in encoded]).tolist()
    for part, start, stop in zip(parts, ends, ends[1:], strict=False):
        if part.cache and stop - start < LEAST_BLOCK_TOKENS:
            notices += (_too_short(part, stop - start),)
        elif part.cache:
            blocks.append((start, stop))
    return Prompt(np.concatenate(encoded), notices, head=ends[0], blocks=tuple(blocks))


def _without_cut_words(
    tokenizer: Tokenizer, parts: Sequence[Part]
) -> tuple[list[Part], tuple[str, ...]]:
    """The parts, those that begin or end inside a word no longer blocks, and what is said of it."""
    cuts = [
        _is_inside_word(tokenizer, before.text, after.text) for before, after in pairwise(parts)
    ]
    checked: list[Part] = []
    notices: tuple[str, ...] = ()
    for part, begins, ends in zip(parts, [False, *cuts], [*cuts, False], strict=True):
        cut = part.cache and (begins or ends)
        checked.append(replace(part, cache=False) if cut else part)
        if cut:
            where = "begins" if begins else "ends"
            notices += (f"{part.name} {where} inside a word: it is read, but not kept",)
    return checked, notices


def _is_inside_word(tokenizer: Tokenizer, before: str, after: str) -> bool:
    """Whether a token of the whole text would reach over the place."""
    if not (before[-1:].isalnum() and after[:1].isalnum()):
        return False
    before, after = before[-NEAR:], after[:NEAR]
    apart = [tokenizer.encode(before), tokenizer.encode(after, begins=False)]
    return not np.array_equal(tokenizer.encode(before + after), np.concatenate(apart))


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Neighbours that are no blocks as one part, so that their text is encoded as a whole."""
    merged: list[Part] = []
    for part in parts:
        if merged and not part.cache and not merged[-1].cache:
            merged[-1] = replace(merged[-1], text=merged[-1].text + part.text)
        else:
            merged.append(part)
    return merged


def _too_short(part: Part, tokens: int) -> str:
    return (
        f"{part.name} has {tokens} tokens: it is read, but not kept, since with fewer than "
        f"{LEAST_BLOCK_TOKENS} there is nothing to gain"
    )
