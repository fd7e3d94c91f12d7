"""What every command that runs a model does first: its settings, the model, the window."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mlx import nn

from mlxchat import platform
from mlxchat.cache import check_bound
from mlxchat.cli.amounts import parse_window
from mlxchat.distributed.load import lead_loading
from mlxchat.distributed.ranks import Ranks
from mlxchat.errors import CacheError
from mlxchat.models.fit import automatic_window, check_window
from mlxchat.models.load import load_directory
from mlxchat.models.model import Model
from mlxchat.models.resolve import ResolvedModel, resolve_model
from mlxchat.settings import (
    DEFAULT_PREFIX_CACHE_SIZE,
    CacheSettings,
    SamplingSettings,
    recommended,
)
from mlxchat.terminal.ask import terminal_question
from mlxchat.terminal.messages import Messages
from mlxchat.wording import Message

SAMPLING_OPTIONS = ("temp", "top_p", "top_k", "min_p", "repetition_penalty")
SAME_NAMES = (
    *("model", "offline", "device", "dtype", "keep", "prefill_step_size", "quiet"),
    *("prefix_cache", "prefix_cache_size", "pipeline"),
)


@dataclass(frozen=True, slots=True)
class Setup:
    """The options as they were given; `window` is "auto", "none" or a number of tokens."""

    model: str | None
    offline: bool
    device: str
    dtype: str
    window: str
    keep: int
    prefill_step_size: int
    sampling: dict[str, Any]
    seed: int
    quiet: bool
    prefix_cache: bool = True
    prefix_cache_size: str = DEFAULT_PREFIX_CACHE_SIZE
    pipeline: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Setup":
        """Those of a command's options that are meant here, by the names of its parameters."""
        seed = options["seed"]
        return cls(
            window=options["max_kv_size"],
            sampling={name: options[name] for name in SAMPLING_OPTIONS},
            seed=int.from_bytes(os.urandom(4)) if seed is None else seed,
            **{name: options[name] for name in SAME_NAMES},
        )

    def cache_settings(self) -> CacheSettings:
        """The window as far as it is known before the model is: not yet where it is "auto"."""
        return CacheSettings(parse_window(self.window), self.keep, self.prefill_step_size)

    def sampling_settings(self, generation_config: dict[str, Any]) -> SamplingSettings:
        """What was given, else what the model's makers recommend, else the defaults."""
        given = {name: value for name, value in self.sampling.items() if value is not None}
        return SamplingSettings(**(recommended(generation_config) | given), seed=self.seed)


def start(setup: Setup, messages: Messages) -> None:
    """Say what is unusual about this machine, and choose the device. Before any model."""
    platform.require_supported_system()
    for name in platform.untested_versions():
        messages.warn(f"{name} is outside the range that this release was tested with")
    platform.select_device(setup.device)


def find_model(setup: Setup, messages: Messages) -> ResolvedModel:
    """Where the model's files are, once they are all there: asks and downloads where it must."""
    return resolve_model(
        setup.model,
        offline=setup.offline,
        ask=terminal_question(),
        notify=messages.warn,
        show_progress=not setup.quiet,
    )


def load_model(
    setup: Setup,
    found: ResolvedModel,
    notify: Callable[[str], None],
    check: Callable[[nn.Module], None] | None = None,
    ranks: Ranks | None = None,
) -> Model:
    """The model in memory, of all `ranks` together where there are several; refused before its
    weights are read where its window cannot be kept, or where `check` refuses it."""
    settings = setup.cache_settings()

    def check_all(network: nn.Module) -> None:
        check_bound(network, settings.max_kv_size, settings.keep)
        if check is not None:
            check(network)

    if ranks is not None:
        return lead_loading(
            ranks,
            found,
            device=setup.device,
            dtype=setup.dtype,
            pipeline=setup.pipeline,
            offline=setup.offline,
            notify=notify,
            check=check_all,
        )
    return load_directory(
        found.directory,
        found.name,
        dtype=setup.dtype,
        notify=notify,
        check=check_all,
    )


def fit_window(setup: Setup, model: Model, notify: Callable[[str], None]) -> CacheSettings:
    """The settings with a window that this machine has the memory for and this model can keep.

    For one that does not fit, raises NotEnoughMemory, or on macOS warns.
    """
    settings = setup.cache_settings()
    if setup.window != "auto":
        check_window(model, settings.max_kv_size, notify)
        return settings
    fitting = replace(settings, max_kv_size=automatic_window(model, notify))
    try:
        check_bound(model.shard, fitting.max_kv_size, fitting.keep)
    except CacheError as error:
        notify(Message("memory will grow with the text: ", error))
        return settings
    return fitting


POSITIONS_RUN_ON = (
    "this model's positions cannot be moved: beyond its trained context quality will fall"
)
