"""Opens a model: the device, the model's files, its weights and its window, and an empty cache."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from mlx import nn

from mlxchat import paths, platform
from mlxchat.app.ranks import check_ranks
from mlxchat.cache.build import check_bound, joining_refusal, make_joinable
from mlxchat.cache.layers import Cache, positions_bounded
from mlxchat.distributed import Ranks
from mlxchat.distributed.load import load_shared
from mlxchat.engine.prefill import BlockReader, join_refusal
from mlxchat.errors import CacheError, WindowTooSmall
from mlxchat.models.adapter import find_adapter
from mlxchat.models.load import Check, load_directory
from mlxchat.models.model import ALONE, Alone, Model, automatic_window, check_window
from mlxchat.models.resolve import ResolvedModel, resolve_model
from mlxchat.models.tokenizer_files import read_template
from mlxchat.request import Setup
from mlxchat.settings import CacheSettings, SamplingSettings, recommended
from mlxchat.store.prefix_cache import DiskBlocks, PrefixCache
from mlxchat.store.snapshot import Fingerprint, ModelPrint
from mlxchat.text.tokens import Prompt, Tokenizer
from mlxchat.units import Notify, Observer

CountPinned = Callable[[Tokenizer], int]

# As much of the disk is used at most.
PREFIX_CACHE_BYTES = 4_000_000_000

POSITIONS_RUN_ON = (
    "this model's positions cannot be shifted: quality drops beyond its trained context"
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model and an empty cache for it. `name` finds it again, if need be by converting it."""

    name: str
    model: Model
    settings: CacheSettings
    sampling: SamplingSettings
    cache: Cache = field(default_factory=Cache)

    @property
    def keep(self) -> int:
        return 0 if self.settings.max_kv_size is None else self.settings.keep

    def fingerprint(self) -> Fingerprint:
        return ModelPrint(self.model).of(self.settings.max_kv_size, self.keep, None)


def start(setup: Setup) -> None:
    """Select the device, before any model. Raises UsageError for a machine that cannot run one."""
    platform.require_supported_system()
    platform.select_device(setup.device)


def find_model(setup: Setup, observer: Observer, ranks: Alone = ALONE) -> ResolvedModel:
    """The files of the model, downloaded if necessary, and of its adapter: those of rank 0."""
    return ranks.same(lambda: _found(setup, observer))


def _found(setup: Setup, observer: Observer) -> ResolvedModel:
    template = None if setup.chat_template is None else read_template(setup.chat_template)
    adapter = None if setup.adapter is None else find_adapter(setup.adapter)
    found = resolve_model(
        setup.model,
        offline=setup.offline,
        ask=observer.ask,
        notify=observer.warn,
        show_progress=observer.show_progress,
    )
    return replace(found, adapter=adapter, template=template)


def load_model(
    setup: Setup, found: ResolvedModel, notify: Notify, check: Check = None, ranks: Alone = ALONE
) -> Model:
    """Load the model, shared among `ranks` if there are several.

    Before its weights are read, it is refused if its window has no bound, or by `check`.
    """
    check_ranks(
        ranks,
        pipeline=setup.pipeline,
        adapter=found.adapter is not None,
        template=found.template is not None,
    )
    settings = setup.cache_settings()

    def check_all(network: nn.Module, tokenizer: Tokenizer) -> None:
        check_bound(network, settings.max_kv_size, settings.keep)
        if check is not None:
            check(network, tokenizer)

    if isinstance(ranks, Ranks):
        return load_shared(ranks, setup, found, notify, check_all)
    return load_directory(
        found.directory,
        found.name,
        dtype=setup.dtype,
        notify=notify,
        check=check_all,
        adapter=found.adapter,
        template=found.template,
    )


def fit_window(setup: Setup, model: Model, notify: Notify) -> CacheSettings:
    """The cache settings, with a window that fits this machine's memory and this model.

    If a given window does not fit, raises ModelError, or warns on macOS.
    """
    settings = setup.cache_settings()
    if setup.window != "auto":
        check_window(model, settings.max_kv_size, notify)
        return settings
    fitting = replace(settings, max_kv_size=automatic_window(model, notify))
    try:
        check_bound(model.network, fitting.max_kv_size, fitting.keep)
    except CacheError as error:
        notify(f"memory grows with the text: {error}")
        return settings
    return fitting


def open_model(
    setup: Setup,
    observer: Observer | None = None,
    *,
    blocks: bool = False,
    ranks: Alone = ALONE,
    count_pinned: CountPinned = lambda _: 0,
) -> Loaded:
    """Find the model that `setup` names, load it, and fit its window.

    With `blocks`, a model whose blocks cannot be joined is refused before its weights are read. A
    window keeps at least `count_pinned` tokens. Raises MlxchatError for all that a user can fix.
    """
    observer = observer or Observer()
    start(setup)
    found = find_model(setup, observer, ranks)
    with observer.waiting(f"loading {found.name} …"):
        loaded = open_found(
            setup, found, observer.warn, blocks=blocks, ranks=ranks, count_pinned=count_pinned
        )
        settings = loaded.settings
        cache = loaded.model.make_cache(settings.max_kv_size, settings.keep)
    report_positions(settings, cache, observer.warn)
    return replace(loaded, cache=cache)


def report_positions(settings: CacheSettings, cache: Cache, notify: Notify) -> None:
    """Warn if the positions grow with the text."""
    if settings.max_kv_size is not None and not positions_bounded(cache):
        notify(POSITIONS_RUN_ON)


def open_found(
    setup: Setup,
    found: ResolvedModel,
    notify: Notify,
    *,
    blocks: bool = False,
    ranks: Alone = ALONE,
    count_pinned: CountPinned = lambda _: 0,
    sampling_for: Callable[[Model], Mapping[str, Any]] = lambda model: recommended(
        model.generation_config
    ),
) -> Loaded:
    """The same with the model's files, without a cache, which takes a tenth of a second to make.
    `sampling_for` is the sampling if nothing else is chosen."""
    pinned = 0

    def check(network: nn.Module, tokenizer: Tokenizer) -> None:
        nonlocal pinned
        pinned = count_pinned(tokenizer)
        _keeping(setup.cache_settings(), pinned)
        if blocks and (reason := joining_refusal(network)):
            raise CacheError(f"--block cannot be used: {reason}; give documents with --file")

    model = load_model(setup, found, notify, check, ranks)
    fitting = fit_window(setup, model, notify)
    # Other ranks have shards of other sizes, and no session.
    settings = ranks.same(lambda: _keeping(fitting, pinned))
    recommended = sampling_for(model)
    sampling = setup.sampling_settings(recommended)
    # A checkpoint stores the model's own, too.
    own = [name for name, value in setup.sampling.items() if value != recommended.get(name)]
    for message in sampling.without_effect(own):
        notify(message)
    is_lasting = paths.imported_models_dir() not in found.directory.parents
    name = str(found.directory.resolve()) if is_lasting else found.name
    return Loaded(name, model, settings, sampling)


def _keeping(settings: CacheSettings, pinned: int) -> CacheSettings:
    """The settings with at least `pinned` kept tokens. Raises WindowTooSmall if no more fit."""
    window = settings.max_kv_size
    if window is None or pinned <= settings.keep:
        return settings
    if window <= pinned:
        wrong = f"--max-kv-size {window} is too small for a system prompt and chat template"
        raise WindowTooSmall(f"{wrong} of {pinned} tokens: use {pinned + 1} or more")
    return replace(settings, keep=pinned)


def known_prefixes(setup: Setup, model: Model, notify: Notify) -> PrefixCache | None:
    """The prompts that this model has read before; None if they are not wanted."""
    if not setup.prefix_cache:
        return None
    return PrefixCache(paths.prefix_cache_dir(), model, PREFIX_CACHE_BYTES, notify)


def block_reader(
    model: Model,
    cache: Cache,
    prompt: Prompt,
    *,
    window: int | None,
    notify: Callable[[str], None],
    stack: ExitStack,
) -> BlockReader | None:
    """The reader that fills the empty cache with the prompt's blocks; None for ordinary prefill.

    What could not be stored is reported at the end of `stack`.
    """
    if not prompt.blocks:
        return None
    make_joinable(model.network, cache)
    if reason := join_refusal(cache, len(prompt.ids), window):
        notify(f"blocks are read as ordinary text: {reason}")
        return None
    store = DiskBlocks(paths.prefix_cache_dir(), model, PREFIX_CACHE_BYTES)
    stack.callback(lambda: store.error and notify(f"cannot save a block: {store.error}"))
    return BlockReader(prompt, store)
