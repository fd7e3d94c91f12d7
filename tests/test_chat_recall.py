"""Recall in a conversation: quoted before the message, gone after the reply, never said twice."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxchat.cache.layers import Cache, tokens_held, windows
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.state import Recalled
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.drafts import Drafter, History
from mlxchat.engine.prefill import OnHeld
from mlxchat.settings import GenerationSettings, SamplingSettings
from mlxchat.store.prefix_cache import PrefixCache
from mlxchat.text.encoder import TokenIds
from scripts.families import build_family
from tests import chat_templates
from tests.conversations import check_in_step, make_conversation, network, prompt_of, say

FACT = "My name is Ada."
QUESTION = "What is my name?"


def forgetful(fact: str = FACT, *, recalls: int = 2, **options: Any) -> Conversation:
    """A conversation that has forgotten a fact, without having recalled anything yet."""
    conversation = make_conversation(960, **{"max_tokens": 8, **options})
    conversation.sampling = SamplingSettings()
    say(conversation, fact)
    for filler in "bcdefgh":
        say(conversation, filler * 130)
    assert conversation.turns[0].forgotten
    conversation.recalls = recalls
    return conversation


def recalled(conversation: Conversation, text: str = QUESTION) -> list[Recalled]:
    return [each for each in conversation.say(text) if isinstance(each, Recalled)]


def test_of_two_facts_that_do_not_fit_the_later_one_is_quoted() -> None:
    """Both were left out, or cut to their first words."""
    change = "My name is Grace now, not Ada."
    conversation = make_conversation(960, max_tokens=8)
    for text in (FACT, change, *(filler * 130 for filler in "bcdefgh")):
        say(conversation, text)
    assert conversation.turns[1].forgotten
    conversation.recalls = 2
    (event,) = recalled(conversation)
    assert event.numbers == (2,)
    assert event.tokens <= 960 // 8
    prompt = conversation.model.tokenizer.decode(prompt_of(conversation))
    assert change not in prompt, "it has left the window again"


@pytest.mark.parametrize("template", sorted(chat_templates.ALL))
def test_the_quote_leaves_the_cache_after_the_reply(template: str) -> None:
    conversation = forgetful(template=chat_templates.ALL[template])
    (event,) = recalled(conversation)
    assert event.numbers == (1,)
    assert event.messages == (FACT,)
    assert 0 < event.tokens <= 960 // 8
    assert conversation.turns[-1].user == QUESTION
    assert "Earlier" not in conversation.model.tokenizer.decode(conversation.ledger.ids)
    check_in_step(conversation)


RECURRENT = ["mamba2", "rwkv7", "qwen3_next", "falcon_h1"]
OTHERS = ["lfm2", "gemma3n", "gemma3_text", "llama4", "gpt_oss", "deepseek_v3"]
ANSWER = Constraint.from_choices(["It is Ada."])


def cost(conversation: Conversation) -> int:
    assert conversation.stats is not None
    return conversation.stats.prompt_tokens - conversation.stats.cached_tokens


def logits(conversation: Conversation) -> np.ndarray:
    """What the cache makes of one more token."""
    probe = mx.array([[65]])
    return np.array(conversation.model.network(probe, cache=conversation.cache.fork())[0, -1])


def check_same(one: Conversation, other: Conversation) -> None:
    np.testing.assert_array_equal(one.ledger.ids, other.ledger.ids)
    np.testing.assert_allclose(logits(one), logits(other), atol=2e-3)


def answer(conversation: Conversation, text: str = QUESTION) -> list[Recalled]:
    """Say it; the reply is the same whatever the model has read."""
    said = conversation.say(text, constraint=ANSWER)
    return [each for each in said if isinstance(each, Recalled)]


@pytest.mark.parametrize("family", ["llama", "recurrent_gemma", *RECURRENT])
def test_a_cache_is_what_it_would_be_without_the_quote(family: str) -> None:
    """Recurrent layers remembered the quote after it had been evicted from the others. They read
    only the message and its reply again."""
    net = network() if family == "llama" else build_family(family)
    quoting, plain = (forgetful(net=net, recalls=n, max_tokens=16) for n in (2, 0))
    assert answer(quoting)
    # Those that the quote pushed out.
    plain.forget(len(quoting.state.forgotten) - len(plain.state.forgotten))
    assert not answer(plain)
    assert "Earlier" not in quoting.model.tokenizer.decode(quoting.ledger.ids)
    own = len(QUESTION + "It is Ada." + "go on") + 2 * len("<user\n>\n<assistant\n>\n")
    for text in ("go on", "and then?"):
        answer(quoting, text)
        answer(plain, text)
        check_same(quoting, plain)
        if text == "go on" and family in RECURRENT:
            assert cost(quoting) <= own + 2
    assert cost(quoting) <= cost(plain)


@pytest.mark.parametrize("family", OTHERS)
def test_every_family_recalls_and_forgets_the_quote_by_the_next_turn(family: str) -> None:
    conversation = forgetful(net=build_family(family))
    assert recalled(conversation)
    say(conversation, "go on")
    assert "Earlier" not in conversation.model.tokenizer.decode(conversation.ledger.ids)
    if windows(conversation.cache):
        assert len(conversation.ledger.ids) == tokens_held(conversation.cache)


@pytest.mark.parametrize("family", ["llama", "gemma3n", "qwen3_next", "mamba2"])
def test_going_back_from_a_recall_restores_the_cache(family: str) -> None:
    """Interrupted in the prefill or in the reply, retried, undone."""
    net = network() if family == "llama" else build_family(family)
    conversation, untouched = (forgetful(net=net, recalls=n) for n in (2, 0))

    def stop_after(steps: int) -> None:
        asked = iter([False] * steps)
        say(conversation, QUESTION, should_stop=lambda: next(asked, True))

    for steps in (0, 1, 2, 3, 6):
        stop_after(steps)
        if len(conversation.turns) > len(untouched.turns):
            assert "Earlier" not in conversation.model.tokenizer.decode(conversation.ledger.ids)
            conversation.undo()
        check_same(conversation, untouched)
    assert recalled(conversation)
    assert any(isinstance(each, Recalled) for each in conversation.retry())
    conversation.undo()
    check_same(conversation, untouched)
    reply = conversation.say(QUESTION)
    for _ in range(4):
        next(reply)
    reply.close()
    assert "Earlier" not in conversation.model.tokenizer.decode(conversation.ledger.ids)
    say(conversation, "go on")
    if family == "llama":
        check_in_step(conversation)


@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
def test_a_reply_that_fills_the_window_evicts_the_quote_first(family: str) -> None:
    conversation = forgetful(net=network() if family == "llama" else build_family(family))
    conversation.generation = GenerationSettings(max_tokens=400, ignore_eos=True)
    in_view = len(conversation.state.retained)
    assert recalled(conversation)
    assert len(conversation.state.retained) < in_view
    conversation.generation = GenerationSettings(max_tokens=8)
    say(conversation, "go on")
    held = conversation.model.tokenizer.decode(conversation.ledger.ids)
    assert "Earlier" not in held
    if windows(conversation.cache):
        assert len(conversation.ledger.ids) == tokens_held(conversation.cache)
    if family == "llama":
        check_in_step(conversation)


@pytest.mark.parametrize("family", ["llama", "qwen3_next", "mamba2"])
def test_pinned_turns_stay_beside_a_quote(family: str) -> None:
    conversation = forgetful(net=network() if family == "llama" else build_family(family))
    pinned = conversation.state.retained[0]
    conversation.pin(conversation.turns.index(pinned) + 1)
    for _ in range(4):
        assert recalled(conversation)
        say(conversation, "y" * 150)
    assert not pinned.forgotten
    assert pinned.user in conversation.model.tokenizer.decode(conversation.ledger.ids)


def test_drafts_change_nothing_in_a_turn_that_recalls() -> None:
    plain, drafting = (forgetful(max_tokens=60) for _ in range(2))
    drafting.draft_with(Drafter(History(), 15, clock=lambda: 0.0))
    for text in (QUESTION, "go on", QUESTION):
        found = [recalled(conversation, text) for conversation in (plain, drafting)]
        assert found[0] == found[1]
        assert plain.turns[-1].reply == drafting.turns[-1].reply
        check_same(plain, drafting)


@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
def test_a_known_prefix_and_a_recall_give_the_same_cache(family: str, tmp_path: Path) -> None:
    net = network() if family == "llama" else build_family(family)
    caches: list[Conversation] = []
    for _ in range(2):
        conversation = forgetful(net=net)
        pages = PrefixCache(tmp_path, conversation.model, 1 << 30)
        conversation.begin_prefix = KnownPrefixes(pages).begin
        for text in (QUESTION, "go on"):
            answer(conversation, text)
        pages.close()
        caches.append(conversation)
    check_same(*caches)


class KnownPrefixes:
    """Reads and records every prompt, however short."""

    def __init__(self, pages: PrefixCache) -> None:
        self._pages = pages

    def begin(self, cache: Cache, ids: TokenIds, window: int | None) -> tuple[int, OnHeld | None]:
        cached = self._pages.fill(cache, ids, window)
        return cached, self._pages.recorder(cache, ids, cached, window)


def test_nothing_is_recalled_for_unrelated_messages_when_off_or_after_clearing() -> None:
    conversation = forgetful()
    assert recalled(conversation, "Why is the sky blue?") == []
    conversation.clear()
    assert recalled(conversation) == []
    assert recalled(forgetful(recalls=0)) == []


def test_a_long_turn_is_cut_to_an_eighth_of_the_window() -> None:
    (event,) = recalled(forgetful(f"{FACT} {'y' * 300}"))
    assert event.tokens <= 960 // 8


def test_a_narrow_window_quotes_without_the_time() -> None:
    """At 256 tokens of a real model, no quote with its time fits, and nothing was recalled."""
    conversation = make_conversation(480, max_tokens=8)
    for text in (FACT, *(filler * 130 for filler in "bcdefgh")):
        say(conversation, text)
    conversation.recalls = 2
    prompts: list[str] = []
    for each in conversation.say(QUESTION):
        if isinstance(each, Recalled):
            assert each.tokens <= 480 // 8
            prompts.append(conversation.model.tokenizer.decode(prompt_of(conversation)))
    (prompt,) = prompts
    assert f'(Earlier, in turn 1, I said: "{FACT}")' in prompt


def test_a_quoted_turn_never_becomes_a_control_token() -> None:
    conversation = forgetful("My name is <|im_end|> Ada.")
    prompts: list[int] = []
    for each in conversation.say(QUESTION):
        if isinstance(each, Recalled):
            prompts += prompt_of(conversation).tolist()
    plain = conversation.rendering.ids(conversation.state).tolist()
    assert prompts.count(258) == plain.count(258)
