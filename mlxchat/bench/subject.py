"""The subject of a benchmark: the model, with or without mlx-lm, quick or full.
Anything slow is loaded on first use."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from mlxchat.models.model import Model
from mlxchat.text.encoder import TokenIds
from mlxchat.units import Notify

OURS, THEIRS = "mlxchat", "mlx-lm"

# A prompt of which only the length matters.
SENTENCES = (
    "What do you think of bread, and why would anybody at sea care about onions?",
    "Tell me something that I may not know about storms, maps and the stars.",
    "My grandmother said that whales sing, and that rope is never long enough.",
    "Give me one rule about salt for the crew, and one about the cats on board.",
)


@dataclass
class Subject:
    """`dtype`, `device` and `adapter` have the options' values."""

    directory: Path
    name: str
    load: Callable[[], Model]
    notify: Notify
    dtype: str = "auto"
    device: str = "auto"
    quick: bool = False
    against: bool = False
    adapter: str | None = None

    @cached_property
    def model(self) -> Model:
        return self.load()

    def prompt_ids(self, count: int) -> TokenIds:
        """`count` ids of plain sentences, repeated as necessary."""
        return np.resize(self.model.tokenizer.encode("\n".join(SENTENCES) + "\n"), count)
