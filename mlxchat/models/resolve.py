"""From a model's name, or none, to a directory on this disk.

Chooses the model if none is named; `locate` interprets names, `hub` uses the network.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlxchat import paths, platform
from mlxchat.config import configured_model, read_user_config
from mlxchat.errors import HubError, ModelError, ModelNotFound
from mlxchat.models.adapter import Adapter
from mlxchat.models.catalog import KnownModel, recommended_that_fit
from mlxchat.models.hub_cache import cached_snapshot, offline_by_environment, repo_dir
from mlxchat.models.locate import Located, embedded_model, locate
from mlxchat.models.template_file import GivenTemplate
from mlxchat.units import Notify, format_bytes


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model on this disk, with its adapter, and a chat template to use instead of its own. `name`
    finds it again; `directory` has Hugging Face's layout."""

    name: str
    directory: Path
    adapter: Adapter | None = None
    template: GivenTemplate | None = None


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
    resolver = _Resolver(offline or offline_by_environment(), ask, notify, show_progress)
    aliases = read_user_config().aliases
    if name is not None:
        return resolver.bring(locate(name, aliases))
    chosen = configured_model()
    if chosen is None:
        return resolver.default()
    try:
        return resolver.bring(locate(chosen.value, aliases))
    except (ModelError, HubError) as error:
        # The user may not have typed it.
        raise type(error)(f"{error} (model from {chosen.where})") from error


@dataclass(frozen=True, slots=True)
class _Resolver:
    """Gets models, given permissions and callbacks. `ask` is None without a terminal."""

    offline: bool
    ask: Callable[[str], bool] | None
    notify: Notify
    show_progress: bool

    def bring(self, located: Located) -> ResolvedModel:
        directory = located.path
        if directory is None:
            directory = self._from_hub(located.name)
        elif located.kind == "gguf":
            from mlxchat.models.gguf import import_gguf

            directory = import_gguf(directory, paths.imported_models_dir(), self.notify)
        return ResolvedModel(located.name, directory)

    def default(self) -> ResolvedModel:
        """A recommended model that is cached, the largest if the user agrees to download it, or the
        embedded one."""
        fitting = recommended_that_fit(platform.free_memory_bytes(), float32=not platform.on_gpu())
        # Prefer a smaller model on the disk to downloading a larger one: free memory varies from
        # day to day, and should not cause the question again.
        for model in fitting:
            if (snapshot := cached_snapshot(model.hub_id)) is not None:
                return ResolvedModel(model.hub_id, snapshot)
        if fitting and self._may_download(fitting[0]):
            return self.bring(Located("hub", fitting[0].hub_id))
        embedded = embedded_model()
        if embedded is None:
            raise _no_model(None if self.offline or not fitting else fitting[0])
        self.notify(
            f"using the small embedded model {embedded.name}; run `mlxchat config set model "
            "NAME` to use another"
        )
        return self.bring(embedded)

    def _from_hub(self, repo_id: str) -> Path:
        from mlxchat.models import hub

        snapshot = cached_snapshot(repo_id)
        if snapshot is not None:
            return snapshot
        if self.offline:
            partly = "only partly " if repo_dir(repo_id).is_dir() else "not "
            raise HubError(
                f"{repo_id} is {partly}downloaded, and the network is off: run `mlxchat models "
                f"pull {repo_id}` once"
            )
        return hub.download(repo_id, show_progress=self.show_progress, notify=self.notify)

    def _may_download(self, model: KnownModel) -> bool:
        """Whether the user agrees; never without asking."""
        if self.offline or self.ask is None:
            return False
        what = f"{model.hub_id}, {format_bytes(model.download_bytes)}"
        return self.ask(f"No model chosen. Download {what}, which fits this machine?")


def _no_model(best: KnownModel | None) -> ModelNotFound:
    """What to do without any model; `best` is the one to download."""
    from mlxchat.models.gguf import how_to_install

    catalogue = "see `mlxchat models list --all`"
    if best is not None:
        return ModelNotFound(
            f"no model on this disk: run `mlxchat models pull {best.alias}` "
            f"({format_bytes(best.download_bytes)}, fits this machine), or {catalogue}"
        )
    return ModelNotFound(
        f"no model on this disk: {catalogue} and name one with --model, or install a "
        f"small one: {how_to_install()}"
    )
