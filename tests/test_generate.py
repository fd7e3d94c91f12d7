"""The loops: what they compute, what they leave in the cache, what they tell and when they stop."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from mlxchat.cache import Cache, make_cache, tokens_held
from mlxchat.engine.generate import Generation, ResumePoint, Token
from mlxchat.engine.loops import decode, prefill
from mlxchat.models.load import load_directory
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings, SamplingSettings
from mlxchat.store.snapshot import random_state
from scripts.tiny_model import tiny_config, write_tiny_model
from tests.conftest import build_random_model

PROMPT = np.random.default_rng(0).integers(0, 256, 100).astype(np.int32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", seed=1)
    return load_directory(directory, "tiny", dtype="auto", notify=lambda _: None)


def generate(model: Model, cache: Cache | None = None, **options: Any) -> list[Token]:
    settings = GenerationSettings(**({"max_tokens": 20, "ignore_eos": True} | options))
    cache = make_cache(model.network) if cache is None else cache
    return list(Generation(model, PROMPT, cache, settings=settings))


def ids_of(tokens: Iterable[Token]) -> list[int]:
    return [token.id for token in tokens if token.id is not None]


def plain_greedy(network: nn.Module, ids: list[int], n: int) -> list[int]:
    """The whole text from scratch for every token."""
    ids = list(ids)
    for _ in range(n):
        ids.append(int(mx.argmax(network(mx.array([ids]))[0, -1]).item()))  # type: ignore[arg-type]
    return ids[-n:]


@pytest.mark.parametrize("step_size", [1, 7, 33, 512])
def test_greedy_text_is_the_same_whatever_the_step_size(model: Model, step_size: int) -> None:
    generation = Generation(
        model,
        PROMPT,
        make_cache(model.network, 200),
        settings=GenerationSettings(max_tokens=20, ignore_eos=True),
        prefill_step_size=step_size,
    )
    assert ids_of(generation) == plain_greedy(model.network, PROMPT.tolist(), 20)


def test_prefill_evaluates_the_cache_and_never_the_logits() -> None:
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
    # Logits of 50 rows would have taken 5.7 MB more.
    assert peak[1] - peak[0] < 1_000_000


def test_memory_does_not_grow_with_the_tokens_generated() -> None:
    network = build_random_model(tiny_config(vocabulary=50_000))
    cache = make_cache(network, 64)
    prefill(network, cache, PROMPT[:-1], step_size=50)
    live: list[int] = []
    held = []
    tokens = decode(network, cache, PROMPT, sampling=SamplingSettings(), logprobs=5, max_tokens=400)
    for token in tokens:
        held.append(token)
        live.append(mx.get_active_memory())
    # A row of logits is 200 kB: were one kept for each token it would be 80 MB by now.
    assert live[-1] - live[100] < 200_000
    assert len(held) == 400


def test_the_cache_goes_on_where_the_generation_ended(model: Model) -> None:
    cache = make_cache(model.network)
    ids = ids_of(generate(model, cache, max_tokens=5))
    # The last token was yielded and not put in.
    assert tokens_held(cache) == len(PROMPT) + 4
    more = Generation(
        model,
        np.array(ids[-1:], np.int32),
        cache,
        settings=GenerationSettings(max_tokens=5, ignore_eos=True),
    )
    assert ids + ids_of(more) == plain_greedy(model.network, PROMPT.tolist(), 10)


def test_log_probabilities_are_the_models_and_the_likeliest_come_first(model: Model) -> None:
    token = generate(model, logprobs=3, max_tokens=1)[0]
    logits = np.array(model.network(mx.array(PROMPT)[None])[0, -1]).astype(np.float64)
    expected = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    order = np.argsort(-expected)[:3]
    assert [id_ for id_, _ in token.top] == order.tolist()
    np.testing.assert_allclose([logprob for _, logprob in token.top], expected[order], atol=1e-4)
    assert token.logprob == pytest.approx(expected[token.id], abs=1e-4)


def test_more_likeliest_tokens_than_the_vocabulary_has_are_all_of_them(model: Model) -> None:
    token = generate(model, logprobs=10_000, max_tokens=1)[0]
    assert len(token.top) == 288


def test_no_log_probabilities_are_computed_unless_asked_for(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("log-softmax was computed")

    monkeypatch.setattr(mx, "logsumexp", refuse)
    assert all(token.logprob is None for token in generate(model))
    sampling = SamplingSettings(temp=1.0, top_k=5, min_p=0.1, seed=1)
    list(
        Generation(
            model,
            PROMPT,
            make_cache(model.network),
            sampling=sampling,
            settings=GenerationSettings(max_tokens=3),
        )
    )


def sampled(model: Model, **sampling: Any) -> list[int]:
    generation = Generation(
        model,
        PROMPT,
        make_cache(model.network),
        sampling=replace(SamplingSettings(temp=1.0), **sampling),
        settings=GenerationSettings(max_tokens=30, ignore_eos=True),
    )
    return ids_of(generation)


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(model: Model) -> None:
    assert sampled(model, seed=7) == sampled(model, seed=7)
    assert sampled(model, seed=7) != sampled(model, seed=8)


def test_sampling_that_leaves_one_token_only_is_greedy(model: Model) -> None:
    greedy = plain_greedy(model.network, PROMPT.tolist(), 30)
    assert sampled(model, top_k=1, seed=3) == greedy
    assert sampled(model, top_p=1e-6, seed=3) == greedy
    assert sampled(model, min_p=1.0, seed=3) == greedy


def test_a_top_k_beyond_the_vocabulary_is_off(model: Model) -> None:
    assert sampled(model, top_k=100_000, seed=3) == sampled(model, seed=3)


def test_a_repetition_penalty_looks_at_the_latest_twenty_tokens(model: Model) -> None:
    """A penalty beyond all bounds makes each token differ from the twenty before it."""
    ids = PROMPT.tolist() + sampled(model, temp=0.0, repetition_penalty=1e9)
    for i in range(len(PROMPT), len(ids)):
        assert ids[i] not in ids[i - 20 : i]


def test_it_stops_at_an_end_token_and_does_not_count_it(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = plain_greedy(model.network, PROMPT.tolist(), 20)
    end = ids[6]
    first = ids.index(end)
    monkeypatch.setattr(model.tokenizer, "eos_ids", frozenset([end]))
    generation = Generation(
        model, PROMPT, make_cache(model.network), settings=GenerationSettings(max_tokens=20)
    )
    assert ids_of(generation) == ids[:first]
    assert generation.stats.finish_reason == "stop"
    assert generation.stats.generated_tokens == first


def test_a_stop_text_ends_it_and_is_not_shown(model: Model) -> None:
    text = "".join(token.text for token in generate(model, max_tokens=60))
    stop = text[10:13]
    shown = generate(model, max_tokens=60, stop=(stop,))
    assert "".join(token.text for token in shown) == text[: text.index(stop)]


def test_an_interruption_ends_it_between_tokens_and_between_prefill_steps(model: Model) -> None:
    seen: list[Token] = []
    generation = Generation(
        model,
        PROMPT,
        make_cache(model.network),
        settings=GenerationSettings(ignore_eos=True),
        should_stop=lambda: len(seen) == 5,
    )
    for token in generation:
        seen.append(token)
    assert generation.stats.finish_reason == "interrupted"
    # The one that was being computed already comes out as well.
    assert generation.stats.generated_tokens == 6
    steps: list[int] = []
    stopped = Generation(
        model,
        PROMPT,
        make_cache(model.network),
        prefill_step_size=10,
        on_prefill=lambda done, _: steps.append(done),
        should_stop=lambda: len(steps) == 3,
    )
    assert list(stopped) == []
    assert steps == [0, 10, 20]
    assert stopped.stats.finish_reason == "interrupted"
    assert stopped.stats.generated_tokens == 0


def test_stats_count_what_happened(model: Model) -> None:
    cache = make_cache(model.network, 32, 4)
    generation = Generation(
        model, PROMPT, cache, settings=GenerationSettings(max_tokens=20, ignore_eos=True)
    )
    list(generation)
    stats = generation.stats
    assert stats.finish_reason == "length"
    assert stats.prompt_tokens == 100
    assert stats.generated_tokens == 20
    assert stats.kv_tokens == 32
    # The last token never went in.
    assert stats.evicted_tokens == 100 + 19 - 32
    heads, dim, layers, float32 = 2, 8, 2, 4
    # Keys and values of the window, and the original keys of the 4 kept.
    assert stats.kv_bytes == heads * dim * layers * float32 * (2 * 32 + 4)
    assert stats.peak_memory_bytes >= stats.kv_bytes
    assert 0 < stats.ttft_s < 60
    assert stats.prefill_tokens_per_s > 0
    assert stats.decode_tokens_per_s > 0


def test_a_prompt_of_one_token_needs_no_prefill(model: Model) -> None:
    generation = Generation(
        model,
        PROMPT[:1],
        make_cache(model.network),
        settings=GenerationSettings(max_tokens=3, ignore_eos=True),
    )
    expected = plain_greedy(model.network, PROMPT[:1].tolist(), 3)
    assert ids_of(generation) == expected


def test_text_is_complete_even_if_it_ends_within_a_character(model: Model) -> None:
    for n in (1, 7, 40):
        tokens = generate(model, max_tokens=n)
        ids = ids_of(tokens)
        assert len(ids) == n
        whole = model.tokenizer.decode(ids)
        text = "".join(token.text for token in tokens)
        assert text.replace("\ufffd", "") == whole.replace("\ufffd", "")


def test_a_model_directory_is_all_that_a_library_user_needs(tiny_model: Path) -> None:
    import mlxchat

    loaded = mlxchat.load(str(tiny_model))
    cache = mlxchat.make_cache(loaded.network, max_kv_size=64, keep=4)
    prompt = loaded.tokenizer.prompt("Hello")
    settings = mlxchat.GenerationSettings(max_tokens=5, ignore_eos=True)
    tokens = list(mlxchat.Generation(loaded, prompt.ids, cache, settings=settings))
    assert len(ids_of(tokens)) == 5


@pytest.mark.parametrize("pause_every", [1, 7, 20])
def test_a_pause_changes_nothing_and_from_it_another_generation_goes_on(
    model: Model, pause_every: int
) -> None:
    """Text of random bytes, with characters and stop texts that are never finished."""
    sampling = SamplingSettings(temp=1.5, top_p=0.95, repetition_penalty=1.3, seed=3)
    settings = GenerationSettings(max_tokens=60, ignore_eos=True, stop=("\x7f\x7f\x7f",))
    paused: list[tuple[ResumePoint, Cache, int, int]] = []
    seen: list[Token] = []
    cache = make_cache(model.network, 40, 4)

    def on_pause(point: ResumePoint) -> SamplingSettings:
        assert point.generated == len(seen)
        paused.append((point, cache.fork(), random_state(), len(seen)))
        return sampling

    whole = list(
        Generation(
            model, PROMPT, make_cache(model.network, 40, 4), sampling=sampling, settings=settings
        )
    )
    for token in Generation(
        model,
        PROMPT,
        cache,
        sampling=sampling,
        settings=settings,
        pause_every=pause_every,
        on_pause=on_pause,
    ):
        seen.append(token)
    assert seen == whole
    assert [point.generated for point, *_ in paused] == list(range(pause_every, 60, pause_every))
    for point, forked, random, count in paused[:: max(len(paused) // 6, 1)]:
        mx.random.seed(random)
        resumed = Generation.resume(
            model, point, forked, sampling=replace(sampling, seed=None), settings=settings
        )
        assert list(resumed) == whole[count:]
        assert resumed.stats.generated_tokens == 60


def test_from_where_it_was_interrupted_it_goes_on(model: Model) -> None:
    sampling = SamplingSettings(temp=1.0, seed=3)
    settings = GenerationSettings(max_tokens=30, ignore_eos=True)
    whole = list(
        Generation(model, PROMPT, make_cache(model.network), sampling=sampling, settings=settings)
    )
    cache = make_cache(model.network)
    seen: list[Token] = []
    generation = Generation(
        model,
        PROMPT,
        cache,
        sampling=sampling,
        settings=settings,
        should_stop=lambda: len(seen) >= 11,
    )
    for token in generation:
        seen.append(token)
    assert generation.resume_point is not None
    resumed = Generation.resume(
        model,
        generation.resume_point,
        cache,
        sampling=replace(sampling, seed=None),
        settings=settings,
    )
    before = [token for token in seen if token.id is not None]
    assert [*before, *resumed] == whole
