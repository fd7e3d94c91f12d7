"""A tiny model with a real cache and scripted logits, which always gives the same reply. Its
replies are given as tokens. Its input does not matter, except that a reply starts after a prompt
and continues after its own tokens."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import tokenizers
from mlx import nn
from tokenizers import AddedToken

from mlxchat.models.model import Model
from mlxchat.text.template import ChatTemplate
from mlxchat.text.tokens import Tokenizer
from scripts.tiny_model import THINK_TOKENS, byte_tokenizer, tiny_config, write_tiny_model

CONFIG = {**tiny_config(layers=1, vocabulary=320), "eos_token_id": None}


class _Script:
    """Position in the reply. Not an nn.Module, whose attributes would count as parameters."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)
        self.has_read = False
        self._next = 0

    def after(self, last: int) -> int:
        """The token after `last`, the latest token of the reply or of the prompt."""
        so_far = self.ids[: self._next] if self._next < len(self.ids) else []
        if not self.has_read:
            # Another process has read the prompt, and this one resumes its run.
            so_far, self.has_read = self.ids, last in self.ids
        # Continuing a reply may go back by a token, because one is computed ahead.
        places = [i for i in range(len(so_far)) if so_far[i] == last]
        self._next = places[-1] + 2 if places else 1
        return self.ids[min(self._next, len(self.ids)) - 1]


def follow_script(network: nn.Module, ids: Sequence[int]) -> nn.Module:
    """Make the network say `ids` after every prompt, whatever it computes."""
    script, kind = _Script(ids), type(network)

    class Scripted(kind):
        def __call__(self, inputs: mx.array, *args: Any, **options: Any) -> mx.array:
            logits = super().__call__(inputs, *args, **options)
            script.has_read |= inputs.shape[1] > 1
            last: Any = inputs[0, -1].item()
            wanted = mx.arange(logits.shape[-1]) == script.after(last)
            return mx.broadcast_to(mx.where(wanted, 0.0, -1e4), logits.shape)

    Scripted.__name__ = kind.__name__
    Scripted.__module__ = kind.__module__
    network.__class__ = Scripted
    return network


def without_think_tokens(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    parts = json.loads(backend.to_str())
    kept = [each for each in parts["added_tokens"] if each["content"] not in THINK_TOKENS]
    return tokenizers.Tokenizer.from_str(json.dumps({**parts, "added_tokens": kept}))


@dataclass(frozen=True)
class Scripted:
    """A reply format under test: control tokens, template and a complete reply.

    `control` are special tokens, `plain` are added tokens that are not special; `ends` are the end
    tokens in its files. `reply` is the output after the prompt; `thought` and `answer` are shown.
    """

    template: str
    control: tuple[str, ...]
    reply: str
    thought: str = "Hm, duck?"
    answer: str = "Yes!"
    plain: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()

    def backend(self) -> tokenizers.Tokenizer:
        backend = byte_tokenizer()
        if not any(tag in self.template for tag in THINK_TOKENS):
            backend = without_think_tokens(backend)
        backend.add_special_tokens([AddedToken(text, special=True) for text in self.control])
        backend.add_tokens([AddedToken(text, special=False) for text in self.plain])
        return backend

    def tokenizer(self) -> Tokenizer:
        backend = self.backend()
        ends = [backend.token_to_id(text) for text in self.ends]
        return Tokenizer(backend, ChatTemplate(self.template, {}), [i for i in ends if i])

    def model(self) -> Model:
        # Imported here: pytest would make `scripted_program` slow to start.
        from tests.conftest import build_random_model

        network = build_random_model(CONFIG)
        follow_script(network, self.ids())
        return Model("tiny", network, self.tokenizer(), mx.float32, 4096, {})

    def ids(self) -> list[int]:
        """The reply's tokens."""
        return self.backend().encode(self.reply, add_special_tokens=False).ids

    def write(self, directory: Path) -> Path:
        """Write the model into `directory` for `scripted_program`, and return it."""
        write_tiny_model(directory, config=CONFIG, chat_template=self.template)
        self.backend().save(str(directory / "tokenizer.json"))
        (directory / "script.json").write_text(json.dumps(self.ids()))
        return directory
