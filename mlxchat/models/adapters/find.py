"""From an adapter's name, a directory or a Hub ID, to its directory on this disk."""

import re
from dataclasses import dataclass
from pathlib import Path

from mlxchat.errors import AdapterError, HubError, ModelNotFound
from mlxchat.models.hub_cache import ADAPTER_CONFIG, cached_adapter, offline_by_environment
from mlxchat.models.locate import is_hub_id
from mlxchat.progress import Notify

# Parts of a name that say how a model was converted rather than which one it is.
_CONVERTED = re.compile(
    r"[-_.](?:mlx|gguf|bnb|unsloth|dwq|awq|gptq|bf16|fp16|fp32|q\d\w*|\d+-?bits?)(?![a-z0-9])"
)


@dataclass(frozen=True, slots=True)
class FoundAdapter:
    """An adapter on this disk. `name` finds it again from any directory."""

    name: str
    directory: Path


def find_adapter(name: str, *, offline: bool, notify: Notify, show_progress: bool) -> FoundAdapter:
    """Download the adapter called `name` if need be, and return its place.

    A name that exists on this disk is never sent to the Hub. Raises AdapterError, ModelNotFound or
    HubError.
    """
    path = Path(name).expanduser()
    if (path / ADAPTER_CONFIG).is_file():
        return FoundAdapter(str(path.absolute()), path.absolute())
    if path.is_dir():
        raise AdapterError(f"{name} has no {ADAPTER_CONFIG}, so it is not an adapter")
    if path.exists():
        raise AdapterError(f"{name} is a file: name the directory of the adapter")
    if not is_hub_id(name):
        raise ModelNotFound(f"no adapter named {name!r}: give a directory or a Hub ID")
    return FoundAdapter(
        name, cached_adapter(name) or _download(name, offline, notify, show_progress)
    )


def _download(repo_id: str, offline: bool, notify: Notify, show_progress: bool) -> Path:
    if offline or offline_by_environment():
        raise HubError(f"adapter {repo_id} is not downloaded, and the network is off")
    from mlxchat.models import hub

    return hub.download_adapter(repo_id, show_progress=show_progress, notify=notify)


def are_different_models(one: str, other: str) -> bool:
    """Whether two Hub IDs are certainly not conversions of the same model."""
    both = one, other
    return all(map(is_hub_id, both)) and len({_bare_name(each) for each in both}) > 1


def _bare_name(repo_id: str) -> str:
    return _CONVERTED.sub("", repo_id.lower().rpartition("/")[2])
