"""Invalid values are refused when they are given, not when they are used."""

from typing import Any

import pytest

from mlxchat.errors import UsageError
from mlxchat.options import flag
from mlxchat.settings import CacheSettings, GenerationSettings, SamplingSettings, recommended


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (CacheSettings, {"max_kv_size": 0}),
        (CacheSettings, {"max_kv_size": 4, "keep": 4}),
        (CacheSettings, {"keep": -1}),
        (CacheSettings, {"prefill_step_size": 0}),
        (SamplingSettings, {"temp": -0.1}),
        (SamplingSettings, {"temp": float("nan")}),
        (SamplingSettings, {"temp": float("inf")}),
        (SamplingSettings, {"top_p": 0.0}),
        (SamplingSettings, {"top_p": 1.1}),
        (SamplingSettings, {"top_k": -1}),
        (SamplingSettings, {"min_p": 1.5}),
        (SamplingSettings, {"repetition_penalty": 0.0}),
        (SamplingSettings, {"seed": -1}),
        (SamplingSettings, {"seed": 2**64}),
        (GenerationSettings, {"max_tokens": 0}),
        (GenerationSettings, {"max_tokens": -2}),
        (GenerationSettings, {"stop": ("",)}),
        (GenerationSettings, {"logprobs": -1}),
    ],
)
def test_an_invalid_value_is_refused_naming_its_field(kind: Any, values: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as error:
        kind(**values)
    assert str(error.value).split()[0] in {flag(name) for name in values}


def test_only_a_models_own_settings_are_recommended() -> None:
    assert recommended({}) == {}
    assert recommended({"temperature": 0.6, "top_p": 0.95, "top_k": 20, "x": 1}) == {
        "temp": 0.6,
        "top_p": 0.95,
        "top_k": 20,
    }
    assert recommended({"do_sample": False, "temperature": 0.6}) == {"temp": 0.0}
    assert recommended({"temperature": "hot", "top_p": None}) == {}


@pytest.mark.parametrize(
    ("values", "messages"),
    [
        ({"top_p": 0.9}, ["--top-p has no effect at temperature 0: set --temp"]),
        (
            {"xtc_probability": 0.5},
            ["--xtc-probability has no effect at temperature 0: set --temp"],
        ),
        ({"top_p": 0.9, "temp": 0.7}, []),
        # Off, as by default.
        ({"top_p": 1.0, "top_k": 0, "temp": 0.0}, []),
        (
            {"xtc_threshold": 0.2, "temp": 1},
            ["--xtc-threshold has no effect without --xtc-probability"],
        ),
        ({"dry_base": 2.0}, ["--dry-base has no effect without --dry-multiplier"]),
        ({"dry_base": 2.0, "dry_multiplier": 0.8}, []),
        ({"repetition_penalty": 1.1, "seed": 7, "logit_bias": ("1=2",)}, []),
    ],
)
def test_a_chosen_value_without_effect_is_named(
    values: dict[str, Any], messages: list[str]
) -> None:
    assert [*SamplingSettings(**values).without_effect(values)] == messages
