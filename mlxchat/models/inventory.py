"""The models on this disk: from the hub, converted from GGUF files, and the embedded one."""

import importlib.util
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxchat import paths
from mlxchat.errors import MlxchatError, ModelError, ModelNotFound, UsageError
from mlxchat.files import reported_as
from mlxchat.models.describe import ModelFacts, describe, directory_bytes
from mlxchat.models.hub_cache import CachedRepo, cached_repos, cached_size_bytes, repo_dir
from mlxchat.models.locate import Located, conversion_dir, embedded_model
from mlxchat.models.skeleton import MODULE_OF_TYPE, read_config
from mlxchat.wording import Action, Message


@dataclass(frozen=True, slots=True)
class Entry:
    """A model, and its facts or the problem that keeps us from them."""

    name: str
    size_bytes: int
    facts: ModelFacts | None = None
    problem: str | None = None


def list_models() -> list[Entry]:
    """Every language model that is here, or that a download would complete."""
    return [*_from_hub(), *_imported(), *_embedded()]


def removable_dir(located: Located) -> Path:
    """The directory that mlxchat made for the model, which `remove` deletes.

    Raises ModelNotFound where there is none, UsageError for a directory of the user's own.
    """
    if located.kind == "directory":
        raise UsageError(f"{located.name} is a directory of yours: mlxchat does not delete it")
    directory = _made_dir(located)
    if not directory.is_dir():
        raise ModelNotFound(f"{located.name} is not on this disk: there is nothing to remove")
    return directory


def removable_bytes(located: Located) -> int:
    """What removing would free. Raises as `removable_dir` does."""
    directory = removable_dir(located)
    return cached_size_bytes(located.name) if located.path is None else directory_bytes(directory)


def remove(located: Located) -> None:
    """Delete what mlxchat or the hub's library made for the model.

    Raises as `removable_dir` does, and ModelError or HubError where it cannot be deleted.
    """
    directory = removable_dir(located)
    if located.path is None:
        from mlxchat.models import hub

        hub.remove(located.name)
        return
    with reported_as(ModelError, f"remove {directory}"):
        shutil.rmtree(directory)


def _made_dir(located: Located) -> Path:
    if located.path is None:
        return repo_dir(located.name)
    return conversion_dir(located.path) if located.kind == "gguf" else located.path


def _from_hub() -> Iterator[Entry]:
    for repo in cached_repos():
        if repo.snapshot is None:
            yield _unfinished(repo)
        elif _is_language_model(repo.snapshot):
            yield _entry(repo.repo_id, repo.snapshot, repo.size_bytes)


def _unfinished(repo: CachedRepo) -> Entry:
    pull = Action("pull", "download it again", repo.repo_id)
    problem = Message("partly downloaded: ", pull, " to resume")
    return Entry(repo.repo_id, repo.size_bytes, problem=problem)


def _imported() -> Iterator[Entry]:
    embedded = embedded_model()
    shown_as_embedded = _made_dir(embedded) if embedded is not None else None
    for directory in sorted(paths.imported_models_dir().glob("[!.]*/")):
        if directory != shown_as_embedded:
            yield _entry(directory.name, directory, directory_bytes(directory))


def _embedded() -> Iterator[Entry]:
    embedded = embedded_model()
    if embedded is None:
        return
    assert embedded.path is not None
    directory = _made_dir(embedded)
    if directory.is_dir():
        yield _entry(embedded.name, directory, directory_bytes(directory))
    else:
        size_bytes = embedded.path.stat().st_size
        yield Entry(embedded.name, size_bytes, problem="installed; converted when first used")


def _entry(name: str, directory: Path, size_bytes: int) -> Entry:
    try:
        return Entry(name, size_bytes, facts=describe(name, directory))
    except MlxchatError as error:
        return Entry(name, size_bytes, problem=Message(error))


def _is_language_model(directory: Path) -> bool:
    """Whether the model writes text, whether or not we can run it: an encoder is not listed."""
    try:
        config = read_config(directory)
    except ModelError:
        return False
    return _mlx_lm_knows(config["model_type"]) or _says_it_writes(config)


def _mlx_lm_knows(model_type: str) -> bool:
    module_name = MODULE_OF_TYPE.get(model_type, model_type)
    if not module_name.isidentifier():
        return False
    return importlib.util.find_spec(f"mlx_lm.models.{module_name}") is not None


def _says_it_writes(config: dict[str, Any]) -> bool:
    architectures = config.get("architectures") or []
    return any(str(name).endswith("ForCausalLM") for name in architectures)
