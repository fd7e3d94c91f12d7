"""From a model's name, or none, to a directory on this disk.

Chooses the model if none is named; `locate` interprets names, `hub` uses the network.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlxchat import paths, platform
from mlxchat.config.file import read_user_config
from mlxchat.config.layers import configured_model
from mlxchat.errors import HubError, ModelError, ModelNotFound
from mlxchat.models.adapter import Adapter
from mlxchat.models.catalog import KnownModel, recommended_that_fit
from mlxchat.models.hub_cache import cached_snapshot, offline_by_environment, repo_dir
from mlxchat.models.locate import Located, embedded_model, locate
from mlxchat.models.template_file import GivenTemplate
from mlxchat.progress import Notify
from mlxchat.units import format_bytes


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model on this disk, with its adapter, and a chat template to use instead of its own. `name`
    finds it again; `directory` has Hugging Face's layout."""

    name: str
    directory: Path
    adapter: Adapter | None = None
    template: GivenTemplate | None = None


@dataclass(frozen=True, slots=True)
class _Access:
    """How to get a model: permissions and callbacks. `ask` is None without a terminal."""

    offline: bool
    ask: Callable[[str], bool] | None
    notify: Notify
    show_progress: bool


def resolve_model(
    name: str | None,
    *,
    offline: bool,
    ask: Callable[[str], bool] | None,
    notify: Notify,
    show_progress: bool,
) -> ResolvedModel:
    """Download or convert the model called `name` if need be, and return its directory.

    Without a name: MLXCHAT_MODEL, the configured one, a recommended one that
    fits this machine if it is cached or `ask` confirms its download, or the embedded one. A model
    on this disk needs no network.

    Raises ModelError, HubError or ConfigError with a line that says what to do.
    """
    access = _Access(offline or offline_by_environment(), ask, notify, show_progress)
    aliases = read_user_config().aliases
    if name is not None:
        return _bring(locate(name, aliases), access)
    chosen = configured_model()
    if chosen is None:
        return _default_model(access)
    try:
        return _bring(locate(chosen.value, aliases), access)
    except (ModelError, HubError) as error:
        # The user may not have typed it.
        raise type(error)(f"{error} (model from {chosen.where})") from error


def _bring(located: Located, access: _Access) -> ResolvedModel:
    if located.path is None:
        return ResolvedModel(located.name, _hub_directory(located.name, access))
    if located.kind == "gguf":
        return ResolvedModel(located.name, _converted(located.path, access))
    return ResolvedModel(located.name, located.path)


def _hub_directory(repo_id: str, access: _Access) -> Path:
    # Without the network, loading reports missing weights.
    snapshot = cached_snapshot(repo_id, guess=not access.offline)
    if snapshot is not None:
        return snapshot
    if access.offline:
        state = "is only partly downloaded" if repo_dir(repo_id).is_dir() else "is not downloaded"
        raise HubError(
            f"{repo_id} {state}, and the network is off: run `mlxchat models pull {repo_id}` once"
        )
    return _download(repo_id, access)


def _download(repo_id: str, access: _Access) -> Path:
    from mlxchat.models import hub

    return hub.download(repo_id, show_progress=access.show_progress, notify=access.notify)


def _converted(gguf_file: Path, access: _Access) -> Path:
    from mlxchat.models.gguf import import_gguf

    return import_gguf(gguf_file, paths.imported_models_dir(), access.notify)


def _default_model(access: _Access) -> ResolvedModel:
    fitting = recommended_that_fit(platform.free_memory_bytes(), float32=not platform.on_gpu())
    return _cached_one(fitting) or _offered_one(fitting, access) or _embedded_one(fitting, access)


def _cached_one(fitting: list[KnownModel]) -> ResolvedModel | None:
    # Prefer a smaller model on the disk to downloading a larger one: free memory varies from day to
    # day, and should not cause the question again.
    for model in fitting:
        snapshot = cached_snapshot(model.hub_id)
        if snapshot is not None:
            return ResolvedModel(model.hub_id, snapshot)
    return None


def _offered_one(fitting: list[KnownModel], access: _Access) -> ResolvedModel | None:
    """The largest one, downloaded if the Hub has it and the user agrees; never without asking."""
    if access.offline or access.ask is None or not fitting:
        return None
    repo_id = fitting[0].hub_id
    size_bytes = _size_if_hub_answers(repo_id, access)
    if size_bytes is None:
        return None
    if not access.ask(
        f"No model chosen. Download {repo_id}, {format_bytes(size_bytes)}, which fits this machine?"
    ):
        return None
    return ResolvedModel(repo_id, _download(repo_id, access))


def _size_if_hub_answers(repo_id: str, access: _Access) -> int | None:
    from mlxchat.models import hub

    try:
        return hub.repo_size_bytes(repo_id)
    except (HubError, ModelNotFound) as error:
        access.notify(f"cannot look up a recommended model: {error}")
        return None


def _embedded_one(fitting: list[KnownModel], access: _Access) -> ResolvedModel:
    embedded = embedded_model()
    if embedded is None:
        raise _no_model(fitting, access)
    access.notify(
        f"using the small embedded model {embedded.name}; run `mlxchat models default "
        "NAME` to use another"
    )
    return _bring(embedded, access)


def _no_model(fitting: list[KnownModel], access: _Access) -> ModelNotFound:
    from mlxchat.models.gguf import how_to_install

    catalogue = "see `mlxchat models list --all`"
    if fitting and not access.offline:
        best = fitting[0]
        return ModelNotFound(
            f"no model on this disk: run `mlxchat models pull {best.alias}` "
            f"({format_bytes(best.download_bytes)}, fits this machine), or {catalogue}"
        )
    return ModelNotFound(
        f"no model on this disk: {catalogue} and name one with --model, or install a "
        f"small one: {how_to_install()}"
    )
