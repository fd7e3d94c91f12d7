"""The models on this disk: from the Hub, converted from GGUF files, and the embedded one."""

import importlib.util
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxchat import paths, platform
from mlxchat.errors import MlxchatError, ModelError, ModelNotFound, UsageError
from mlxchat.files import reported_as
from mlxchat.models.catalog import CATALOG, KnownModel, known_model
from mlxchat.models.describe import ModelFacts, describe, directory_bytes
from mlxchat.models.hub_cache import (
    CachedRepo,
    cached_repos,
    cached_size_bytes,
    cached_snapshot,
    repo_dir,
)
from mlxchat.models.locate import Located, conversion_dir, embedded_model, is_hub_id
from mlxchat.models.skeleton import architectures, module_name, read_config


@dataclass(frozen=True, slots=True)
class Entry:
    """A model on this disk, with its facts, or the problem reading them."""

    name: str
    size_bytes: int
    facts: ModelFacts | None = None
    problem: str | None = None


def list_models() -> list[Entry]:
    """Every language model on this disk, unfinished downloads included."""
    return [*_from_hub(), *_imported(), *_embedded()]


@dataclass(frozen=True, slots=True)
class Choice:
    """A model from the catalogue or on this disk. `here` is "yes", "partly" or "no".

    `hub_id` is None if it is not on the Hub. Facts that cannot be read are None.
    """

    name: str
    hub_id: str | None
    parameters: int | None
    size_bytes: int
    memory_needed_bytes: int | None
    fits: bool | None
    here: str


def list_choices() -> list[Choice]:
    """The catalogue, by memory needed, then the other models on this disk."""
    free_bytes = platform.free_memory_bytes()
    known = [_known_choice(model, free_bytes) for model in CATALOG]
    hub_ids = {each.hub_id for each in known}
    return [*known, *(_choice(each) for each in list_models() if each.name not in hub_ids)]


def known_choice(hub_id: str) -> Choice | None:
    """The catalogue's facts about a repository."""
    model = known_model(hub_id)
    return None if model is None else _known_choice(model, platform.free_memory_bytes())


def _known_choice(model: KnownModel, free_bytes: int) -> Choice:
    needed_bytes = model.memory_bytes(float32=False)
    return Choice(
        name=model.alias,
        hub_id=model.hub_id,
        parameters=model.parameters,
        size_bytes=model.download_bytes,
        memory_needed_bytes=needed_bytes,
        fits=needed_bytes <= free_bytes,
        here=_state(model.hub_id),
    )


def _state(hub_id: str) -> str:
    if cached_snapshot(hub_id) is not None:
        return "yes"
    return "partly" if repo_dir(hub_id).is_dir() else "no"


def _choice(entry: Entry) -> Choice:
    facts = entry.facts
    hub_id = entry.name if is_hub_id(entry.name) else None
    here = "yes" if hub_id is None else _state(hub_id)
    if facts is None:
        return Choice(entry.name, hub_id, None, entry.size_bytes, None, None, here)
    return Choice(
        name=entry.name,
        hub_id=hub_id,
        parameters=facts.parameters,
        size_bytes=entry.size_bytes,
        memory_needed_bytes=facts.memory_needed_bytes,
        fits=facts.fits,
        here=here,
    )


def removable_dir(located: Located) -> Path:
    """The model's directory, made by mlxchat or the Hub's library, which `remove` deletes.

    Raises ModelNotFound if it is not on this disk, UsageError for the user's own directory.
    """
    if located.kind == "directory":
        raise UsageError(f"{located.name} is your own directory: mlxchat does not delete it")
    directory = _made_dir(located)
    if not directory.is_dir():
        missing = "has not been converted" if located.kind == "gguf" else "is not on this disk"
        raise ModelNotFound(f"{located.name} {missing}: nothing to delete")
    return directory


def removable_bytes(located: Located) -> int:
    """The space that removing it would free. Raises what `removable_dir` raises."""
    directory = removable_dir(located)
    return cached_size_bytes(located.name) if located.path is None else directory_bytes(directory)


def remove(located: Located) -> None:
    """Delete the model's files, as converted by mlxchat or downloaded from the Hub.

    Raises what `removable_dir` raises, and ModelError or HubError if it cannot be deleted.
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
        elif is_language_model(repo.snapshot):
            yield _entry(repo.repo_id, repo.snapshot, repo.size_bytes)


def _unfinished(repo: CachedRepo) -> Entry:
    pull = f"run `mlxchat models pull {repo.repo_id}`"
    problem = f"partly downloaded: {pull} to resume"
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
        return Entry(name, size_bytes, problem=str(error))


def is_language_model(directory: Path) -> bool:
    """Whether the model generates text, unlike an encoder, even if we cannot run it."""
    try:
        config = read_config(directory)
    except ModelError:
        return False
    return _mlx_lm_knows(module_name(config)) or _says_it_writes(config)


def _mlx_lm_knows(module: str) -> bool:
    if not module.replace("-", "_").isidentifier():
        return False
    return importlib.util.find_spec(f"mlx_lm.models.{module}") is not None


def _says_it_writes(config: dict[str, Any]) -> bool:
    return any(name.endswith("ForCausalLM") for name in architectures(config))
