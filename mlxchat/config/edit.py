"""Edit a configuration file: set or remove one key, or replace it all after an editor. Comments are
kept.

The new text is parsed before it is written; if it does not contain the change, nothing is written.
"""

import stat
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlxchat.config.file import parse, read_text
from mlxchat.errors import ConfigError, OutputError
from mlxchat.files import exclusive, write_atomically

OWNER_ONLY = 0o600  # permission bits of a new file


def set_key(path: Path, key: tuple[str, ...], value: Any) -> bool:
    """Set a key, a path through tables such as ("chat", "max-kv-size"), or remove it if the value
    is None; whether it was there.

    Raises ConfigError if the file is not TOML or writes the key in a form that cannot be edited,
    OutputError if it cannot be written. Either way, the file is unchanged.
    """
    import tomlkit

    with _locked(path):
        text = read_text(path)
        parse(path, text)
        document = tomlkit.parse(text)
        table: Any = document
        for name in key[:-1]:
            table = table.get(name, {}) if value is None else table.setdefault(name, {})
            if not isinstance(table, MutableMapping):
                raise ConfigError(
                    f"{path}: {name} must be a table, [{name}]: run `mlxchat config edit`"
                )
        was_set = key[-1] in table
        if value is not None:
            table[key[-1]] = value
        elif was_set:
            del table[key[-1]]
        changed = tomlkit.dumps(document)
        if parse(path, changed) != document.unwrap():
            raise ConfigError(f"{path}: cannot be edited: run `mlxchat config edit`")
        if changed != text:
            _write(path, changed)
        return was_set


def install(path: Path, text: str, *, instead_of: str) -> None:
    """Write `text` to the file at `path`, which contained `instead_of` when editing began.

    Raises ConfigError if the file has changed since, OutputError if it cannot be written.
    """
    with _locked(path):
        if read_text(path) != instead_of:
            raise ConfigError(f"{path}: changed by another program while you were editing")
        _write(path, text)


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
