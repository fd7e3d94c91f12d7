"""How to open a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mlxchat.options import Must, Panel, check_options, option, same_as
from mlxchat.request.amounts import parse_bytes, parse_window
from mlxchat.settings import CacheSettings, SamplingSettings, random_seed

Window = int | Literal["auto"] | None


@dataclass(frozen=True, slots=True)
class Setup:
    """How to open a model.

    `model` None means the default model. `window` is in tokens; None means unbounded, "auto" as
    much as the model and the memory allow. `sampling` holds fields of SamplingSettings; those that
    are missing follow the model's own recommendation.
    """

    model: str | None = option(
        None,
        "Model: alias, Hub ID, .gguf file or directory",
        Panel.MODEL,
        short="m",
        common=True,
        metavar="MODEL",
        if_unset="the configured one, else one that fits",
        completes="model",
        saved=True,
    )
    adapter: str | None = option(
        None, "Directory of an adapter", Panel.MODEL, metavar="DIR", saved=True
    )
    chat_template: Path | None = option(
        None, "Chat template to use instead of the model's", Panel.MODEL
    )
    offline: bool = option(False, "Never use the network", Panel.MODEL)
    device: str = option(
        "auto", "Device to compute on", Panel.MODEL, choices=("auto", "cpu", "gpu")
    )
    dtype: str = option(
        "auto",
        "Data type of the weights in memory",
        Panel.MODEL,
        choices=("auto", "float16", "bfloat16", "float32", "stored"),
        saved=True,
    )
    pipeline: bool = option(False, "With mlx.launch: split the model by layers", Panel.MODEL)
    window: Window = option(
        "auto",
        "Window in tokens, auto, or none for unbounded",
        Panel.WINDOW,
        common=True,
        name="max-kv-size",
        metavar="TOKENS",
        parse=parse_window,
        must=Must("be at least 1 token", lambda value: value == "auto" or value >= 1),
        saved=True,
    )
    keep: int = same_as(CacheSettings, "keep")
    prefill_step_size: int = same_as(CacheSettings, "prefill_step_size")
    prefix_cache: bool = option(True, "Keep long prompts in the prefix cache on disk", Panel.WINDOW)
    prefix_cache_bytes: int = option(
        4_000_000_000,
        "Maximum size of the prefix cache",
        Panel.WINDOW,
        name="prefix-cache-size",
        metavar="SIZE",
        parse=parse_bytes,
        written="4GB",
    )
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int = field(default_factory=random_seed)

    def __post_init__(self) -> None:
        check_options(self)
        self.cache_settings()
        self.sampling_settings({})

    def cache_settings(self) -> CacheSettings:
        """The window as known before the model is loaded: None if it is "auto"."""
        window = None if self.window == "auto" else self.window
        return CacheSettings(window, self.keep, self.prefill_step_size)

    def sampling_settings(self, recommended: Mapping[str, Any]) -> SamplingSettings:
        """The values that were chosen, else the `recommended` ones, else the defaults."""
        return SamplingSettings(**{**recommended, **self.sampling}, seed=self.seed)
