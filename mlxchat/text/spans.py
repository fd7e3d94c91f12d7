"""Texts given to a chat template, each with the ids that it is known by, and what comes of them.

Encoded again, a text may come apart into other tokens than those the model has written. So marks
are put around the texts whose ids are known, to find which of them a template writes as they are.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

TokenIds = np.ndarray  # one dimension, int32


@dataclass(frozen=True, slots=True)
class Known:
    """A text, and its ids if they are known."""

    text: str
    ids: TokenIds | None = None


class Spans:
    """Marks around the texts with ids; `mark` is a character that occurs in none of them."""

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
        """The rendered text in parts, with their ids if a text was written as it is."""
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
