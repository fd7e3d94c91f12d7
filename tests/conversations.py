"""Conversations with tiny models, and the check that their ledgers match their caches.

Most use a model with one layer. Its keys and values depend only on the token and its position, so
after evicting turns and shifting keys, the cache must give exactly the same logits as one filled
from scratch with the same tokens.
"""

from functools import cache as remembered
from typing import Any

import mlx.core as mx
import numpy as np

from mlxchat.cache.build import make_cache
from mlxchat.cache.layers import tokens_held, windows
from mlxchat.chat.answering import Watch
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.state import Forgot
from mlxchat.constraint.constraint import Constraint
from mlxchat.models.model import Model
from mlxchat.request.written import thinking_variables
from mlxchat.settings import CacheSettings, GenerationSettings, SamplingSettings
from mlxchat.text.encoder import TokenIds
from mlxchat.text.template import ChatTemplate
from mlxchat.text.tokens import Tokenizer
from scripts.tiny_model import byte_tokenizer, tiny_config
from tests import chat_templates
from tests.conftest import build_random_model
from tests.scripted_model import Scripted

END_IDS = (256, 258)


@remembered
def network(layers: int = 1) -> Any:
    return build_random_model(tiny_config(layers=layers))


def make_model(template: str = chat_templates.CHATML, net: Any = None) -> Model:
    tokenizer = Tokenizer(byte_tokenizer(), ChatTemplate(template, {}), END_IDS)
    return Model("tiny", net or network(), tokenizer, mx.float32, 4096, {})


def make_conversation(
    window: int | None = 320,
    template: str = chat_templates.CHATML,
    *,
    max_tokens: int = 20,
    keep: int = 0,
    net: Any = None,
    **options: Any,
) -> Conversation:
    return Conversation(
        make_model(template, net),
        CacheSettings(window, keep=keep, prefill_step_size=64),
        sampling=SamplingSettings(temp=1.0, seed=1),
        generation=GenerationSettings(max_tokens=max_tokens),
        **options,
    )


def converse(scripted: Scripted, window: int | None = None, *, thinks: bool = True) -> Conversation:
    """A conversation with the model of a reply format."""
    return Conversation(
        scripted.model(),
        CacheSettings(window, keep=0, prefill_step_size=64),
        generation=GenerationSettings(max_tokens=200),
        variables=thinking_variables(thinks),
    )


def say(
    conversation: Conversation, text: str, constraint: Constraint | None = None, **watch: Any
) -> list[Forgot]:
    """Say it and read the reply; returns the turns forgotten."""
    said = conversation.say(text, Watch(**watch), constraint=constraint)
    return [each for each in said if isinstance(each, Forgot)]


def prompt_of(conversation: Conversation) -> TokenIds:
    """The prompt of the last answer."""
    assert conversation.answering is not None
    return conversation.answering.prompt


def check_in_step(conversation: Conversation) -> None:
    """Check that the ledger matches the cache, and the cache one filled from the ledger."""
    ids = conversation.ledger.ids
    assert len(ids) == tokens_held(conversation.cache)
    window = conversation.settings.max_kv_size
    full = window is not None and len(ids) >= window
    if len(ids) == 0 or full or any(layer.gap for layer in windows(conversation.cache)):
        # While single tokens are evicted, the kept ones follow the window at a small distance.
        return
    probe = mx.array([[65]])
    found = conversation.model.network(probe, cache=conversation.cache.fork())
    fresh = make_cache(conversation.model.network)
    conversation.model.network(mx.array(ids)[None], cache=fresh)
    expected = conversation.model.network(probe, cache=fresh)
    np.testing.assert_allclose(np.array(found), np.array(expected), atol=2e-3)
