"""Prompts in parts, some of which are blocks: texts read once and cached for other prompts.

The caller marks the parts that are blocks; text is never searched for them. Each part is encoded
on its own, so that a block has the same ids in every prompt. Reading the ids is left to `blocks`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from mlxchat.progress import Progress
from mlxchat.text.tokens import Prompt, Tokenizer

# A shorter block is read as quickly as it is joined.
MIN_BLOCK_TOKENS = 64

# Characters on each side of a boundary that decide whether it is inside a word.
NEAR = 40


@dataclass(frozen=True, slots=True)
class Part:
    """Text in the user's message. `cache` makes it a block, which notices call `name`."""

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
    """Encode the concatenated parts as the user's message, or with `raw` as plain text.

    A block that is too short, or begins or ends inside a word, is treated as ordinary text, with a
    notice. `variables` are the template's own. `on_progress(done, total)` counts the characters of
    a part. Raises what `Tokenizer.message` raises.
    """
    parts, notices = _without_cut_words(tokenizer, parts)
    # An empty last part takes what the template appends, so that no block contains it.
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
        if part.cache and stop - start < MIN_BLOCK_TOKENS:
            notices += (_too_short(part, stop - start),)
        elif part.cache:
            blocks.append((start, stop))
    return Prompt(np.concatenate(encoded), notices, head=ends[0], blocks=tuple(blocks))


def _without_cut_words(
    tokenizer: Tokenizer, parts: Sequence[Part]
) -> tuple[list[Part], tuple[str, ...]]:
    """Make ordinary parts of blocks that begin or end inside a word; return the notices too."""
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
            notices += (f"{part.name} is not kept as a block: it {where} inside a word",)
    return checked, notices


def _is_inside_word(tokenizer: Tokenizer, before: str, after: str) -> bool:
    """Whether a token would span the boundary between the two texts."""
    if not (before[-1:].isalnum() and after[:1].isalnum()):
        return False
    before, after = before[-NEAR:], after[:NEAR]
    apart = [tokenizer.encode(before), tokenizer.encode(after, begins=False)]
    return not np.array_equal(tokenizer.encode(before + after), np.concatenate(apart))


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Merge neighbouring parts that are not blocks, so that their text is encoded as a whole."""
    merged: list[Part] = []
    for part in parts:
        if merged and not part.cache and not merged[-1].cache:
            merged[-1] = replace(merged[-1], text=merged[-1].text + part.text)
        else:
            merged.append(part)
    return merged


def _too_short(part: Part, tokens: int) -> str:
    return (
        f"{part.name} is not kept as a block: it has {tokens} tokens, fewer than {MIN_BLOCK_TOKENS}"
    )
