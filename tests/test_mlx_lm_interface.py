"""Our caches in mlx-lm's own loops."""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache

from mlxchat.cache.build import make_cache
from mlxchat.cache.layers import windows
from scripts.families import build_family
from tests.reference import logits, random_tokens

# Plain, sliding, chunked, recurrent, lists of both, latent attention, latent with an indexer.
NAMES = ["llama", "gemma3_text", "llama4", "qwen3_next", "falcon_h1", "deepseek_v3", "deepseek_v32"]


def mlx_lm_generate_step(*arguments: Any, **options: Any) -> list[int]:
    # Imported here because it takes two seconds.
    from mlx_lm.generate import generate_step

    return [int(token) for token, _ in generate_step(*arguments, **options)]


@pytest.mark.parametrize("name", NAMES)
def test_mlx_lms_generate_step_runs_on_our_caches_past_the_window(name: str) -> None:
    model = build_family(name)
    prompt = random_tokens(50)
    cache = make_cache(model, 24, 4)
    generated = mlx_lm_generate_step(
        mx.array(prompt), model, max_tokens=30, prompt_cache=cache, prefill_step_size=16
    )
    assert len(generated) == 30
    assert all(window.size() <= 24 for window in windows(cache))
    expected = make_cache(model, 24, 4)
    for start in range(0, 49, 16):
        logits(model, expected, prompt[start : min(start + 16, 49)])
    token = prompt[-1]
    for found in generated:
        token = int(logits(model, expected, [token])[-1].argmax())
        assert found == token


def test_mlx_lms_trim_rewinds_our_caches() -> None:
    model = build_family("gemma3_text")
    cache = make_cache(model, 24, 4)
    for token in random_tokens(60):
        logits(model, cache, [token])
    assert can_trim_prompt_cache(cache)
    assert trim_prompt_cache(cache, 5) == 5
    assert {window.offset for window in windows(cache)} == {55}
