"""What the environment and the user's file set. The command line overrides both, and a variable
overrides the file.

An option's variable is named after its flag: MLXCHAT_CHAT_MAX_KV_SIZE.
"""

import os
from dataclasses import dataclass
from typing import Any

from mlxchat.config.file import ConfigFile, nearest, read_user_config
from mlxchat.errors import ConfigError, UsageError

MODEL_VARIABLE = "MLXCHAT_MODEL"


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


def configured_model() -> Setting | None:
    """The model for all commands: MLXCHAT_MODEL, or `model` of the file."""
    if named := os.environ.get(MODEL_VARIABLE):
        return Setting("model", named, MODEL_VARIABLE)
    file = read_user_config()
    return None if file.model is None else Setting("model", file.model, str(file.path))


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


def settings_in(file: ConfigFile, command: str) -> list[Setting]:
    """What the file sets for the command."""
    options = file.options.get(command, {})
    return [Setting(f"{command}.{name}", each, str(file.path)) for name, each in options.items()]


def prompt_in(file: ConfigFile, name: str) -> dict[str, Setting]:
    """The settings of a prompt, by option. Raises UsageError for an unknown name."""
    if name not in file.prompts:
        hint = nearest(name, file.prompts) if file.prompts else ": no prompts are configured"
        if " " in name:
            hint = ": to ask this, leave out the option"
        raise UsageError(f"unknown prompt {name!r}{hint}")
    return {
        key: Setting(f"prompts.{name}.{key}", value, str(file.path))
        for key, value in file.prompts[name].items()
    }
