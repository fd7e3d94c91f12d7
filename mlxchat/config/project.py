"""A project's configuration file: its location, and the settings it may change.

It may come with a repository written by someone else, so it is not trusted. It chooses how a model
answers and nothing else: nothing that reads or writes a file, uses the network, runs without end,
hides a message or changes the output format. An option is allowed only if declared so.
"""

import os
from pathlib import Path

from mlxchat.config.file import TEXT, ConfigFile, read_config_file
from mlxchat.errors import ConfigError
from mlxchat.request import CHAT, GENERATE
from mlxchat.wording import Field

FILE_NAME = ".mlxchat.toml"
IGNORE_VARIABLE = "MLXCHAT_NO_PROJECT"

# What a project may set, under all its names. Its `model` must already be on this disk:
# `models.resolve` checks that.
ALLOWED = {
    name: each
    for options in (CHAT, GENERATE)
    for each in options.values()
    if each.project
    for name in (each.name, *each.aliases)
}


def find_project_file() -> Path | None:
    """The project file in effect in the working directory, if any.

    Searches upwards to the root of the repository or, outside one, to the home directory, which is
    the user's own and not a project. Files of other users are ignored: anyone can put one in /tmp.
    """
    if os.environ.get(IGNORE_VARIABLE):
        return None
    for directory in _directories():
        path = directory / FILE_NAME
        if os.path.lexists(path) and _is_ours(path):
            return path
    return None


def foreign_project_files() -> list[Path]:
    """Files that are ignored because another user owns them."""
    paths = [directory / FILE_NAME for directory in _directories()]
    return [path for path in paths if os.path.lexists(path) and not _is_ours(path)]


def project_file_to_write() -> Path:
    """The file in effect, or the path for a new one: in the repository's root or the working
    directory.

    Raises ConfigError if there can be no such file, and if it is a link or belongs to another
    user: writing must not go elsewhere, nor make another user's settings ours.
    """
    path = find_project_file() or _place_for_one()
    if path.is_symlink():
        raise ConfigError(f"{path}: a symbolic link: edit the file it points to")
    if os.path.lexists(path) and not _is_ours(path):
        raise ConfigError(f"{path}: belongs to another user")
    return path


def _place_for_one() -> Path:
    directories = _directories()
    if not directories:
        raise ConfigError(
            "not in a project: change to its directory, or edit your own configuration, without ",
            Field("project"),
        )
    root = next((each for each in directories if _is_repository(each)), directories[0])
    return root / FILE_NAME


def read_project_file() -> ConfigFile | None:
    """Read the project's file; None if it does not exist. Raises ConfigError if it is invalid."""
    path = find_project_file()
    if path is None:
        return None
    try:
        contents = read_config_file(path)
        refuse_what_projects_may_not(contents)
    except ConfigError as error:
        raise ConfigError(error, f" (to ignore this file, set {IGNORE_VARIABLE}=1)") from error
    return contents


def refuse_what_projects_may_not(contents: ConfigFile) -> None:
    """Raise ConfigError for the first key or value that a project may not set."""
    for alias in contents.aliases:
        raise _refusal(contents.path, f"aliases.{alias}")
    prompts = {f"prompts.{name}": each for name, each in contents.prompts.items()}
    tables = {**contents.options, **prompts}
    for command, options in tables.items():
        for name, value in options.items():
            if name == TEXT and command in prompts:
                continue
            if name not in ALLOWED:
                raise _refusal(contents.path, f"{command}.{name}")
            if str(value).strip() in ALLOWED[name].unlimited:
                raise ConfigError(
                    f"{contents.path}: {command}.{name} = {value}: a project's file can set a "
                    "limit but not remove one"
                )


def may_be_set(key: str) -> bool:
    """Whether a project may set a key such as "model" or "chat.temp"."""
    table, _, name = key.partition(".")
    return key == "model" or (table != "aliases" and name in ALLOWED)


def _refusal(path: Path, key: str) -> ConfigError:
    return ConfigError(
        f"{path}: {key} cannot be set by a project's file: only model, "
        + ", ".join(sorted(ALLOWED))
        + " can"
    )


def _directories() -> list[Path]:
    """Directories searched for a project's file, from the working directory upwards."""
    try:
        here = Path.cwd()
    except OSError:  # it has been deleted
        return []
    found: list[Path] = []
    for directory in (here, *here.parents):
        if directory == directory.parent or _is_home(directory):
            break
        found.append(directory)
        if _is_repository(directory):
            break
    return found


def _is_home(directory: Path) -> bool:
    try:
        return directory.samefile(Path.home())
    except (OSError, RuntimeError):  # no home directory
        return False


def _is_repository(directory: Path) -> bool:
    return any(os.path.lexists(directory / name) for name in (".git", ".hg", ".jj"))


def _is_ours(path: Path) -> bool:
    try:
        return path.lstat().st_uid in (os.getuid(), 0)
    except OSError:
        return False
