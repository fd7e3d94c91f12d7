"""The configuration: the user's file, and variables of the environment, which override it.

    model = "qwen3-4b"

    [aliases]
    work = "/models/work-3b"

    [generate]
    max-tokens = 500

    [prompts.commit]
    prompt = "Write a commit message for this change:"

A variable is named after its flag: MLXCHAT_GENERATE_MAX_TOKENS. The commands define their options
and the values these take.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxchat import paths
from mlxchat.errors import ConfigError, UsageError
from mlxchat.files import open_to_read
from mlxchat.manual.equivalents import option_for

COMMANDS = ("batch", "chat", "generate")
KEYS = ("model", "aliases", "prompts", *COMMANDS)
MODEL_VARIABLE = "MLXCHAT_MODEL"

# The key of a prompt's own text, next to its options.
TEXT = "prompt"
PROMPT_NAME = re.compile(r"\w[\w-]*")


@dataclass(frozen=True, slots=True)
class Setting:
    """A value as it was written: a string in a variable, a TOML value in a file. `where` is the
    variable or the file; `key` is what it sets: "model", "chat.temp"."""

    key: str
    value: Any
    where: str

    @property
    def is_variable(self) -> bool:
        return self.where.startswith("MLXCHAT_")

    def wrong(self, reason: object) -> ConfigError:
        # A variable's name includes the key.
        place = self.where if self.is_variable else f"{self.where}: {self.key}"
        return ConfigError(f"{place}: {reason}")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """Contents of the file at `path`. `options` is by command, then by option: "max-kv-size".
    `prompts` is by name, then likewise, with the text as "prompt"."""

    path: Path
    model: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    prompts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def settings_for(self, command: str) -> list[Setting]:
        return self._settings(command, self.options.get(command, {}))

    def prompt(self, name: str) -> dict[str, Setting]:
        """The settings of a prompt, by option. Raises UsageError for an unknown name."""
        if name not in self.prompts:
            hint = nearest(name, self.prompts) if self.prompts else ": no prompts are configured"
            if " " in name:
                hint = ": to ask this, leave out the option"
            raise UsageError(f"unknown prompt {name!r}{hint}")
        table = self.prompts[name]
        return dict(zip(table, self._settings(f"prompts.{name}", table), strict=True))

    def _settings(self, table: str, values: Mapping[str, Any]) -> list[Setting]:
        return [Setting(f"{table}.{name}", each, str(self.path)) for name, each in values.items()]


def read_user_config() -> ConfigFile:
    """Read the user's file; a missing one is empty. Raises ConfigError as `check_text` does."""
    path = paths.config_file()
    return check_text(path, read_text(path))


def variables_for(command: str) -> list[Setting]:
    """What the environment sets for the command. Empty variables count as unset."""
    prefix = f"MLXCHAT_{command.upper()}_"
    return [
        Setting(
            f"{command}.{name.removeprefix(prefix).lower().replace('_', '-')}", value, where=name
        )
        for name, value in sorted(os.environ.items())
        if name.startswith(prefix) and value
    ]


def configured_model() -> Setting | None:
    """The model for all commands: MLXCHAT_MODEL, or `model` of the file."""
    if named := os.environ.get(MODEL_VARIABLE):
        return Setting("model", named, MODEL_VARIABLE)
    file = read_user_config()
    return None if file.model is None else Setting("model", file.model, str(file.path))


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
    """Check a text for the file at `path`.

    Raises ConfigError naming the file and the key if it is not TOML, has an unknown key, or a value
    has the wrong type.
    """
    found = parse(path, text)
    try:
        for key in found:
            if key not in KEYS:
                raise _WrongError(f"unknown key {key!r}" + nearest(key, KEYS))
        prompts = _table("prompts", found)
        return ConfigFile(
            path,
            model=_text("model", found["model"]) if "model" in found else None,
            aliases={
                alias: _text(f"aliases.{alias}", target)
                for alias, target in _table("aliases", found).items()
            },
            options={command: _options(command, found) for command in COMMANDS if command in found},
            prompts={name: _prompt(name, prompts) for name in prompts},
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


def _prompt(name: str, prompts: dict[str, Any]) -> dict[str, Any]:
    if not PROMPT_NAME.fullmatch(name):
        raise _WrongError(f"prompts.{name!r}: a name has only letters, digits, _ and -")
    options = _options(name, prompts, f"prompts.{name}")
    if TEXT in options:
        _text(f"prompts.{name}.{TEXT}", options[TEXT])
    return options


def _options(key: str, tables: dict[str, Any], path: str = "") -> dict[str, Any]:
    options = _table(key, tables, path)
    for name, value in options.items():
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, str | int | float | bool):
                raise _WrongError(
                    f"{path or key}.{name} must be a string, a number, true or false, or a list of "
                    f"those, not {_described(each)}"
                )
    return options


def _table(key: str, tables: dict[str, Any], path: str = "") -> dict[str, Any]:
    value = tables.get(key, {})
    if not isinstance(value, dict):
        raise _WrongError(
            f"{path or key} must be a table, [{path or key}], not {_described(value)}"
        )
    return value


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise _WrongError(f"{key} must be a string in quotes, not {_described(value)}")
    if not value.strip():
        raise _WrongError(f"{key} must not be empty")
    return value


def _described(value: object) -> str:
    return {dict: "a table", list: "a list"}.get(type(value), repr(value))
