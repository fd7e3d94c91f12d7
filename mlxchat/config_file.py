"""The user's TOML file: a default model, aliases, and defaults for each command's options.

    model = "qwen3-4b"

    [aliases]
    work = "/models/work-3b"

    [generate]
    max-tokens = 500

It knows which commands have a table; which options a command has is the command's to say, by
`check_option_names`.
"""

import difflib
import stat
import tomllib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxchat import paths
from mlxchat.errors import ConfigError
from mlxchat.files import write_atomically

COMMANDS = ("chat", "generate")


@dataclass(frozen=True, slots=True)
class UserConfig:
    """What the file holds. `options` is by command, then by option name with underscores."""

    model: str | None = None
    aliases: dict[str, str] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)


def read_user_config() -> UserConfig:
    """Read the configuration file; one that does not exist is empty.

    Raises ConfigError naming the file and the key for what cannot be read, is no TOML, has a value
    of the wrong type or a key that nothing reads.
    """
    table = _parse(_read_text(paths.config_file()))
    _refuse_unknown_keys(table)
    return UserConfig(
        model=_model(table),
        aliases=_aliases(table),
        options={command: _options(table, command) for command in COMMANDS if command in table},
    )


def check_option_names(command: str, options: Iterable[str], valid_names: Collection[str]) -> None:
    """Raise ConfigError for the first of `options` that `command` does not have.

    Names are as in `UserConfig.options`: long option names with underscores.
    """
    for name in options:
        if name not in valid_names:
            raise _error(
                f"{command}.{name.replace('_', '-')} is not an option of {command}"
                + _nearest(name, valid_names, spell=lambda valid: valid.replace("_", "-"))
            )


def set_default_model(name: str | None) -> None:
    """Write `name` as the default model, or take the default away; the rest of the file stays.

    Comments and formatting are kept, and a new file is readable by its owner only. Raises
    ConfigError where the file is no TOML or cannot be written; then it is as it was.
    """
    import tomlkit

    path = paths.config_file()
    text = _read_text(path)
    _parse(text)
    document = tomlkit.parse(text)
    if name is not None:
        document["model"] = name
    elif "model" in document:
        del document["model"]
    _write_text(path, tomlkit.dumps(document))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise _error(f"cannot be read: {error}") from error


def _write_text(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
        write_atomically(path, text.encode(), mode)
    except OSError as error:
        raise _error(f"cannot be written: {error.strerror or error}") from error


def _parse(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _error(f"is not TOML: {error}") from error


def _refuse_unknown_keys(table: dict[str, Any]) -> None:
    valid = ("model", "aliases", *COMMANDS)
    for key in table:
        if key not in valid:
            raise _error(f"unknown key {key!r}" + _nearest(key, valid))


def _model(table: dict[str, Any]) -> str | None:
    return _name("model", table["model"]) if "model" in table else None


def _aliases(table: dict[str, Any]) -> dict[str, str]:
    aliases = _table(table, "aliases")
    return {alias: _name(f"aliases.{alias}", target) for alias, target in aliases.items()}


def _options(table: dict[str, Any], command: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key, value in _table(table, command).items():
        name = key.replace("-", "_")
        if name in options:
            raise _error(f"{command}.{key} is set twice, with - and with _")
        options[name] = _option_value(f"{command}.{key}", value)
    return options


def _table(table: dict[str, Any], key: str) -> dict[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise _error(f"{key} must be a table, [{key}], not {_describe(value)}")
    return value


def _name(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise _error(f"{key} must be a text in quotes, not {_describe(value)}")
    if not value.strip():
        raise _error(f"{key} must not be empty")
    return value


def _option_value(key: str, value: object) -> object:
    values = value if isinstance(value, list) else [value]
    for each in values:
        if not isinstance(each, str | int | float | bool):
            raise _error(
                f"{key} must be a text, a number, true or false, or a list of those, "
                f"not {_describe(each)}"
            )
    return value


def _describe(value: object) -> str:
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return f"the text {value!r}"
    return str(value)


def _nearest(name: str, valid_names: Iterable[str], spell: Callable[[str], str] = str) -> str:
    valid_names = sorted(valid_names)
    near = difflib.get_close_matches(name, valid_names, n=1)
    if near:
        return f"; did you mean {spell(near[0])!r}?"
    return "; known: " + ", ".join(spell(valid) for valid in valid_names)


def _error(message: str) -> ConfigError:
    return ConfigError(f"{paths.config_file()}: {message}")
