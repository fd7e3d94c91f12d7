"""A model that is ready to generate: loaded, with its window fitted and an empty cache."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from mlx import nn

from mlxchat.app.blocks import check_model
from mlxchat.app.observer import Observer
from mlxchat.app.opening import (
    POSITIONS_RUN_ON,
    Setup,
    find_model,
    fit_window,
    load_model,
    start,
)
from mlxchat.app.ranks import Ranks
from mlxchat.app.watch import Begun
from mlxchat.cache import Cache, positions_bounded
from mlxchat.chat.ledger import Ledger
from mlxchat.errors import WindowTooSmall
from mlxchat.models.model import Model
from mlxchat.settings import CacheSettings, SamplingSettings, recommended
from mlxchat.store.fingerprint import Fingerprint, ModelPrint
from mlxchat.text.tokens import Tokenizer


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model and an empty cache for it. `found` is the model's directory."""

    found: str
    model: Model
    settings: CacheSettings
    sampling: SamplingSettings
    cache: Cache

    def fresh(self) -> Begun:
        """The start of a run."""
        window, keep = self.settings.max_kv_size, self._keep()
        return Begun(self.cache, Ledger(window, keep), self.sampling)

    def fingerprint(self) -> Fingerprint:
        return ModelPrint(self.model).of(self.settings.max_kv_size, self._keep(), None)

    def _keep(self) -> int:
        return 0 if self.settings.max_kv_size is None else self.settings.keep


def open_model(
    setup: Setup,
    observer: Observer | None = None,
    *,
    blocks: bool = False,
    ranks: Ranks | None = None,
    count_pinned: Callable[[Tokenizer], int] = lambda _: 0,
) -> Loaded:
    """Find the model that `setup` names, load it, and fit its window.

    With `blocks`, a model whose blocks cannot be joined is refused before its weights are read.
    A window keeps at least the first `count_pinned` tokens. Raises MlxchatError for everything a
    user can fix.
    """
    observer = observer or Observer()
    start(setup, observer.warn)
    found = find_model(setup, observer)

    def check(network: nn.Module, tokenizer: Tokenizer) -> None:
        _keeping(setup.cache_settings(), count_pinned(tokenizer))
        if blocks:
            check_model(network, tokenizer)

    with observer.waiting(f"loading {found.name} …"):
        model = load_model(setup, found, observer.warn, check, ranks)
        settings = _keeping(fit_window(setup, model, observer.warn), count_pinned(model.tokenizer))
        cache = model.make_cache(settings.max_kv_size, settings.keep)
    if settings.max_kv_size is not None and not positions_bounded(cache):
        observer.warn(POSITIONS_RUN_ON)
    sampling = setup.sampling_settings(recommended(model.generation_config))
    for message in sampling.without_effect(setup.given_sampling()):
        observer.warn(message)
    return Loaded(str(found.directory.resolve()), model, settings, sampling, cache)


def _keeping(settings: CacheSettings, pinned: int) -> CacheSettings:
    """The settings with at least `pinned` kept tokens. Raises WindowTooSmall if the window has no
    room for more."""
    window = settings.max_kv_size
    if window is None or pinned <= settings.keep:
        return settings
    if window <= pinned:
        raise WindowTooSmall(
            f"--max-kv-size {window} is too small for a system prompt and chat template "
            f"of {pinned} tokens: use {pinned + 1} or more"
        )
    return replace(settings, keep=pinned)
