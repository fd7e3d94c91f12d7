"""What is measured, and how much of it: the model, the text, mlx-lm beside it or not, and in short
or in full. Whatever takes long to get is got when it is first needed."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np

from mlxchat.bench.paired import Tick
from mlxchat.bench.text import MOST_CHARS_A_TOKEN, Text, find_text, read_text
from mlxchat.errors import InputError
from mlxchat.models.model import Model
from mlxchat.progress import Notify
from mlxchat.text.spans import TokenIds
from mlxchat.wording import Field, Message

# A prompt of which only the length matters.
SENTENCES = (
    "What do you think of bread, and why would anybody at sea care about onions?",
    "Tell me something that I may not know about storms, maps and the stars.",
    "My grandmother said that whales sing, and that rope is never long enough.",
    "Give me one rule about salt for the crew, and one about the cats on board.",
)


class Subject:
    """`dtype` and `device` are as the options have them. `scratch` is an empty directory."""

    def __init__(
        self,
        directory: Path,
        name: str,
        load: Callable[[], Model],
        *,
        scratch: Path,
        tick: Tick,
        dtype: str = "auto",
        device: str = "auto",
        quick: bool = False,
        against: bool = False,
        text: str | None = None,
        notify: Notify,
    ) -> None:
        self.directory = directory
        self.name = name
        self._load = load
        self.scratch = scratch
        self.tick = tick
        self.dtype = dtype
        self.device = device
        self.quick = quick
        self.against = against
        self._text_path = text
        self._notify = notify

    @cached_property
    def model(self) -> Model:
        return self._load()

    @property
    def has_model(self) -> bool:
        return "model" in self.__dict__

    def load_apart(self) -> Model:
        """A model for a while: this process may not keep it."""
        return self.model if self.has_model else self._load()

    def prompt_ids(self, count: int) -> TokenIds:
        """So many ids of plain sentences, again and again."""
        once = self.model.tokenizer.encode("\n".join(SENTENCES) + "\n")
        return np.resize(once, count)

    def text_ids(self, least: int, most: int) -> TokenIds:
        """The first ids of the text, `most` where it is that long.

        Raises InputError where there are not even `least`.
        """
        text = self._text
        ids = self.model.tokenizer.encode(text.text[: most * MOST_CHARS_A_TOKEN])[:most]
        if len(ids) < least:
            raise InputError(
                f"{text.source} is {len(ids):,} tokens, and {least:,} are needed: "
                "name a longer one with ",
                Field("text"),
            )
        return ids

    @property
    def text_source(self) -> str | None:
        """Where the text is from, once one has been read."""
        return self._text.source if "_text" in self.__dict__ else None

    @cached_property
    def _text(self) -> Text:
        if self._text_path is None:
            text = find_text()
            self._notify(Message(f"the text is {text.source}; ", Field("text"), " takes another"))
            return text
        text = read_text(self._text_path)
        for notice in text.notices:
            self._notify(notice)
        return text
