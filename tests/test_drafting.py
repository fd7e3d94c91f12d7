"""Drafts change nothing but time: the same text with and without them, however decoding ends.

The drafts come from what the same model wrote before, with errors, as if it were edited.
"""

from collections.abc import Callable
from functools import cache as remembered
from functools import partial
from itertools import cycle
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxchat.cache.build import make_cache
from mlxchat.cache.layers import Cache, tokens_held, windows
from mlxchat.cache.ring import DRAFT_SLOTS
from mlxchat.engine.drafts import Drafter, History
from mlxchat.engine.generate import generate
from mlxchat.engine.reply import Reply
from mlxchat.engine.sampling import Token
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings, SamplingSettings
from scripts.families import build_family
from tests.conftest import build_random_model, examples
from tests.conversations import check_in_step, make_conversation
from tests.reference import draft, logits, random_tokens
from tests.test_prefix_cache import make_model

PROMPT = np.array([7, 8, 9, 10, 11, 12, 13, 7, 8, 9] * 4, np.int32)
WINDOW, KEEP = 32, 4
LENGTH = 3 * WINDOW
LOOSE = SamplingSettings(temp=1.0, top_k=2, seed=1)


@remembered
def model_of(family: str) -> Model:
    return make_model(build_family(family))


def begin(family: str, sampling: SamplingSettings, drafter: Drafter | None, **how: Any) -> Reply:
    model = model_of(family)
    how = {"max_tokens": LENGTH, "logprobs": 3} | how
    settings = GenerationSettings(**how)
    cache = make_cache(model.network, WINDOW, KEEP)
    return Reply(model, PROMPT, cache, sampling=sampling, settings=settings, drafter=drafter)


@remembered
def plain_tokens(family: str, sampling: SamplingSettings) -> list[Token]:
    return list(generate(begin(family, sampling, None)))


def drafter_after(ids: list[int], clock: Callable[[], float] = lambda: 0.0) -> Drafter:
    drafter = Drafter(History(), clock)
    drafter.history.extend(np.array(ids, np.int32))
    return drafter


def with_errors(ids: list[int]) -> list[int]:
    return [5 if place % 11 == 0 else id_ for place, id_ in enumerate(ids)]


def both(family: str = "llama", sampling: SamplingSettings = LOOSE, **how: Any) -> list[Reply]:
    """The same reply with drafts, from what the model writes, with errors, and without."""
    ids = [token.id for token in plain_tokens(family, sampling) if token.id is not None]
    drafter = drafter_after(with_errors(ids))
    return [begin(family, sampling, each, **how) for each in (drafter, None)]


def check_same_state(cache: Cache, plain: Cache, tolerance: float) -> None:
    for ours, theirs in zip(windows(cache), windows(plain), strict=True):
        assert ours.placement == theirs.placement
        for mine, other in zip(ours.entries.arrays, theirs.entries.arrays, strict=True):
            off = mx.abs(mine.astype(mx.float32) - other.astype(mx.float32)).max()
            assert bool((off < tolerance).item())


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingSettings(),
        SamplingSettings(temp=0.5, top_p=0.5, logit_bias=("7=0.5",), seed=3),
        SamplingSettings(temp=1.0, top_k=3, min_p=0.2, repetition_penalty=1.1, seed=4),
        SamplingSettings(
            temp=0.7, top_k=3, dry_multiplier=0.01, dry_base=1.1, presence_penalty=0.1, seed=9
        ),
        SamplingSettings(temp=0.7, top_k=3, xtc_probability=0.3, xtc_threshold=0.3, seed=8),
    ],
    ids=str,
)
def test_the_text_and_the_window_are_the_same(sampling: SamplingSettings) -> None:
    texts: list[list[Token]] = []
    held: list[list[int]] = []
    drafting, plain = both(sampling=sampling)
    for reply in (drafting, plain):
        steps: list[int] = []
        texts.append(list(generate(reply, on_held=lambda ids, to=steps: to.extend(ids.tolist()))))
        held.append(steps)
    assert [each[:2] for each in texts[0]] == [each[:2] for each in texts[1]]
    logprobs = [[each.logprob for each in text if each.id is not None] for text in texts]
    np.testing.assert_allclose(*np.array(logprobs, float), atol=1e-3)
    assert held[0] == held[1]
    check_same_state(drafting.cache, plain.cache, 1e-3)
    assert LENGTH // 4 < drafting.stats.accepted_tokens < drafting.stats.drafted_tokens


@pytest.mark.parametrize("family", ["llama", "qwen3_next"])
@pytest.mark.parametrize("count", [1, 22, 37])
def test_the_caller_may_stop_inside_a_draft(count: int, family: str) -> None:
    """Ctrl-C: the cache holds all tokens but the last, and decoding can continue."""
    drafting, plain = both(family)
    texts = [[token[:2] for token in generate(reply, tokens=count)] for reply in (drafting, plain)]
    check_same_state(drafting.cache, plain.cache, 1e-3)
    for text, reply in zip(texts, (drafting, plain), strict=True):
        text += [token[:2] for token in generate(reply, tokens=10)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("place", [24, 38])
def test_a_stop_text_or_an_end_may_be_inside_a_draft(place: int) -> None:
    """Everything after it in the draft is dropped, and evicts nothing."""
    text = "".join(token.text for token in plain_tokens("llama", LOOSE)[: place + 1])
    ends: list[dict[str, Any]] = [{"stop": (text[-4:],)}, {"max_tokens": place}]
    for how in ends:
        drafting, plain = both(**how)
        drafted, expected = ([token[:2] for token in generate(each)] for each in (drafting, plain))
        assert drafted == expected
        ours, theirs = drafting.stats, plain.stats
        assert ours.drafted_tokens > 0
        for name in ("finish_reason", "generated_tokens", "kv_tokens"):
            assert getattr(ours, name) == getattr(theirs, name)
        # Without drafts, the cache is one token ahead; after a draft, it may not be yet.
        assert theirs.evicted_tokens - ours.evicted_tokens in (0, 1)


def test_a_cache_that_refuses_drafts_never_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its costs stay unknown, so each match looked promising, and the next token came late."""
    monkeypatch.setattr(Drafter, "is_promising", property(lambda _: pytest.fail("waited")))
    list(generate(begin("phi3small", LOOSE, drafter_after(PROMPT.tolist())), tokens=20))


def test_a_chat_is_the_same_with_drafts() -> None:
    """Turns are forgotten in the middle of a reply, and a reply is retried and continued."""
    states: list[list[tuple[str, int]]] = []
    known = drafter_after([])
    for drafter in (None, known):
        chat = make_conversation(300, max_tokens=40, keep=4)
        chat.sampling = SamplingSettings(temp=1.0, top_k=4, seed=5)
        chat.draft_with(drafter)
        states.append([])
        says = [partial(chat.say, f"question {number} " + "x" * 20) for number in range(5)]
        for act in (*says, chat.retry, chat.continue_reply, says[0]):
            list(act())
            check_in_step(chat)
            states[-1].append((chat.turns[-1].reply, len(chat.state.forgotten)))
        # The second one drafts from what the first one wrote.
        wrote = [id_ for turn in chat.turns if turn.ids is not None for id_ in turn.ids.tolist()]
        known.history.extend(np.array(with_errors(wrote), np.int32))
    assert states[0] == states[1]
    assert 40 < known.accepted < known.drafted


# What to draft, and how much


def test_drafts_double_while_they_are_right_and_halve_and_pause_when_they_are_not() -> None:
    drafter = drafter_after([*range(100)])
    for id_ in (0, 1, 2):
        drafter.add(id_)
    lengths: list[int] = []
    for is_right in (True, True, True, True, False, False, True):
        draft = drafter.propose(15)
        lengths.append(len(draft))
        drafter.learn(len(draft), len(draft) if is_right else 0)
    assert lengths == [2, 4, 8, 15, 15, 7, 3]
    assert drafter.propose(5) == [3, 4, 5, 6, 7]
    for _ in range(3):
        drafter.learn(len(drafter.propose(15)), 0)
    assert drafter.propose(15) == []
    # A pause, until one predicted token would have been right.
    drafter.add(3)
    assert drafter.propose(15) == [4]


@pytest.mark.parametrize("row_s", [0.1, 1.5])
def test_drafting_pauses_while_it_is_slower(row_s: float) -> None:
    """On some machines, a row costs as much as a step, so that even right drafts gain nothing."""
    now_s, place = 0.0, 0
    drafter = drafter_after([*range(50)] * 2, lambda: now_s)
    while place < 2_000:
        draft = drafter.propose(15)
        now_s += 1 + row_s * len(draft)
        for _ in range(len(draft) + 1):
            drafter.add(place % 50, was_drafted=bool(draft))
            place += 1
        if draft:
            drafter.learn(len(draft), len(draft))
    assert (now_s < 500) if row_s < 1 else (now_s < 1.05 * place)


# Rows: accepted tokens are as if decoded one by one, rejected ones leave no trace

MODEL = build_random_model()


@settings(max_examples=examples(6))
@given(
    window=st.integers(6, 40),
    keep=st.sampled_from([0, 4]),
    prompt=st.integers(1, 60),
    plan=st.lists(st.tuples(*map(st.integers, (2, 1, 0), (*[DRAFT_SLOTS] * 2, 3))), min_size=1),
)
def test_accepted_tokens_are_as_if_decoded_one_by_one(
    window: int, keep: int, prompt: int, plan: list[tuple[int, int, int]]
) -> None:
    """`plan` has the numbers of tokens to draft, of those that are right, and to evict then."""
    cache, plain = make_cache(MODEL, window, keep), make_cache(MODEL, window, keep)
    for each in (cache, plain):
        logits(MODEL, each, random_tokens(prompt))
    ids, planned, done = random_tokens(50, seed=1), cycle(plan), 0
    while done < len(ids):
        rows, right, evicted = next(planned)
        rows = min(rows, cache.draft_room, len(ids) - done)
        if rows < 2:
            found, right = logits(MODEL, cache, ids[done : done + 1]), 1
        else:
            right = min(right, rows)
            wrong = [(id_ + 1) % 256 for id_ in ids[done + right : done + rows]]
            found = draft(MODEL, cache, [*ids[done : done + right], *wrong], right)
        expected = np.concatenate([logits(MODEL, plain, [id_]) for id_ in ids[done : done + right]])
        np.testing.assert_allclose(found, expected, atol=2e-4, rtol=1e-3)
        done += right
        if keep + 2 + evicted < tokens_held(cache):
            for each in (cache, plain):
                each.evict(keep + 2, keep + 2 + evicted)
    check_same_state(cache, plain, tolerance=1e-4)
    assert all(w.keys is not None and w.keys.shape[2] <= window + 16 for w in windows(cache))
