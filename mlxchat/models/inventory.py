"""The models on this disk and in the catalogue: from the Hub, converted from GGUF files, and the
embedded one."""

import importlib.util
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mlxchat import paths, platform
from mlxchat.errors import MlxchatError, ModelError, ModelNotFound, UsageError
from mlxchat.files import reported_as
from mlxchat.models.catalog import CATALOG
from mlxchat.models.describe import ModelFacts, describe
from mlxchat.models.gguf import directory_name
from mlxchat.models.hub_cache import cached_repos, cached_snapshot, disk_bytes, repo_dir
from mlxchat.models.locate import Located, embedded_model, is_hub_id
from mlxchat.models.skeleton import architectures, module_name, read_config


def list_models() -> list[ModelFacts]:
    """Every language model on this disk, unfinished downloads included."""
    return [*_from_hub(), *_converted()]


def list_choices() -> list[ModelFacts]:
    """The catalogue, by memory needed, then the other models on this disk."""
    known = catalogue()
    hub_ids = {each.hub_id for each in known}
    return [*known, *(each for each in list_models() if each.hub_id not in hub_ids)]


def catalogue() -> list[ModelFacts]:
    free_bytes = platform.free_memory_bytes()
    return [
        ModelFacts(
            name=model.alias,
            hub_id=model.hub_id,
            here=_state(model.hub_id),
            size_bytes=model.download_bytes,
            parameters=model.parameters,
            memory_needed_bytes=model.memory_bytes(float32=False),
            fits=model.fits(free_bytes, float32=False),
        )
        for model in CATALOG
    ]


def removable_dir(located: Located) -> Path:
    """The model's directory, made by mlxchat or the Hub's library, so that it may be removed.

    Raises ModelNotFound if it is not on this disk, UsageError for the user's own directory.
    """
    if located.kind == "directory":
        raise UsageError(f"{located.name} is your own directory: mlxchat does not delete it")
    directory = _made_dir(located)
    if not directory.is_dir():
        missing = "has not been converted" if located.kind == "gguf" else "is not on this disk"
        raise ModelNotFound(f"{located.name} {missing}: nothing to delete")
    return directory


def remove(directory: Path) -> None:
    """Delete a directory that `removable_dir` found. Raises ModelError if it cannot be deleted."""
    with reported_as(ModelError, f"remove {directory}"):
        shutil.rmtree(directory)


def _made_dir(located: Located) -> Path:
    if located.path is None:
        return repo_dir(located.name)
    if located.kind != "gguf":
        return located.path
    return paths.imported_models_dir() / directory_name(located.path)


def _state(hub_id: str) -> str:
    if cached_snapshot(hub_id) is not None:
        return "yes"
    return "partly" if repo_dir(hub_id).is_dir() else "no"


def _from_hub() -> Iterator[ModelFacts]:
    for repo_id, snapshot in cached_repos():
        size_bytes = disk_bytes(repo_dir(repo_id))
        if snapshot is None:
            problem = f"partly downloaded: run `mlxchat models pull {repo_id}` to resume"
            yield ModelFacts(repo_id, repo_id, "partly", size_bytes, problem=problem)
        elif is_language_model(snapshot):
            yield _described(repo_id, snapshot, size_bytes)


def _converted() -> Iterator[ModelFacts]:
    embedded = embedded_model()
    embedded_dir = _made_dir(embedded) if embedded is not None else None
    for directory in sorted(paths.imported_models_dir().glob("[!.]*/")):
        name = directory.name
        if embedded is not None and directory == embedded_dir:
            name = embedded.name
        yield _described(name, directory, disk_bytes(directory))
    if embedded is not None and embedded_dir is not None and not embedded_dir.is_dir():
        assert embedded.path is not None
        size_bytes = embedded.path.stat().st_size
        problem = "installed; converted when first used"
        yield ModelFacts(embedded.name, None, "yes", size_bytes, problem=problem)


def _described(name: str, directory: Path, size_bytes: int) -> ModelFacts:
    """The facts about a model, with its size on the disk, all revisions included."""
    try:
        return replace(describe(name, directory), size_bytes=size_bytes)
    except MlxchatError as error:
        hub_id = name if is_hub_id(name) else None
        return ModelFacts(name, hub_id, "yes", size_bytes, problem=str(error))


def is_language_model(directory: Path) -> bool:
    """Whether the model generates text, unlike an encoder, even if we cannot run it."""
    try:
        config = read_config(directory)
    except ModelError:
        return False
    if any(name.endswith("ForCausalLM") for name in architectures(config)):
        return True
    module = module_name(config)
    known = module.replace("-", "_").isidentifier()
    return known and importlib.util.find_spec(f"mlx_lm.models.{module}") is not None
