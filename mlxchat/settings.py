"""What can be chosen, as frozen dataclasses: each default once, impossible values refused here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mlxchat.errors import UsageError
from mlxchat.wording import Field

DEFAULT_KEEP = 4
DEFAULT_PREFILL_STEP_SIZE = 512
DEFAULT_CHECKPOINT_EVERY = 2_000  # tokens
DEFAULT_PREFIX_CACHE_BYTES = 4_000_000_000
DEFAULT_PREFIX_CACHE_SIZE = f"{DEFAULT_PREFIX_CACHE_BYTES // 10**9}GB"  # as an option


def _require(condition: bool, field: str, *words: object) -> None:
    if not condition:
        raise UsageError(Field(field), *words)


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """The window `W`, the kept tokens `K` and the prefill step `S`, all in tokens.

    `max_kv_size` None is a window without bound. Raises UsageError for values that no cache can
    have: a window must hold the kept tokens and at least one more.
    """

    max_kv_size: int | None = None
    keep: int = DEFAULT_KEEP
    prefill_step_size: int = DEFAULT_PREFILL_STEP_SIZE

    def __post_init__(self) -> None:
        _require(self.keep >= 0, "keep", f" must not be negative, got {self.keep}")
        _require(
            self.prefill_step_size >= 1,
            "prefill_step_size",
            f" must be at least 1 token, got {self.prefill_step_size}",
        )
        if self.max_kv_size is not None:
            _require(
                self.max_kv_size >= 1,
                "max_kv_size",
                f" must be at least 1 token, got {self.max_kv_size}",
            )
            _require(
                self.max_kv_size > self.keep,
                "max_kv_size",
                f" {self.max_kv_size} leaves no room beside the {self.keep} kept tokens: make it "
                "larger than ",
                Field("keep"),
            )


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How a token is drawn. `temp` 0 is greedy; `top_p` 1, `top_k` 0 and `min_p` 0 are off.

    `repetition_penalty` 1 is off and looks at the latest 20 tokens otherwise (mlx-lm's rule).
    `seed` None leaves MLX's global random state as it is.
    """

    temp: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _require(
            self.temp >= 0 and math.isfinite(self.temp),
            "temp",
            f" must be 0 or more, got {self.temp}",
        )
        _require(0 < self.top_p <= 1, "top_p", f" must be above 0 and at most 1, got {self.top_p}")
        _require(self.top_k >= 0, "top_k", f" must be 0 (off) or more, got {self.top_k}")
        _require(0 <= self.min_p <= 1, "min_p", f" must be between 0 and 1, got {self.min_p}")
        _require(
            self.repetition_penalty > 0 and math.isfinite(self.repetition_penalty),
            "repetition_penalty",
            f" must be above 0 (1 is off), got {self.repetition_penalty}",
        )
        _require(
            self.seed is None or 0 <= self.seed < 2**64,
            "seed",
            f" must be between 0 and 2^64 - 1, got {self.seed}",
        )


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """When generation ends and what is told of each token.

    `max_tokens` -1 is no limit. `logprobs` None computes no log-probabilities at all, 0 only the
    drawn token's, K > 0 the K likeliest as well.
    """

    max_tokens: int = -1
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _require(
            self.max_tokens == -1 or self.max_tokens >= 1,
            "max_tokens",
            f" must be at least 1, or -1 for no limit, got {self.max_tokens}",
        )
        _require(all(self.stop), "stop", " must not be an empty text")
        _require(
            self.logprobs is None or self.logprobs >= 0,
            "logprobs",
            f" must not be negative, got {self.logprobs}",
        )


class Roll(StrEnum):
    """What a conversation does when its window is full."""

    SHIFT = "shift"
    REFILL = "refill"
    STOP = "stop"


class OnLoop(StrEnum):
    """What a generation does when its text goes round in circles."""

    WARN = "warn"
    STOP = "stop"
    NUDGE = "nudge"


def recommended(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling values of a model's generation_config.json, by the names of SamplingSettings.

    Without `do_sample` a temperature is taken as meant. Values of the wrong type are left out.
    """
    names = {
        "temperature": ("temp", float),
        "top_p": ("top_p", float),
        "top_k": ("top_k", int),
        "min_p": ("min_p", float),
        "repetition_penalty": ("repetition_penalty", float),
    }
    values = {
        name: kind(generation_config[key])
        for key, (name, kind) in names.items()
        if isinstance(generation_config.get(key), (int, float))
    }
    if generation_config.get("do_sample") is False:
        values["temp"] = 0.0
    return values
