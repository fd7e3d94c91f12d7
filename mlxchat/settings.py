"""Settings of the core: frozen dataclasses that reject invalid values."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mlxchat.errors import UsageError
from mlxchat.options import (
    NOT_EMPTY,
    Must,
    Option,
    at_least,
    between,
    check_options,
    flag,
    option,
    options_of,
)

_BIAS = re.compile(r"[0-9]{1,9}=[+-]?[0-9]{1,9}(\.[0-9]{1,9})?")

DEFAULT_KEEP = 4
DEFAULT_PREFILL_STEP_SIZE = 512

# The longest draft, in tokens: with the token before it, it fills the window's spare slots.
MAX_DRAFT = 15


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """The window `W`, the kept tokens `K` and the prefill step `S`, all in tokens.

    `max_kv_size` None means an unbounded window. Raises UsageError unless the window holds the kept
    tokens and at least one more.
    """

    max_kv_size: int | None = option(None, "Window size in tokens", must=at_least(1))
    keep: int = option(
        DEFAULT_KEEP, "Pin at least this many first tokens", metavar="TOKENS", must=at_least(0)
    )
    prefill_step_size: int = option(
        DEFAULT_PREFILL_STEP_SIZE, "Prompt tokens per step", metavar="TOKENS", must=at_least(1)
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.max_kv_size is not None and self.max_kv_size <= self.keep:
            raise UsageError(
                f"a window of {self.max_kv_size:,} tokens leaves no room for more than the "
                f"{self.keep:,} kept ones: --keep must be smaller than --max-kv-size"
            )


def _sampling(default: Any, help_text: str, must: Must | None = None, **more: Any) -> Any:
    return option(default, help_text, must=must, in_chat=True, **more)


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How to sample a token. `temp` 0 is greedy; a `top_p` of 1 and zeros of the others are off.

    With a `dry_multiplier`, DRY penalizes tokens that extend a repetition of `dry_allowed_length`
    tokens or more of the latest 2,048: by the multiplier, times `dry_base` for each token beyond
    the allowed length. The other penalties apply to the latest 20 tokens, as in mlx-lm; a
    `repetition_penalty` of 1 and the others at 0 are off. `logit_bias` is added to the logits of
    tokens, each as "ID=BIAS". `seed` None stands for a random one.
    """

    temp: float = _sampling(
        0.0, "Temperature; 0 is greedy", at_least(0), aliases=("temperature",), common=True
    )
    top_p: float = _sampling(
        1.0,
        "Nucleus sampling: keep tokens up to this total probability",
        Must("be above 0 and at most 1", lambda value: 0 < value <= 1),
        needs="temp",
    )
    top_k: int = _sampling(
        0, "Sample from the K likeliest tokens; 0 is off", at_least(0), metavar="K", needs="temp"
    )
    min_p: float = _sampling(
        0.0,
        "Minimum probability relative to the likeliest token; 0 is off",
        between(0, 1),
        needs="temp",
    )
    repetition_penalty: float = _sampling(
        1.0,
        "Penalize the last 20 tokens; 1 is off",
        Must("be above 0 (1 is off)", lambda value: value > 0),
    )
    presence_penalty: float = _sampling(0.0, "Penalize the last 20 tokens, once each; 0 is off")
    frequency_penalty: float = _sampling(
        0.0, "Penalize the last 20 tokens per occurrence; 0 is off"
    )
    dry_multiplier: float = _sampling(
        0.0, "Penalize tokens that extend a repetition; 0 is off", at_least(0)
    )
    dry_base: float = _sampling(
        1.75,
        "Growth of that penalty with each repeated token",
        between(1, 10),
        needs="dry_multiplier",
    )
    dry_allowed_length: int = _sampling(
        2,
        "Repeated tokens from which on DRY penalizes",
        between(1, 32),
        metavar="TOKENS",
        needs="dry_multiplier",
    )
    xtc_probability: float = _sampling(
        0.0, "Probability of excluding the top choices; 0 is off", between(0, 1), needs="temp"
    )
    xtc_threshold: float = _sampling(
        0.1,
        "Probability above which XTC excludes tokens, except the last",
        between(0, 0.5),
        needs="xtc_probability",
    )
    logit_bias: tuple[str, ...] = _sampling(
        (),
        "Add BIAS to a token's logit; repeatable",
        Must("be a token's id, =, and a number", lambda value: bool(_BIAS.fullmatch(value))),
        metavar="ID=BIAS",
    )
    seed: int | None = _sampling(
        None,
        "Random seed",
        Must("be between 0 and 2^64 - 1", lambda value: 0 <= value < 2**64),
        if_unset="random",
    )

    def __post_init__(self) -> None:
        check_options(self)

    def biases(self) -> dict[int, float]:
        """The bias of each token by its id; the last one counts if it is given twice."""
        pairs = (each.split("=") for each in self.logit_bias)
        return {int(id_): float(bias) for id_, bias in pairs}

    def without_effect(self, names: Iterable[str]) -> Iterator[str]:
        """What to say of the fields `names` that change nothing because of the others."""
        known = options_of(SamplingSettings)
        for each in (known[name] for name in names if name in known):
            is_off = each.needs and getattr(self, each.needs) == 0
            if is_off and getattr(self, each.field) != each.default:
                yield f"{each.flag} has no effect while {flag(each.needs)} is 0"


def _parse_limit(written: Any) -> int:
    """Raises ValueError."""
    try:
        return -1 if written == "off" else int(str(written))
    except ValueError:
        raise ValueError(f"must be a whole number or off, got {written!r}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSettings:
    """When generation ends and what it reports about each token. Requests inherit these options.

    `max_tokens` -1 means no limit. The end of the text is not drawn before `min_tokens`. Thoughts
    are closed once they have `think_budget` tokens, and the answer begins; -1 is off. `logprobs`
    None computes no log-probabilities, 0 only the sampled token's, K > 0 also those of the K
    likeliest tokens. `lookup` drafts tokens that followed the latest ones when they last appeared;
    None means on, unless something rules it out.
    """

    max_tokens: int = option(
        -1,
        "Maximum tokens to generate",
        aliases=("predict", "n-predict"),
        parse=_parse_limit,
        short="n",
        common=True,
        if_unset="off, no limit",
        metavar="TOKENS",
        must=Must("be at least 1, or -1 (off)", lambda value: value == -1 or value >= 1),
        in_chat=True,
    )
    min_tokens: int = option(
        0,
        "Minimum tokens before the text may end",
        metavar="TOKENS",
        must=at_least(0),
        in_chat=True,
    )
    think_budget: int = option(
        -1,
        "Maximum tokens of thoughts before the answer begins, or off",
        metavar="TOKENS",
        parse=_parse_limit,
        must=Must("be at least 0, or -1 (off)", lambda value: value >= -1),
        if_unset="off",
        in_chat=True,
    )
    stop: tuple[str, ...] = option((), "Stop before this text; repeatable", must=NOT_EMPTY)
    ignore_eos: bool = option(False, "Continue past the end-of-text token")
    lookup: bool | None = option(
        None,
        "Speed up text that repeats earlier text",
        if_unset="on, if possible",
        in_chat=True,
    )
    logprobs: int | None = option(
        None,
        "With JSON: log-probabilities of the K likeliest tokens",
        metavar="K",
        must=at_least(0),
    )

    def __post_init__(self) -> None:
        check_options(self)

    @classmethod
    def of(cls, request: Any) -> "GenerationSettings":
        """The fields of a `request` that are declared here."""
        return cls(**{name: getattr(request, name) for name in options_of(cls)})


class OnLoop(StrEnum):
    """What a generation does when the text repeats itself."""

    WARN = "warn"
    STOP = "stop"


class Overflow(StrEnum):
    """What is read of documents that are larger than the window: in turn, the first and the latest
    tokens, the passages that the question needs, each part in turn, or nothing."""

    ROLL = "roll"
    PASSAGES = "passages"
    MAP = "map"
    STOP = "stop"


def random_seed() -> int:
    return int.from_bytes(os.urandom(4))


def recommended(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling values in a model's generation_config.json, by the names of SamplingSettings.

    A temperature counts unless `do_sample` is false, which is greedy. Invalid values are left out.
    """
    found = _sampling_values(generation_config)
    values = {each.field: each.type(value) for _, each, value in found if _can_have(each, value)}
    return values | ({"temp": 0.0} if generation_config.get("do_sample") is False else {})


def unusable(generation_config: Mapping[str, Any]) -> list[str]:
    """The sampling values in a model's generation_config.json that the options cannot have."""
    values = _sampling_values(generation_config)
    return [key for key, each, value in values if not _can_have(each, value)]


def _sampling_values(generation_config: Mapping[str, Any]) -> Iterator[tuple[str, Option, Any]]:
    """Each value that is given, with its key and its option."""
    for name, each in options_of(SamplingSettings).items():
        key = "temperature" if name == "temp" else name
        value = generation_config.get(key)
        if name != "seed" and not each.many and value is not None:
            yield key, each, value


def _can_have(option: Option, value: Any) -> bool:
    # A larger integer may be no number for a sampler.
    is_number = type(value) in (int, float) and abs(value) < 2**31
    return is_number and option.must is not None and option.must.holds(value)
