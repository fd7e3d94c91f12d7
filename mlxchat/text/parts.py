"""Prompts in parts, some of which are blocks: texts read once and cached for other prompts.

The caller marks the parts that are blocks; text is never searched for them. Each part is encoded
on its own, so that a block has the same ids in every prompt. Reading the ids is left to `blocks`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mlxchat.text.tokens import Prompt, Tokenizer
from mlxchat.units import Progress

# A shorter block is read as quickly as it is joined.
MIN_BLOCK_TOKENS = 64


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

    A block that is too short is treated as ordinary text, with a notice. `variables` are the
    template's own. `on_progress(done, total)` counts the characters of a part. Raises what
    `Tokenizer.message` raises.
    """
    notices: tuple[str, ...] = ()
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
            tokens = f"{stop - start} tokens, fewer than {MIN_BLOCK_TOKENS}"
            notices += (f"{part.name} is not kept as a block: it has {tokens}",)
        elif part.cache:
            blocks.append((start, stop))
    return Prompt(np.concatenate(encoded), notices, head=ends[0], blocks=tuple(blocks))


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Merge neighbouring parts that are not blocks, so that their text is encoded as a whole."""
    merged: list[Part] = []
    for part in parts:
        if merged and not part.cache and not merged[-1].cache:
            merged[-1] = replace(merged[-1], text=merged[-1].text + part.text)
        else:
            merged.append(part)
    return merged
