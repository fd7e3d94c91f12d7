"""The configuration: the user's file, and variables of the environment, which override it.

    model = "qwen3-4b"

    [aliases]
    work = "/models/work-3b"

    [generate]
    max-tokens = 500

    [prompts.commit]
    prompt = "Write a commit message for this change:"

A variable is named after its flag: MLXCHAT_GENERATE_MAX_TOKENS. The commands define their options
and the values these take. Edits keep comments.
"""

import os
import re
import stat
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxchat import paths
from mlxchat.errors import ConfigError, OutputError, UsageError
from mlxchat.files import open_to_read, reported_as, write_atomically
from mlxchat.manual.equivalents import option_for

MODEL_VARIABLE = "MLXCHAT_MODEL"
# The key of a prompt's own text, next to its options.
TEXT = "prompt"

# The keys, and how many tables their values are in.
KEYS = {"model": 0, "aliases": 1, "prompts": 2, "batch": 1, "chat": 1, "generate": 1}
MUST_BE_TEXT = re.compile(rf"model|aliases\..*|.*\.{TEXT}")

# As many names are listed in a message.
MAX_LISTED = 12

OWNER_ONLY = 0o600  # permission bits of a new file


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
    """The file at `path`, with valid keys. `prompts` is by name, then by option, "max-kv-size"."""

    path: Path
    contents: Mapping[str, Any]

    @property
    def model(self) -> str | None:
        return self.contents.get("model")

    @property
    def aliases(self) -> Mapping[str, str]:
        return self.contents.get("aliases", {})

    @property
    def prompts(self) -> Mapping[str, Mapping[str, Any]]:
        return self.contents.get("prompts", {})

    def settings_for(self, *tables: str) -> dict[str, Setting]:
        """By option, from "chat" or from "prompts", "commit"."""
        values: Any = self.contents
        for name in tables:
            values = values.get(name, {})
        return {
            option: Setting(".".join([*tables, option]), value, str(self.path))
            for option, value in values.items()
        }

    def prompt(self, name: str) -> dict[str, Setting]:
        """The settings of a prompt, by option. Raises UsageError for an unknown name."""
        if name not in self.prompts:
            hint = ": to ask this, leave out the option"
            raise UsageError(
                f"unknown prompt {name!r}" + (hint if " " in name else nearest(name, self.prompts))
            )
        return self.settings_for("prompts", name)


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
        with reported_as(ConfigError, f"read {path}"):
            if not path.exists():
                return ""
            with open_to_read(path) as file:
                return file.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text, at byte {error.start:,}") from error


def check_text(path: Path, text: str) -> ConfigFile:
    """Check a text that is, or will be, the file at `path`.

    Raises ConfigError naming the file and the key if it is not TOML, has an unknown key, or a value
    cannot be one.
    """
    found = _parsed(path, text)
    for key, value in found.items():
        if key not in KEYS:
            raise ConfigError(f"{path}: unknown key {key!r}{nearest(key, KEYS)}")
        _check(path, key, value, tables=KEYS[key])
    return ConfigFile(path, found)


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
    if near:
        return f"; did you mean {near[0]!r}?"
    if len(valid_names) > MAX_LISTED:
        return "; `mlxchat config show` lists them"
    return "; known: " + (", ".join(valid_names) or "none")


def set_key(path: Path, key: tuple[str, ...], value: Any) -> bool:
    """Set a key, a path through tables such as ("chat", "max-kv-size"), or remove it if the value
    is None; whether it was there.

    Raises ConfigError if the file is not TOML or writes the key in a form that cannot be edited,
    OutputError if it cannot be written. Either way, the file is unchanged.
    """
    import tomlkit

    text = read_text(path)
    _parsed(path, text)
    document = tomlkit.parse(text)
    table: Any = document
    for name in key[:-1]:
        table = table.get(name, {}) if value is None else table.setdefault(name, {})
        if not isinstance(table, MutableMapping):
            raise ConfigError(f"{path}: {name} must be a table, [{name}]")
    was_set = key[-1] in table
    if value is not None:
        table[key[-1]] = value
    elif was_set:
        del table[key[-1]]
    changed = tomlkit.dumps(document)
    if _parsed(path, changed) != document.unwrap():
        raise ConfigError(f"{path}: cannot be edited: run `mlxchat config edit`")
    install(path, changed, instead_of=text)
    return was_set


def install(path: Path, text: str, *, instead_of: str) -> None:
    """Write `text` to the file at `path`, which contained `instead_of` when editing began.

    Raises ConfigError if the file has changed since, OutputError if it cannot be written.
    """
    if read_text(path) != instead_of:
        raise ConfigError(f"{path}: changed by another program while you were editing")
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else OWNER_ONLY
    with reported_as(OutputError, f"write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode("utf-8"), mode)


def _parsed(path: Path, text: str) -> dict[str, Any]:
    if not text:
        return {}
    # Imported here: help reads the configuration too, and needs no parser if there is no file.
    import tomllib

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def _check(path: Path, key: str, value: Any, *, tables: int) -> None:
    if tables and isinstance(value, dict):
        for name, each in value.items():
            _check(path, f"{key}.{name}", each, tables=tables - 1)
        return
    if tables:
        wanted, is_right = f"a table, [{key}]", False
    elif MUST_BE_TEXT.fullmatch(key):
        wanted, is_right = "a string in quotes", isinstance(value, str) and value.strip() != ""
    else:
        wanted = "a string, a number, true or false, or a list of those"
        is_right = isinstance(value, str | int | float | list)
    if not is_right:
        raise ConfigError(f"{path}: {key} must be {wanted}, not {value!r}")
