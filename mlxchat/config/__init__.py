"""The configuration: the user's file, and variables of the environment, which override it.

    model = "qwen3-4b"

    [aliases]
    work = "/models/work-3b"

    [generate]
    max-tokens = 500

    [prompts.commit]
    prompt = "Write a commit message for this change:"

A variable is named after its flag: MLXCHAT_GENERATE_MAX_TOKENS. Which options there are, and which
values they take, is declared in `request`. Edits keep comments.
"""

import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from mlxchat import paths
from mlxchat.errors import ConfigError, OutputError, UsageError
from mlxchat.files import open_to_read, reported_as, write_atomically
from mlxchat.manual.equivalents import option_for
from mlxchat.options import ONE_OF, check_utf8
from mlxchat.request.commands import COMMANDS

MODEL_VARIABLE = "MLXCHAT_MODEL"
# The key of a prompt's own text, next to its options.
TEXT = "prompt"

# The keys, and how many tables their values are in.
KEYS = {"model": 0, "aliases": 1, "prompts": 2, **dict.fromkeys(COMMANDS, 1)}
OPTION_KEYS = [f"{name}.{each.name}" for name in COMMANDS for each in COMMANDS[name].values()]
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


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The file at `path`, checked. `prompts` is by name, then by option, "max-kv-size"."""

    path: Path
    contents: Mapping[str, Any]

    @property
    def aliases(self) -> Mapping[str, str]:
        return self.contents.get("aliases", {})

    @property
    def prompts(self) -> Mapping[str, Mapping[str, Any]]:
        return {name: each for name, each in self.contents.get("prompts", {}).items() if each}

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
            hint = ": to ask this, leave out the option" if " " in name else ""
            adds = ": `mlxchat config edit` adds prompts"
            hint = hint or (nearest(name, self.prompts) if self.prompts else adds)
            raise UsageError(f"unknown prompt {name!r}{hint}")
        return self.settings_for("prompts", name)


def read_user_config() -> ConfigFile:
    """Read the user's file; a missing one is empty. Raises ConfigError as `check_text` does."""
    path = paths.config_file()
    return check_text(path, read_text(path))


def configured(command: str) -> dict[str, Setting]:
    """What the file and the environment set for a command, by field. Raises ConfigError.

    `models.resolve` handles the model for all commands, since it reports where its name comes from.
    """
    found = by_field(command, read_user_config().settings_for(command).values())
    if os.environ.get(MODEL_VARIABLE):
        found.pop("model", None)
    variables = by_field(command, variables_for(command))
    options = COMMANDS[command]
    chosen = {n for n, v in variables.items() if options[n].value_of(v.value) != options[n].default}
    rivals = {each for group in ONE_OF if chosen & {*group} for each in group}
    return {name: each for name, each in found.items() if name not in rivals} | variables


def variables_for(command: str) -> list[Setting]:
    """What the environment sets for the command. Raises ConfigError if a name lacks that."""
    prefix = f"MLXCHAT_{command.upper()}_"
    for each in COMMANDS[command].values():
        name = each.name.upper().replace("-", "_")
        if os.environ.get(alone := f"MLXCHAT_{name}") and alone != MODEL_VARIABLE:
            raise ConfigError(f"{alone}: name the command, as in {prefix}{name}")
    return [
        Setting(f"{command}.{name.removeprefix(prefix).lower().replace('_', '-')}", value, name)
        for name, value in sorted(os.environ.items())
        if name.startswith(prefix) and value
    ]


def configured_model() -> Setting | None:
    """The model for all commands: MLXCHAT_MODEL, or `model` of the file."""
    if named := os.environ.get(MODEL_VARIABLE):
        return Setting("model", named, MODEL_VARIABLE)
    return read_user_config().settings_for().get("model")


def by_field(command: str, settings: Iterable[Setting]) -> dict[str, Setting]:
    """A command's settings by the option's field, checked. Raises ConfigError, with its place, for
    an option that the command does not have, and an invalid value."""
    options = {each.name: each for each in COMMANDS[command].values()}
    found: dict[str, Setting] = {}
    for setting in settings:
        name = setting.key.rpartition(".")[2]
        if name not in options:
            wrong = f"{setting.where}: {setting.key} is not an option of {command}"
            raise ConfigError(wrong + nearest(name, options))
        option, value = options[name], setting.value
        values = value if isinstance(value, list) else [value]
        try:
            if isinstance(value, dict) or (isinstance(value, list) and not option.many):
                raise UsageError(f"{option.flag} cannot be {value!r}")
            texts = [str(each) for each in values]
            option.value_of(texts if option.many else texts[0])
        except UsageError as error:
            raise ConfigError(f"{setting.where}: {setting.key}: {error}") from error
        found[option.field] = replace(setting, value=values if option.many else value)
    return found


def nearest(name: str, valid_names: Iterable[str]) -> str:
    """The end of a message about an unknown name: the one that was probably meant, or all."""
    import difflib

    valid_names = sorted(valid_names)
    ours = option_for(name) or name
    near = [each for each in valid_names if f".{each}".endswith(f".{ours}")]
    table = name[: name.rfind(".") + 1]
    options = {each.removeprefix(table): each for each in valid_names}
    close = difflib.get_close_matches(name.removeprefix(table), options, n=1, cutoff=0.65)
    near = near or [options[each] for each in close]
    if near:
        return f"; did you mean {' or '.join(map(repr, near))}?"
    if len(valid_names) > MAX_LISTED:
        return "; `mlxchat config show` lists them"
    return "; known: " + (", ".join(valid_names) or "none")


# The file


def read_text(path: Path) -> str:
    """The file's text, empty if it does not exist. Anything that never ends, such as a device, is
    not read. Raises ConfigError."""
    try:
        with reported_as(ConfigError, f"read {path}"):
            if not path.exists():
                return ""
            with open_to_read(path) as file:
                return file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text, at byte {error.start:,}") from error


def check_text(path: Path, text: str) -> ConfigFile:
    """Check a text that is, or will be, the file at `path`.

    Raises ConfigError naming the file and the key: not TOML, an unknown key, an invalid value.
    """
    file = ConfigFile(path, _parsed(path, text))
    for key, value in file.contents.items():
        if key not in KEYS:
            raise ConfigError(f"{path}: unknown key {key!r}{nearest(key, [*KEYS, *OPTION_KEYS])}")
        _check_form(path, key, value, tables=KEYS[key])
    for command in COMMANDS:
        by_field(command, file.settings_for(command).values())
    chats = {each.name for each in COMMANDS["chat"].values()}
    for prompt in file.prompts:
        for name, setting in file.prompt(prompt).items():
            if name != TEXT:
                by_field("chat" if name in chats else "generate", [setting])
    return file


def _parsed(path: Path, text: str) -> dict[str, Any]:
    if not text:
        return {}
    # Imported here: help reads the configuration too, and needs no parser if there is no file.
    import tomllib

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def _check_form(path: Path, key: str, value: Any, *, tables: int) -> None:
    if tables:
        if not isinstance(value, dict):
            raise ConfigError(f"{path}: {key} must be a table, [{key}], not {value!r}")
        for name, each in value.items():
            _check_form(path, f"{key}.{name}", each, tables=tables - 1)
    elif MUST_BE_TEXT.fullmatch(key) and not (isinstance(value, str) and value.strip()):
        raise ConfigError(f"{path}: {key} must be text in quotes and not empty: {value!r}")


def set_key(path: Path, key: tuple[str, ...], values: list[str]) -> bool:
    """Set a key such as ("chat", "max-kv-size"), or remove it without values; whether it was there.
    Raises ConfigError if the file is not TOML or, unless the key is removed, would be invalid;
    OutputError if it cannot be written. Either way, it is unchanged."""
    import tomlkit

    check_utf8(".".join(key), *key, *values)
    text = read_text(path)
    _parsed(path, text)
    document: Any = tomlkit.parse(text)
    table: Any = document
    rest = [*key]
    while len(rest) > 1 and rest[0] in table:
        table = table[name := rest.pop(0)]
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {name} must be a table, [{name}]")
    was_set = rest[0] in table
    if values:
        # With the tables that are missing: tomlkit may lose what is added to them later.
        value = _as_toml(key, values)
        table[rest[0]] = reduce(lambda inner, name: {name: inner}, reversed(rest[1:]), value)
    elif was_set:
        del table[rest[0]]
    changed = tomlkit.dumps(document)
    if "" in key or _parsed(path, changed) != document.unwrap():
        raise ConfigError(f"{path}: no place for {'.'.join(key)}: use `mlxchat config edit`")
    (check_text if values else _parsed)(path, changed)
    if values or was_set:
        install(path, changed, instead_of=text)
    return was_set


def _as_toml(key: tuple[str, ...], values: list[str]) -> Any:
    """A list for a repeatable option, a number or truth value for one of that type, else text."""
    options = COMMANDS.get("generate" if key[0] == "prompts" else key[0], {})
    option = next((each for each in options.values() if each.name == key[-1]), None)
    if option is not None and option.many:
        return values
    if len(values) > 1:
        raise UsageError(f"{'.'.join(key)} takes one value: quote a text with spaces")
    if option is not None:
        # An invalid value is refused with its place, when the whole file is checked.
        with suppress(UsageError):
            value = option.value_of(values[0])
            is_same = option.parse is None or str(value) == values[0]
            return value if isinstance(value, int | float) and is_same else values[0]
    return values[0]


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
