"""Edit a configuration file: set one key, or replace it all after an editor. Comments are kept.

The new text is parsed before it is written; if it does not contain the change, nothing is written.
"""

import stat
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlxchat import paths
from mlxchat.config.file import parse, read_text
from mlxchat.errors import ConfigError, OutputError
from mlxchat.files import exclusive, write_atomically

# A key as a path through tables: ("model",), ("aliases", "work"), ("chat", "max-kv-size").
Key = tuple[str, ...]

EDIT = "run `mlxchat config edit`"

OWNER_ONLY = 0o600  # permission bits of a new file


def set_default_model(name: str | None) -> None:
    """Set the default model in the user's file, or remove it if `name` is None."""
    if name is None:
        unset_key(paths.config_file(), ("model",))
    else:
        set_key(paths.config_file(), ("model",), name)


def set_key(
    path: Path,
    key: Key,
    value: Any,
    *,
    spellings: Collection[str] = (),
) -> None:
    """Set a key. If the file already has it, under its own name or one of `spellings`, with - or _,
    replace its value there.

    Raises ConfigError if the file is not TOML or writes the key in a form that cannot be edited,
    OutputError if it cannot be written. Either way, the file is unchanged.
    """

    def put(table: MutableMapping[str, Any]) -> None:
        table[_written(table, key, spellings)] = value

    _change(path, key, put)


def unset_key(path: Path, key: Key, *, spellings: Collection[str] = ()) -> bool:
    """Remove a key; False if it is not there. Raises what `set_key` raises."""
    table: Any = parse(path, read_text(path))
    for name in key[:-1]:
        table = table.get(name) if isinstance(table, Mapping) else None
    if not isinstance(table, Mapping) or _written(table, key, spellings) not in table:
        return False

    def take(table: MutableMapping[str, Any]) -> None:
        del table[_written(table, key, spellings)]

    _change(path, key, take)
    return True


def install(path: Path, text: str, *, instead_of: str) -> None:
    """Write `text` to the file at `path`, which contained `instead_of` when editing began.

    Raises ConfigError if `text` is not TOML or the file has changed since, OutputError if it
    cannot be written.
    """
    parse(path, text)
    with _changing(path):
        if read_text(path) != instead_of:
            raise ConfigError(f"{path}: changed by another program while you were editing")
        _write(path, text)


def _change(path: Path, key: Key, change: Callable[[MutableMapping[str, Any]], None]) -> None:
    import tomlkit

    with _changing(path):
        text = read_text(path)
        meant = parse(path, text)
        _within(meant, key, path, change, dict)
        document = tomlkit.parse(text)
        _within(document, key, path, change, tomlkit.table)
        changed = tomlkit.dumps(document)
        if _said(changed) != meant:
            raise ConfigError(
                f"{path}: {'.'.join(key)} is written in a form that cannot be edited: {EDIT}"
            )
        _write(path, changed)


@contextmanager
def _changing(path: Path) -> Iterator[None]:
    """Lock out other processes from reading until writing, so that no change is lost."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(path.parent):
            yield
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error


def _write(path: Path, text: str) -> None:
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else OWNER_ONLY
    write_atomically(path, text.encode("utf-8"), mode)


def _within(
    tables: MutableMapping[str, Any],
    key: Key,
    path: Path,
    change: Callable[[MutableMapping[str, Any]], None],
    new_table: Callable[[], Any],
) -> None:
    """Change the table that contains the key, creating it if necessary."""
    table = tables
    for name in key[:-1]:
        if name not in table:
            table[name] = new_table()
        table = table[name]
        if not isinstance(table, MutableMapping):
            raise ConfigError(f"{path}: {name} must be a table, [{name}]: {EDIT}")
    change(table)


def _written(table: Mapping[str, Any], key: Key, spellings: Collection[str]) -> str:
    """The table's spelling of the key."""
    return next((each for each in table if each.replace("_", "-") in spellings), key[-1])


def _said(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
