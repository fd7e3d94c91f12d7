"""The user's configuration file: its contents, and the errors in it.

    model = "qwen3-4b"

    [aliases]
    work = "/models/work-3b"

    [generate]
    max-tokens = 500

    [prompts.commit]
    prompt = "Write a commit message for this change:"

It knows which commands have a table. The commands define their options and the values these take.
`precedence` combines the levels; `edit` changes a file.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxchat import paths
from mlxchat.errors import ConfigError
from mlxchat.files import open_to_read
from mlxchat.manual.equivalents import option_for

COMMANDS = ("batch", "chat", "generate")

# The key of a prompt's own text, next to its options.
TEXT = "prompt"
PROMPT_NAME = re.compile(r"\w[\w-]*")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """Contents of the file at `path`. `options` is by command, then by option: "max-kv-size".
    `prompts` is by name, then likewise, with the text as "prompt"."""

    path: Path
    model: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    prompts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def read_user_config() -> ConfigFile:
    """Read the user's file. Raises ConfigError as `read_config_file` does."""
    return read_config_file(paths.config_file())


def read_config_file(path: Path) -> ConfigFile:
    """Read a configuration file; a missing one is empty.

    Raises ConfigError naming the file and the key if it cannot be read, is not TOML, has an
    unknown key, or a value has the wrong type.
    """
    return check_text(path, read_text(path))


def read_text(path: Path) -> str:
    """The file's text, empty if it does not exist. Raises ConfigError.

    Anything that never ends, such as a device, is not read.
    """
    try:
        with open_to_read(path) as file:
            return file.read().decode("utf-8")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text, at byte {error.start:,}") from error


def parse(path: Path, text: str) -> dict[str, Any]:
    """Parse a text that is, or will be, the file at `path`. Raises ConfigError."""
    if not text:
        return {}
    # Imported here: help reads the configuration too, and needs no parser if there is no file.
    import tomllib

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def check_text(path: Path, text: str) -> ConfigFile:
    """Check a text for the file at `path`. Raises ConfigError as `read_config_file` does."""
    table = parse(path, text)
    try:
        _refuse_unknown_keys(table)
        return ConfigFile(
            path,
            model=_model(table),
            aliases=_aliases(table),
            options={command: _options(table, command) for command in COMMANDS if command in table},
            prompts=_prompts(table),
        )
    except _WrongError as error:
        raise ConfigError(f"{path}: {error}") from error


def nearest(name: str, valid_names: Iterable[str]) -> str:
    """The end of a message about an unknown name: the one that was probably meant, or all."""
    import difflib

    valid_names = sorted(valid_names)
    command, dot, written = name.rpartition(".")
    from_elsewhere = f"{command}{dot}{option_for(written)}"
    if from_elsewhere in valid_names:
        near = [from_elsewhere]
    else:
        near = difflib.get_close_matches(name, valid_names, n=1)
    return f"; did you mean {near[0]!r}?" if near else "; known: " + ", ".join(valid_names)


class _WrongError(Exception):
    """The problem with a key, without the name of the file."""


def _refuse_unknown_keys(table: dict[str, Any]) -> None:
    valid = ("model", "aliases", "prompts", *COMMANDS)
    for key in table:
        if key not in valid:
            raise _WrongError(f"unknown key {key!r}" + nearest(key, valid))


def _model(table: dict[str, Any]) -> str | None:
    return _name("model", table["model"]) if "model" in table else None


def _aliases(table: dict[str, Any]) -> dict[str, str]:
    aliases = _table(table, "aliases")
    return {alias: _name(f"aliases.{alias}", target) for alias, target in aliases.items()}


def _prompts(table: dict[str, Any]) -> dict[str, dict[str, Any]]:
    prompts = _table(table, "prompts")
    for name in prompts:
        if not PROMPT_NAME.fullmatch(name):
            raise _WrongError(f"prompts.{name!r}: a name has only letters, digits, _ and -")
    found = {name: _options(prompts, name, f"prompts.{name}") for name in prompts}
    for name, options in found.items():
        if TEXT in options:
            _name(f"prompts.{name}.{TEXT}", options[TEXT])
    return found


def _options(table: dict[str, Any], key: str, path: str = "") -> dict[str, Any]:
    options = _table(table, key, path)
    for name, value in options.items():
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, str | int | float | bool):
                raise _WrongError(
                    f"{path or key}.{name} must be a string, a number, true or false, or a list of "
                    f"those, not {_describe(each)}"
                )
    return options


def _table(table: dict[str, Any], key: str, path: str = "") -> dict[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        path = path or key
        raise _WrongError(f"{path} must be a table, [{path}], not {_describe(value)}")
    return value


def _name(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise _WrongError(f"{key} must be a string in quotes, not {_describe(value)}")
    if not value.strip():
        raise _WrongError(f"{key} must not be empty")
    return value


def _describe(value: object) -> str:
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    return repr(value)
