"""Tracks texts with known ids through a chat template.

A reply encoded again may yield other tokens than the model wrote. Marks around the texts whose ids
are known show which of them the template leaves unchanged.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

TokenIds = np.ndarray  # one dimension, int32


@dataclass(frozen=True, slots=True)
class Known:
    """A text, with its ids if known."""

    text: str
    ids: TokenIds | None = None


class Spans:
    """Marks texts that have ids; `mark` is a character that occurs in none of them."""

    def __init__(self, mark: str, texts: Sequence[Known]) -> None:
        self._mark = mark
        self._texts = texts
        self._any = re.compile(f"{mark}/?[0-9]+{mark}")

    def marked(self) -> list[str]:
        return [
            each.text if each.ids is None else f"{self._opening(i)}{each.text}{self._closing(i)}"
            for i, each in enumerate(self._texts)
        ]

    def split(self, rendered: str) -> list[Known]:
        """Split the rendered text into parts; those the template left unchanged get their ids."""
        parts: list[Known] = []
        for i, each in enumerate(self._texts):
            whole = f"{self._opening(i)}{each.text}{self._closing(i)}"
            if each.ids is None or rendered.count(whole) != 1:
                continue
            before, rendered = rendered.split(whole)
            parts += [Known(self._any.sub("", before)), each]
        return [*parts, Known(self._any.sub("", rendered))]

    def _opening(self, i: int) -> str:
        return f"{self._mark}{i}{self._mark}"

    def _closing(self, i: int) -> str:
        return f"{self._mark}/{i}{self._mark}"
