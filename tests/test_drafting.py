"""Drafts change nothing but time: the same text with and without them, however decoding ends.

The drafts come from what the same model wrote before, with errors, as if it were edited.
"""

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import cache as remembered
from itertools import cycle
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx import nn

from mlxchat.cache.build import make_cache
from mlxchat.cache.layers import Cache, tokens_held, windows
from mlxchat.cache.ring import DRAFT_SLOTS
from mlxchat.chat.conversation import Conversation
from mlxchat.engine.drafts import Drafter, History
from mlxchat.engine.generate import decode, generate
from mlxchat.engine.prefill import prefill
from mlxchat.engine.reply import Reply
from mlxchat.engine.sampling import Chooser
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings, SamplingSettings
from scripts.families import build_family
from tests import chat_templates
from tests.conftest import build_random_model
from tests.conversations import check_in_step, make_conversation, make_model
from tests.reference import draft, random_tokens, step

GREEDY = SamplingSettings()
PROMPT = np.array([7, 8, 9, 10, 11, 12, 13, 7, 8, 9] * 4, np.int32)
WINDOW, KEEP = 32, 4


LENGTH = 6 * WINDOW


@remembered
def network_of(family: str) -> nn.Module:
    return build_family(family)


@remembered
def foreseen(family: str, sampling: SamplingSettings) -> list[int]:
    """What the model writes, with an error every 11 tokens."""
    tokens = Decoding(family, drafts=False).tokens(sampling=sampling, max_tokens=LENGTH)
    return [each.id if place % 11 else 5 for place, each in enumerate(tokens)]


class Decoding:
    """A prompt in a cache, and the tokens decoded after it."""

    def __init__(self, family: str, *, drafts: bool) -> None:
        self.family, self.network = family, network_of(family)
        network = self.network
        self.cache = make_cache(network, WINDOW, KEEP)
        self.held: list[int] = []
        self.drafter = Drafter(History(), 15, clock=lambda: 0.0) if drafts else None
        prefill(network, self.cache, PROMPT[:-1], step_size=16)

    def tokens(
        self, sampling: SamplingSettings = GREEDY, logprobs: int | None = None, **how: Any
    ) -> Generator[Any]:
        if self.drafter is not None:
            self.drafter.history.extend(np.array(foreseen(self.family, sampling), np.int32))
            self.drafter.history.extend(PROMPT)
        tokens: Any = decode(
            self.network,
            self.cache,
            Chooser(PROMPT, sampling, GenerationSettings(logprobs=logprobs)),
            int(PROMPT[-1]),
            drafter=self.drafter,
            on_held=lambda ids: self.held.extend(ids.tolist()),
            **how,
        )
        return tokens


def both(family: str = "llama") -> tuple[Decoding, Decoding]:
    return Decoding(family, drafts=True), Decoding(family, drafts=False)


def check_the_same(drafting: Decoding, plain: Decoding, tolerance: float = 1e-3) -> None:
    assert drafting.held == plain.held
    check_same_state(drafting.cache, plain.cache, tolerance)


LOOSE = SamplingSettings(temp=1.0, top_k=2, seed=1)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingSettings(),
        *(SamplingSettings(temp=0.7, top_k=2, seed=seed) for seed in range(2)),
        SamplingSettings(temp=0.5, top_p=0.5, seed=3),
        SamplingSettings(temp=1.0, top_k=3, min_p=0.2, repetition_penalty=1.1, seed=4),
        SamplingSettings(temp=0.5, top_k=3, presence_penalty=0.1, frequency_penalty=0.01, seed=5),
        SamplingSettings(temp=1.0, min_p=0.3, logit_bias=("7=0.5",), seed=6),
        SamplingSettings(temp=0.7, top_p=0.2, seed=7),
        SamplingSettings(temp=0.7, top_k=3, dry_multiplier=0.01, dry_base=1.1, seed=9),
        SamplingSettings(temp=0.7, top_k=3, xtc_probability=0.3, xtc_threshold=0.3, seed=8),
    ],
    ids=str,
)
def test_the_text_and_the_window_are_the_same(sampling: SamplingSettings) -> None:
    drafting, plain = both()
    with_drafts = list(drafting.tokens(sampling=sampling, max_tokens=LENGTH, logprobs=3))
    without = list(plain.tokens(sampling=sampling, max_tokens=LENGTH, logprobs=3))
    assert [each.id for each in with_drafts] == [each.id for each in without]
    np.testing.assert_allclose(
        np.array([each.logprob for each in with_drafts], float),
        np.array([each.logprob for each in without], float),
        atol=1e-3,
    )
    check_the_same(drafting, plain)
    assert drafting.drafter is not None
    assert drafting.drafter.accepted > LENGTH // 4
    assert drafting.drafter.accepted < drafting.drafter.drafted


@pytest.mark.parametrize("count", [1, 4, 13, 22, 31, 37])
@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
def test_the_caller_may_stop_inside_a_draft(count: int, family: str) -> None:
    """Ctrl-C: the cache holds all tokens but the last, and decoding can continue."""
    drafting, plain = both(family)
    texts = []
    for each in (drafting, plain):
        seen: list[int] = []
        for token in each.tokens(sampling=LOOSE, should_stop=lambda: len(seen) + 1 >= count):  # noqa: B023
            seen.append(token.id)
        more = decode(
            each.network,
            each.cache,
            Chooser(np.concatenate([PROMPT, seen]), LOOSE, index=len(seen)),
            seen[-1],
            max_tokens=10,
        )
        texts.append(seen + [token.id for token in more])
    assert texts[0] == texts[1]
    assert drafting.held == plain.held
    check_same_state(drafting.cache, plain.cache, 1e-3)


@pytest.mark.parametrize("count", [1, 4, 13, 22, 31, 37])
@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
def test_the_caller_may_leave_inside_a_draft(count: int, family: str) -> None:
    """An end of text or a stop text: the cache holds just the tokens reported."""
    drafting, plain = both(family)
    for each in (drafting, plain):
        tokens = each.tokens(sampling=LOOSE)
        for _ in range(count):
            next(tokens)
        tokens.close()
    # Without drafts, the cache is always one token ahead; after a draft, it may not be yet.
    assert plain.held[: len(drafting.held)] == drafting.held
    assert len(plain.held) - len(drafting.held) <= 1
    for window in windows(plain.cache):
        window.trim(len(plain.held) - len(drafting.held))
    assert [w.offset for w in windows(plain.cache)] == [w.offset for w in windows(drafting.cache)]


def test_the_caller_may_evict_inside_a_draft() -> None:
    """In a chat, a turn is forgotten while the reply is generated."""
    texts = []
    for each in both():
        seen = []
        for token in each.tokens(max_tokens=100):
            seen.append(token.id)
            if len(seen) % 7 == 0:
                each.cache.evict(KEEP + 2, KEEP + 5)
        texts.append(seen)
    assert texts[0] == texts[1]


def drafter_after(ids: list[int], clock: Callable[[], float] = lambda: 0.0) -> Drafter:
    drafter = Drafter(History(), 15, clock)
    drafter.history.extend(np.array(ids, np.int32))
    return drafter


def test_drafts_double_while_they_are_right_and_halve_when_they_are_not() -> None:
    drafter = drafter_after([*range(100)])
    for id_ in (0, 1, 2):
        drafter.add(id_)
    lengths = []
    for is_right in (True, True, True, True, False, False, True):
        draft = drafter.propose(15)
        lengths.append(len(draft))
        drafter.learn(len(draft), len(draft) if is_right else 0)
    assert lengths == [2, 4, 8, 15, 15, 7, 3]
    assert drafter.propose(5) == [3, 4, 5, 6, 7]


def test_after_misses_drafting_pauses_until_a_token_is_predicted() -> None:
    drafter = drafter_after([*range(100)])
    for id_ in (0, 1, 2):
        drafter.add(id_)
    for _ in range(2):
        drafter.learn(len(drafter.propose(15)), 0)
    assert not drafter.is_promising
    assert drafter.propose(15) == []
    drafter.add(3)
    assert drafter.propose(15) == [4]


@pytest.mark.parametrize("row_s", [0.1, 1.5])
def test_drafting_pauses_while_it_is_slower(row_s: float) -> None:
    """On some machines, a row costs as much as a step, so that even right drafts gain nothing."""
    now_s, place, steps = 0.0, 0, 0
    drafter = drafter_after([*range(50)] * 2, lambda: now_s)
    while place < 2_000:
        draft = drafter.propose(15)
        now_s += 1 + row_s * len(draft)
        for _ in range(len(draft) + 1):
            drafter.add(place % 50, was_drafted=bool(draft))
            place += 1
        if draft:
            steps += 1
            drafter.learn(len(draft), len(draft))
    assert (now_s < 500) if row_s < 1 else (now_s < 1.05 * place), (now_s, steps)


@pytest.mark.parametrize("family", ["llama4", "phi3small"])
def test_a_cache_that_refuses_drafts_never_waits_for_them(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its costs stay unknown, so each match looked promising, and the next token was not begun
    while the current one was handled."""
    drafter = Drafter(History(), 15)
    monkeypatch.setattr(Drafter, "is_promising", property(lambda _: pytest.fail("waited")))
    decoding = Decoding(family, drafts=False)
    decoding.drafter = drafter
    drafter.history.extend(PROMPT)
    list(
        decode(
            decoding.network,
            decoding.cache,
            Chooser(PROMPT, GREEDY),
            int(PROMPT[-1]),
            max_tokens=20,
            drafter=drafter,
        )
    )


# In a chat and in a generation; the second one drafts from what the first one wrote, with errors


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
        states.append(
            (last.reply, conversation.ledger.ids.tolist(), len(conversation.state.forgotten))
        )

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


def test_a_chat_is_the_same_with_drafts() -> None:
    """Turns are forgotten in the middle of a reply, retried, taken back, pinned and continued."""
    plain, drafting = (make_conversation(300, max_tokens=40, keep=4) for _ in range(2))
    plain.sampling = drafting.sampling = SAMPLING
    expected = tell(plain)
    wrote = [turn.ids for turn in plain.turns if turn.ids is not None]
    known = drafter(*wrote)
    drafting.draft_with(known)
    assert tell(drafting) == expected
    assert known.accepted > 80


def generated(
    model: Model, settings: GenerationSettings, drafts: Drafter | None
) -> tuple[Any, ...]:
    cache = model.make_cache(32, 4)
    ids = np.arange(40, dtype=np.int32)
    reply = Reply(model, ids, cache, sampling=SAMPLING, settings=settings, drafter=drafts)
    tokens = list(generate(reply))
    return tokens, reply.stats, [window.total for window in windows(cache)]


@pytest.mark.parametrize("place", range(20, 50, 4))
def test_a_stop_text_or_an_end_token_may_be_inside_a_draft(place: int) -> None:
    """Everything after it in the draft is dropped, and evicts nothing."""
    model = make_model(chat_templates.CHATML, None)
    settings = GenerationSettings(max_tokens=80, ignore_eos=True)
    tokens, *_ = generated(model, settings, None)
    wrote = np.array([token.id for token in tokens if token.id is not None], np.int32)
    until = "".join(token.text for token in tokens[: place + 1])[-4:]
    for changed in (
        replace(settings, stop=(until,)),
        replace(settings, max_tokens=place),
    ):
        plain = generated(model, changed, None)
        drafting = generated(model, changed, drafter(wrote))
        assert [(t.id, t.text) for t in drafting[0]] == [(t.id, t.text) for t in plain[0]]
        assert drafting[1].finish_reason == plain[1].finish_reason
        assert drafting[1].generated_tokens == plain[1].generated_tokens
        assert drafting[1].drafted_tokens > 0
        # Without drafts, the cache is one token ahead; after a draft, it may not be yet.
        ahead = {ours - theirs for ours, theirs in zip(plain[2], drafting[2], strict=True)}
        assert ahead <= {0, 1}


# Rows: accepted tokens are as if decoded one by one, rejected ones leave no trace


MODEL = build_random_model()
VOCABULARY = 256


def check_same_state(cache: Cache, plain: Cache, tolerance: float) -> None:
    for ours, theirs in zip(windows(cache), windows(plain), strict=True):
        assert ours.placement == theirs.placement
        for mine, other in zip(ours.entries, theirs.entries, strict=True):
            assert (mine is None) == (other is None)
            if mine is not None and other is not None:
                np.testing.assert_allclose(
                    np.array(mine.astype(mx.float32)),
                    np.array(other.astype(mx.float32)),
                    atol=tolerance,
                )


@settings(deadline=None)
@given(
    window=st.integers(6, 40),
    keep=st.sampled_from([0, 4]),
    prompt=st.integers(1, 60),
    plan=st.lists(st.tuples(st.integers(2, DRAFT_SLOTS), st.integers(1, DRAFT_SLOTS)), min_size=1),
)
def test_accepted_tokens_are_as_if_decoded_one_by_one(
    window: int, keep: int, prompt: int, plan: list[tuple[int, int]]
) -> None:
    """`plan` has the numbers of tokens to draft, and how many of them are right."""
    cache, plain = make_cache(MODEL, window, keep), make_cache(MODEL, window, keep)
    for each in (cache, plain):
        step(MODEL, each, random_tokens(prompt))
    ids, planned, done = random_tokens(120, seed=1), cycle(plan), 0
    while done < len(ids):
        rows, right = next(planned)
        rows = min(rows, cache.draft_room, len(ids) - done)
        if rows < 2:
            found, right = step(MODEL, cache, ids[done : done + 1]), 1
        else:
            right = min(right, rows)
            wrong = [(id_ + 1) % VOCABULARY for id_ in ids[done + right : done + rows]]
            found = draft(MODEL, cache, [*ids[done : done + right], *wrong], right)
        expected = np.concatenate([step(MODEL, plain, [id_]) for id_ in ids[done : done + right]])
        np.testing.assert_allclose(found, expected, atol=2e-4, rtol=1e-3)
        done += right
    check_same_state(cache, plain, tolerance=1e-4)
    assert tokens_held(cache) == window
    assert all(w.keys is not None and w.keys.shape[2] <= window + 16 for w in windows(cache))
