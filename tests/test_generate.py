"""The loops: their results, the cache they leave, their stats and their ends."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx import nn

from mlxchat.cache.build import make_cache
from mlxchat.cache.layers import Cache
from mlxchat.engine import batch
from mlxchat.engine.batch import SharedPrefixes
from mlxchat.engine.generate import decode, generate
from mlxchat.engine.prefill import prefill
from mlxchat.engine.reply import Reply, ResumePoint, asked
from mlxchat.engine.sampling import Chooser, Token
from mlxchat.models.load import load_directory
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings, SamplingSettings
from scripts.tiny_model import tiny_config, write_tiny_model
from tests.conftest import build_random_model

PROMPT = np.random.default_rng(0).integers(0, 256, 100).astype(np.int32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", seed=1)
    return load_directory(directory, "tiny", dtype="auto", notify=lambda _: None)


def begin(model: Model, cache: Cache | None = None, **settings: Any) -> Reply:
    chosen = GenerationSettings(**({"max_tokens": 20, "ignore_eos": True} | settings))
    cache = make_cache(model.network) if cache is None else cache
    return Reply(model, PROMPT, cache, settings=chosen)


def ids_of(tokens: Iterable[Token]) -> list[int]:
    return [token.id for token in tokens if token.id is not None]


def plain_greedy(network: nn.Module, ids: list[int], n: int) -> list[int]:
    """Recomputes the whole text for every token."""
    ids = list(ids)
    for _ in range(n):
        ids.append(int(mx.argmax(network(mx.array([ids]))[0, -1]).item()))  # type: ignore[arg-type]
    return ids[-n:]


def test_prefill_evaluates_the_cache_but_not_the_logits() -> None:
    peak: list[int] = []
    for vocabulary in (288, 28_800):
        network = build_random_model(tiny_config(vocabulary=vocabulary))
        cache = make_cache(network)
        mx.eval(network.parameters())
        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        prefill(network, cache, PROMPT, step_size=50)
        peak.append(mx.get_peak_memory() - before)
    # Logits of 50 rows would take another 5.7 MB.
    assert peak[1] - peak[0] < 1_000_000


def test_memory_does_not_grow_with_generated_tokens() -> None:
    network = build_random_model(tiny_config(vocabulary=50_000))
    cache = make_cache(network, 64)
    prefill(network, cache, PROMPT[:-1], step_size=50)
    chooser = Chooser(PROMPT, SamplingSettings(), GenerationSettings(logprobs=5))
    tokens = decode(network, cache, chooser, int(PROMPT[-1]), max_tokens=150)
    held = [(token, mx.get_active_memory()) for token in tokens]
    # A row of logits is 200 kB: one for each token would add up to 20 MB.
    assert held[-1][1] - held[50][1] < 200_000
    assert len(held) == 150


def test_log_probabilities_are_the_models_likeliest_first(model: Model) -> None:
    token = next(generate(begin(model, logprobs=3, max_tokens=1)))
    logits = np.array(model.network(mx.array(PROMPT)[None])[0, -1]).astype(np.float64)
    expected = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    order = np.argsort(-expected)[:3]
    assert [id_ for id_, _ in token.top] == order.tolist()
    np.testing.assert_allclose([logprob for _, logprob in token.top], expected[order], atol=1e-4)
    assert token.logprob == pytest.approx(expected[token.id], abs=1e-4)


def test_an_end_token_ends_a_generation_and_is_not_counted(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = plain_greedy(model.network, PROMPT.tolist(), 20)
    end = ids[6]
    first = ids.index(end)
    monkeypatch.setattr(model.tokenizer, "eos_ids", frozenset([end]))
    reply = begin(model, ignore_eos=False)
    assert ids_of(generate(reply)) == ids[:first]
    assert reply.stats.finish_reason == "stop"
    assert reply.stats.generated_tokens == first


def test_an_interruption_takes_effect_between_tokens_and_prefill_steps(model: Model) -> None:
    reply = begin(model)
    list(generate(reply, ends=[asked(lambda: reply.generated == 6)]))
    assert reply.stats.finish_reason == "interrupted"
    # The token already being computed is yielded too.
    assert reply.stats.generated_tokens == 7
    steps: list[int] = []
    stopped = begin(model)
    ends, note = [asked(lambda: len(steps) == 3)], lambda done, _: steps.append(done)
    assert list(generate(stopped, ends=ends, step_size=10, on_prefill=note)) == []
    assert steps == [0, 10, 20]
    assert stopped.stats.finish_reason == "interrupted"


def test_stats_count_what_happened(model: Model) -> None:
    reply = begin(model, make_cache(model.network, 32, 4))
    list(generate(reply))
    stats = reply.stats
    assert stats.finish_reason == "length"
    assert stats.prompt_tokens == 100
    assert stats.generated_tokens == 20
    assert stats.kv_tokens == 32
    # The last token was never added.
    assert stats.evicted_tokens == 100 + 19 - 32
    heads, dim, layers, float32 = 2, 8, 2, 4
    # Keys and values of the window, and the original keys of the 4 kept.
    assert stats.kv_bytes == heads * dim * layers * float32 * (2 * 32 + 4)
    assert stats.peak_memory_bytes >= stats.kv_bytes
    assert 0 < stats.ttft_s < 60
    assert stats.prefill_tokens_per_s > 0
    assert stats.decode_tokens_per_s > 0


@pytest.mark.parametrize("pause_every", [1, 7])
def test_a_pause_changes_nothing_and_can_be_resumed_from(model: Model, pause_every: int) -> None:
    """Text of random bytes, with incomplete characters and stop texts."""
    sampling = SamplingSettings(temp=1.5, top_p=0.95, repetition_penalty=1.3, seed=3)
    settings = GenerationSettings(max_tokens=60, ignore_eos=True, stop=("\x7f\x7f\x7f",))
    paused: list[tuple[ResumePoint, Cache, int]] = []
    seen: list[Token] = []

    def begin_in(cache: Cache) -> Reply:
        return Reply(model, PROMPT, cache, sampling=sampling, settings=settings)

    whole = list(generate(begin_in(make_cache(model.network, 40, 4))))
    cache = make_cache(model.network, 40, 4)
    reply = begin_in(cache)
    while True:
        seen += generate(reply, tokens=pause_every)
        if reply.finish_reason is not None:
            break
        assert reply.generated == len(seen)
        paused.append((reply.here(), cache.fork(), len(seen)))
    assert seen == whole
    assert [point.generated for point, *_ in paused] == list(range(pause_every, 60, pause_every))
    for point, forked, count in paused[:: max(len(paused) // 6, 1)]:
        tokens = len(PROMPT)
        resumed = Reply.resume(
            model, point, forked, prompt_tokens=tokens, sampling=sampling, settings=settings
        )
        assert list(generate(resumed)) == whole[count:]
        stats = resumed.stats
        assert (stats.prompt_tokens, stats.cached_tokens) == (tokens, tokens)
        assert (stats.prefilled_tokens, stats.generated_tokens) == (0, 60)
    fewer = replace(settings, max_tokens=3)
    ended = Reply.resume(model, *paused[-1][:2], prompt_tokens=1, sampling=sampling, settings=fewer)
    assert [token.text for token in generate(ended) if token.id is not None] == []
    assert ended.finish_reason == "length"


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=7), max_size=8))
def test_what_prompts_share_is_what_each_of_them_begins_with(prompts: list[list[int]]) -> None:
    """The caches have tokens in place of layers."""
    texts = [np.array(each, np.int32) for each in prompts]

    def read(cache: Cache, ids: np.ndarray, start: int, stop: int) -> tuple[int, int]:
        cache.extend(ids[start:stop].tolist())
        return stop - start, 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "MIN_TOKENS", 1)
        prefixes = SharedPrefixes(Cache)
        for number, ids in enumerate(texts):
            begun = prefixes.begin(ids, texts[number + 1 :], read)
            assert [*begun.cache] == ids[: begun.held].tolist()
            assert begun.held < len(ids)
