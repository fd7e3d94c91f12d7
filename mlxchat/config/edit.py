"""Edit a configuration file: set one key, or replace it all after an editor. Comments are kept.

The new text is parsed before it is written; if it does not contain the change, nothing is written.
"""

import stat
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlxchat import paths
from mlxchat.config.file import parse, read_text
from mlxchat.errors import ConfigError, OutputError
from mlxchat.files import exclusive, write_atomically

# A key as a path through tables: ("model",), ("aliases", "work"), ("chat", "max-kv-size").
Key = tuple[str, ...]

OWNER_ONLY = 0o600  # permission bits of a new file


def set_default_model(name: str | None) -> None:
    """Set the default model in the user's file, or remove it if `name` is None."""
    if name is None:
        unset_key(paths.config_file(), ("model",))
    else:
        set_key(paths.config_file(), ("model",), name)


def set_key(path: Path, key: Key, value: Any) -> None:
    """Set a key; if the file already has it, replace its value there.

    Raises ConfigError if the file is not TOML or writes the key in a form that cannot be edited,
    OutputError if it cannot be written. Either way, the file is unchanged.
    """
    with _changing(path) as document:
        table = document
        for name in key[:-1]:
            table = table.setdefault(name, {})
            if not isinstance(table, MutableMapping):
                raise ConfigError(
                    f"{path}: {name} must be a table, [{name}]: run `mlxchat config edit`"
                )
        table[key[-1]] = value


def unset_key(path: Path, key: Key) -> bool:
    """Remove a key; False if it is not there. Raises what `set_key` raises."""
    with _changing(path) as document:
        table = document
        for name in key[:-1]:
            table = table.get(name, {})
        was_set = isinstance(table, MutableMapping) and key[-1] in table
        if was_set:
            del table[key[-1]]
    return was_set


def install(path: Path, text: str, *, instead_of: str) -> None:
    """Write `text` to the file at `path`, which contained `instead_of` when editing began.

    Raises ConfigError if `text` is not TOML or the file has changed since, OutputError if it
    cannot be written.
    """
    parse(path, text)
    with _locked(path):
        if read_text(path) != instead_of:
            raise ConfigError(f"{path}: changed by another program while you were editing")
        _write(path, text)


@contextmanager
def _changing(path: Path) -> Iterator[Any]:
    """The document in the file, which is written after the body."""
    import tomlkit

    with _locked(path):
        text = read_text(path)
        parse(path, text)
        document = tomlkit.parse(text)
        yield document
        changed = tomlkit.dumps(document)
        if parse(path, changed) != document.unwrap():
            raise ConfigError(f"{path}: cannot be edited: run `mlxchat config edit`")
        if changed != text:
            _write(path, changed)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
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
