"""Drafts in a chat and in a generation: same text, same window, whatever ends a reply.

Each conversation is held twice. The second one drafts from what the first one wrote, with errors.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mlxchat.cache.layers import windows
from mlxchat.chat.conversation import Conversation
from mlxchat.engine.drafts import Drafter
from mlxchat.engine.generate import Generation
from mlxchat.engine.lookup import History
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings, SamplingSettings
from tests import chat_templates
from tests.test_conversation import check_in_step, make_conversation, make_model

SAMPLING = SamplingSettings(temp=1.0, top_k=4, seed=5)


def drafter(*foreseen: np.ndarray) -> Drafter:
    """A drafter that has seen these tokens, with an error every 9 of them."""
    made = Drafter(History(), 15, clock=lambda: 0.0)
    for ids in foreseen:
        wrong = ids.copy()
        wrong[8::9] = 5
        made.history.extend(wrong)
    return made


def tell(conversation: Conversation) -> list[tuple[Any, ...]]:
    """A chat with everything that changes a window; returns its state after each action."""
    states: list[tuple[Any, ...]] = []

    def do(action: Callable[..., Any], *arguments: Any) -> None:
        said = action(*arguments)
        for _ in said if hasattr(said, "__next__") else ():
            pass
        check_in_step(conversation)
        last = conversation.turns[-1]
        states.append((last.reply, conversation.held_ids.tolist(), len(conversation.forgotten)))

    for number in range(4):
        do(conversation.say, f"question {number} " + "x" * 20)
    do(conversation.retry)
    do(conversation.retry)
    do(conversation.undo)
    do(conversation.say, "something else")
    do(conversation.pin, len(conversation.turns))
    do(conversation.continue_reply)
    do(conversation.say, "in between")
    do(conversation.unpin)
    for number in range(5):
        do(conversation.say, f"more {number}")
    return states


@pytest.mark.parametrize("window", [420, 300])
def test_a_chat_is_the_same_with_drafts(window: int) -> None:
    """Turns are forgotten in the middle of a reply, retried, taken back, pinned and continued."""

    def begun() -> Conversation:
        made = make_conversation(window, max_tokens=40, keep=4)
        made.sampling = SAMPLING
        return made

    plain = begun()
    expected = tell(plain)
    drafting = begun()
    wrote = [turn.ids for turn in plain.turns if turn.ids is not None]
    known = drafter(*wrote)
    drafting.draft_with(known)
    assert tell(drafting) == expected
    assert known.accepted > 80


def generate(model: Model, settings: GenerationSettings, drafts: Drafter | None) -> tuple[Any, ...]:
    cache = model.make_cache(32, 4)
    ids = np.arange(40, dtype=np.int32)
    generation = Generation(model, ids, cache, sampling=SAMPLING, settings=settings, drafter=drafts)
    tokens = list(generation)
    return tokens, generation.stats, [window.total for window in windows(cache)]


@pytest.mark.parametrize("place", range(20, 50))
def test_a_stop_text_or_an_end_token_may_be_inside_a_draft(place: int) -> None:
    """Everything after it in the draft is dropped, and evicts nothing."""
    model = make_model(chat_templates.CHATML, None)
    settings = GenerationSettings(max_tokens=80, ignore_eos=True)
    tokens, *_ = generate(model, settings, None)
    wrote = np.array([token.id for token in tokens if token.id is not None], np.int32)
    until = "".join(token.text for token in tokens[: place + 1])[-4:]
    for changed in (
        replace(settings, stop=(until,)),
        replace(settings, max_tokens=place),
    ):
        plain = generate(model, changed, None)
        drafting = generate(model, changed, drafter(wrote))
        assert [(t.id, t.text) for t in drafting[0]] == [(t.id, t.text) for t in plain[0]]
        assert drafting[1].finish_reason == plain[1].finish_reason
        assert drafting[1].generated_tokens == plain[1].generated_tokens
        assert drafting[1].drafted_tokens > 0
        # Without drafts, the cache is one token ahead; after a draft, it may not be yet.
        ahead = {ours - theirs for ours, theirs in zip(plain[2], drafting[2], strict=True)}
        assert ahead <= {0, 1}
