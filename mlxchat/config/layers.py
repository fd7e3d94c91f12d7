"""The levels of configuration: the environment and the user's file.

The command line overrides them all; defaults come last. Within a level, a command's own `model`
overrides the one for all commands.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from mlxchat.config.file import COMMANDS, ConfigFile, nearest, read_user_config
from mlxchat.errors import ConfigError, UsageError

MODEL_VARIABLE = "MLXCHAT_MODEL"


class Level(StrEnum):
    """Where a value comes from, highest precedence first."""

    ENVIRONMENT = "environment"
    USER = "user"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value as it was written: a string in a variable, a TOML value in a file. `where` is the
    variable or the file; `key` is what it sets: "model", "chat.temp"."""

    value: Any
    level: Level
    where: str
    key: str

    def wrong(self, reason: str) -> ConfigError:
        if self.level is Level.ENVIRONMENT:
            # The variable's name includes the key.
            return ConfigError(f"{self.where}: {reason}")
        return ConfigError(f"{self.where}: {self.key}: {reason}")


@dataclass(frozen=True, slots=True)
class Layer:
    """One level: the model for all commands, each command's options, and prompts by name."""

    model: Setting | None = None
    options: Mapping[str, Sequence[Setting]] = field(default_factory=dict)
    prompts: Mapping[str, Mapping[str, Setting]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Config:
    """All layers, highest precedence first, and the user's aliases for models."""

    layers: tuple[Layer, ...]
    aliases: Mapping[str, str]

    def model(self) -> Setting | None:
        """The model for all commands: MLXCHAT_MODEL, or `model` of a file."""
        return next((layer.model for layer in self.layers if layer.model is not None), None)

    def prompts(self) -> dict[str, Mapping[str, Setting]]:
        """The prompts by name."""
        return {name: each for layer in self.layers for name, each in sorted(layer.prompts.items())}

    def prompt(self, name: str) -> Mapping[str, Setting]:
        """The settings of a prompt, by option. Raises UsageError for an unknown name."""
        prompts = self.prompts()
        if name in prompts:
            return prompts[name]
        hint = nearest(name, prompts) if prompts else ": no prompts are configured"
        if " " in name:
            hint = ": to ask this, leave out the option"
        raise UsageError(f"unknown prompt {name!r}{hint}")

    def settings(self, command: str, names: Mapping[str, str]) -> dict[str, Setting]:
        """Values set for the command's options, by option.

        `names` maps every accepted spelling of an option to its name. "model" may come from the
        model for all commands, if that has the higher precedence.

        Raises ConfigError for an option the command does not have, and for one set twice.
        """
        found: dict[str, Setting] = {}
        for layer in self.layers:
            for name, setting in _by_name(layer.options.get(command, ()), command, names).items():
                found.setdefault(name, setting)
            if layer.model is not None and "model" in names:
                found.setdefault("model", layer.model)
        return found


def read_config() -> Config:
    """Read the configuration in effect. Raises ConfigError if the file is invalid."""
    user = read_user_config()
    return Config((environment(), layer_of(user)), user.aliases)


def environment() -> Layer:
    """Settings from the environment. Empty variables count as unset."""
    model = os.environ.get(MODEL_VARIABLE)
    return Layer(
        Setting(model, Level.ENVIRONMENT, MODEL_VARIABLE, "model") if model else None,
        {command: _variables_of(command) for command in COMMANDS},
    )


def layer_of(file: ConfigFile) -> Layer:
    """Settings from the user's file."""
    level, where = Level.USER, str(file.path)
    return Layer(
        Setting(file.model, level, where, "model") if file.model is not None else None,
        {
            command: [
                Setting(value, level, where, f"{command}.{name}") for name, value in options.items()
            ]
            for command, options in file.options.items()
        },
        {
            prompt: {
                name: Setting(value, level, where, f"prompts.{prompt}.{name}")
                for name, value in options.items()
            }
            for prompt, options in file.prompts.items()
        },
    )


def variable_of(command: str, option: str) -> str:
    """The environment variable of a command's option: MLXCHAT_CHAT_MAX_KV_SIZE."""
    return f"MLXCHAT_{command}_{option}".replace("-", "_").upper()


def _variables_of(command: str) -> list[Setting]:
    prefix = variable_of(command, "")
    return [
        Setting(value, Level.ENVIRONMENT, variable, f"{command}.{_option_of(variable, prefix)}")
        for variable, value in sorted(os.environ.items())
        if variable.startswith(prefix) and value
    ]


def _option_of(variable: str, prefix: str) -> str:
    return variable.removeprefix(prefix).lower().replace("_", "-")


def _by_name(
    settings: Sequence[Setting], command: str, names: Mapping[str, str]
) -> dict[str, Setting]:
    """One level's settings, by option name."""
    found: dict[str, Setting] = {}
    for setting in settings:
        written = setting.key.removeprefix(f"{command}.")
        if written not in names:
            raise ConfigError(
                f"{setting.where}: {setting.key} is not an option of {command}"
                + nearest(written, names)
            )
        name = names[written]
        if name in found:
            raise setting.wrong(f"same option as {found[name].key}: remove one of them")
        found[name] = setting
    return found
