"""The Hub's cache on this disk, read without the Hub's library.

Importing that library costs 0.2 s, too much for a model that is already downloaded. `hub` does
everything that needs the network or changes the cache.
Source of the layout: https://huggingface.co/docs/hub/local-cache
"""

import json
import os
import re
from collections.abc import Collection
from fnmatch import fnmatch
from pathlib import Path

# The files a model needs: mlx-lm's patterns without Python files, which we never run.
# Source: mlx-lm 0.32.2, DEFAULT_ALLOW_PATTERNS in mlx_lm/utils.py.
ALLOW_PATTERNS = (
    "*.json",
    "model*.safetensors",
    "tokenizer.model",
    "*.tiktoken",
    "tiktoken.model",
    "*.txt",
    "*.jsonl",
    "*.jinja",
)

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TREE_FORMAT_VERSION = 1


def hub_cache_dir() -> Path:
    """The cache directory of huggingface_hub, from the same environment variables."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    hub_home = os.environ.get("HF_HOME") or f"{cache_home}/huggingface"
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expandvars(named or f"{hub_home}/hub")).expanduser().absolute()


def offline_by_environment() -> bool:
    """Whether HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE turns the network off, as in the library."""
    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in ("1", "ON", "YES", "TRUE")


def repo_dir(repo_id: str) -> Path:
    """The directory for `repo_id` in the cache; it may not exist."""
    return hub_cache_dir() / f"models--{repo_id.replace('/', '--')}"


def snapshot_dir(repo_id: str, commit: str) -> Path:
    return repo_dir(repo_id) / "snapshots" / commit


def cached_snapshot(repo_id: str) -> Path | None:
    """The directory of the repository's main revision, or of the latest one before it while that is
    unfinished; None if none is complete."""
    snapshot = _main_snapshot(repo_id)
    if snapshot is None or _is_complete(snapshot):
        return snapshot
    earlier = sorted(snapshot.parent.glob("*"), key=lambda path: path.stat().st_mtime)
    return next(filter(_is_complete, reversed(earlier)), None)


def cached_repos() -> list[tuple[str, Path | None]]:
    """The names and snapshots of the repositories with a model in safetensors, by name.

    Includes unfinished downloads known to be models, without a snapshot. Reads no sizes.
    """
    names = [each.name for each in hub_cache_dir().glob("models--*--*")]
    ids = [name.removeprefix("models--").replace("--", "/") for name in names]
    found = ((each, cached_snapshot(each)) for each in sorted(ids, key=str.lower))
    return [(each, path) for each, path in found if path is not None or _becomes_a_model(each)]


def disk_bytes(directory: Path) -> int:
    """The space that the directory's files take, interrupted downloads included."""
    files = (path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)


def is_wanted(name: str) -> bool:
    """Whether a model needs the file of that name."""
    return any(fnmatch(name, pattern) for pattern in ALLOW_PATTERNS)


def holds_model(names: Collection[str]) -> bool:
    """Whether files of those names form a model that can be loaded."""
    return "config.json" in names and any(fnmatch(name, "model*.safetensors") for name in names)


def _is_complete(snapshot: Path) -> bool:
    # A file that exists is complete, since the library renames it into place.
    here = {path.name for path in snapshot.glob("*") if path.is_file()}
    wanted = filter(is_wanted, _listed_names(snapshot))
    return holds_model(here) and all((snapshot / name).is_file() for name in wanted)


def _becomes_a_model(repo_id: str) -> bool:
    snapshot = _main_snapshot(repo_id)
    return snapshot is not None and holds_model(_listed_names(snapshot))


def _main_snapshot(repo_id: str) -> Path | None:
    """The directory of the main revision, which may not exist; None if that is not known."""
    try:
        commit = (repo_dir(repo_id) / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return snapshot_dir(repo_id, commit) if _COMMIT.fullmatch(commit) else None


def _listed_names(snapshot: Path) -> list[str]:
    """The names of all the commit's files, if the library stored them (since its version 2)."""
    try:
        listed = snapshot.parents[1] / "trees" / f"{snapshot.name}.json"
        tree = json.loads(listed.read_text("utf-8"))
        return list(tree["files"]) if tree["format_version"] == _TREE_FORMAT_VERSION else []
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
