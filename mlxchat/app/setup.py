"""Opening a model: what may be chosen, the model's files, its weights and its window."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mlx import nn

from mlxchat import platform
from mlxchat.app.ranks import check_ranks
from mlxchat.cache import check_bound
from mlxchat.chat.random_streams import random_seed
from mlxchat.distributed.load import lead_loading
from mlxchat.distributed.ranks import Ranks
from mlxchat.errors import CacheError
from mlxchat.models.fit import automatic_window, check_window
from mlxchat.models.load import load_directory
from mlxchat.models.model import Model
from mlxchat.models.resolve import ResolvedModel, resolve_model
from mlxchat.settings import (
    DEFAULT_KEEP,
    DEFAULT_PREFILL_STEP_SIZE,
    DEFAULT_PREFIX_CACHE_BYTES,
    CacheSettings,
    SamplingSettings,
    recommended,
)
from mlxchat.wording import Message

Notify = Callable[[str], None]
Window = int | Literal["auto"] | None

POSITIONS_RUN_ON = (
    "this model's positions cannot be moved: beyond its trained context quality will fall"
)


@dataclass(frozen=True, slots=True)
class Setup:
    """What a model is opened with.

    `model` None is the default one. `window` is in tokens; None has no bound, "auto" is what the
    model and the memory allow. `sampling` holds fields of SamplingSettings; for those it lacks or
    has as None, the model's makers are followed.
    """

    model: str | None = None
    offline: bool = False
    device: str = "auto"
    dtype: str = "auto"
    window: Window = "auto"
    keep: int = DEFAULT_KEEP
    prefill_step_size: int = DEFAULT_PREFILL_STEP_SIZE
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int = field(default_factory=random_seed)
    prefix_cache: bool = True
    prefix_cache_bytes: int = DEFAULT_PREFIX_CACHE_BYTES
    pipeline: bool = False

    def cache_settings(self) -> CacheSettings:
        """The window as far as it is known before the model is: none yet if it is "auto"."""
        window = None if self.window == "auto" else self.window
        return CacheSettings(window, self.keep, self.prefill_step_size)

    def sampling_settings(self, generation_config: Mapping[str, Any]) -> SamplingSettings:
        """What was given, else what the model's makers recommend, else the defaults."""
        given = {name: value for name, value in self.sampling.items() if value is not None}
        return SamplingSettings(**(recommended(dict(generation_config)) | given), seed=self.seed)

    def check(self) -> None:
        """Raise UsageError for values that no model can have, before anything takes time."""
        self.cache_settings()
        self.sampling_settings({})


def start(setup: Setup, notify: Notify) -> None:
    """Report what is unusual about this machine, and choose the device. Before any model."""
    platform.require_supported_system()
    for name in platform.untested_versions():
        notify(f"{name} is outside the range that this release was tested with")
    platform.select_device(setup.device)


def find_model(
    setup: Setup,
    notify: Notify,
    ask: Callable[[str], bool] | None = None,
    *,
    show_progress: bool = False,
) -> ResolvedModel:
    """The model's files, once they are all on this machine. `ask` is asked before a download."""
    return resolve_model(
        setup.model,
        offline=setup.offline,
        ask=ask,
        notify=notify,
        show_progress=show_progress,
    )


def load_model(
    setup: Setup,
    found: ResolvedModel,
    notify: Notify,
    check: Callable[[nn.Module], None] | None = None,
    ranks: Ranks | None = None,
) -> Model:
    """The model in memory, shared among all `ranks` if there are several.

    Refused before its weights are read if its window cannot be kept, or if `check` refuses it.
    """
    check_ranks(ranks, pipeline=setup.pipeline)
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


def fit_window(setup: Setup, model: Model, notify: Notify) -> CacheSettings:
    """The settings with a window that this machine has the memory for and this model can keep.

    If it does not fit, raises NotEnoughMemory, or on macOS warns.
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
