"""`mlxchat cache`: prompts and documents whose keys and values are kept on the disk."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from mlxchat.cli.group import App
from mlxchat.cli.options import Json, Yes, agrees
from mlxchat.terminal.table import minute, write, write_json_lines, write_table

if TYPE_CHECKING:
    from mlxchat.store.cache_files import CacheFiles, StoredText

cache_app = App(
    help="Manage the prefix cache of long prompts and blocks.",
    epilog="""\
Examples:
  mlxchat generate -f report.txt "Who wrote this?"
  mlxchat cache list

The options --prefix-cache-size and --no-prefix-cache of chat and generate
limit it and turn it off.
""",
)

COLUMNS = ("KIND", "TOKENS", "USED", "TEXT", "MODEL")


@cache_app.command("list", epilog="Example: mlxchat cache list")
def list_prefixes(as_json: Json = False) -> None:
    """List the prefixes and blocks, latest first, and their size.

    In a pipe, each line has the columns of the table, separated by tabs.
    """
    from mlxchat.units import format_bytes

    with _files() as files:
        texts, size_bytes = files.texts(), files.size_bytes()
    if as_json:
        write_json_lines(asdict(each) for each in texts)
        return
    write_table(COLUMNS, [_row(each) for each in texts], ("TOKENS",), cut=("TEXT", "MODEL"))
    if sys.stdout.isatty():
        write(f"{format_bytes(size_bytes)} in {files.directory}\n")


@cache_app.command(epilog="Example: mlxchat cache clear")
def clear(yes: Yes = False) -> None:
    """Delete all prefixes and blocks."""
    from mlxchat.units import format_bytes

    with _files() as files:
        size = format_bytes(files.size_bytes())
        if agrees(f"Delete the whole cache, {size}?", yes=yes):
            files.prune(-1)
            write(f"deleted {size}\n")


def _row(text: "StoredText") -> tuple[str, ...]:
    return text.kind, f"{text.tokens:,}", minute(text.used), text.label, text.model


@contextmanager
def _files() -> "Iterator[CacheFiles]":
    """Raises OutputError if the directory cannot be used."""
    from mlxchat import paths
    from mlxchat.errors import OutputError
    from mlxchat.files import reported_as
    from mlxchat.store.cache_files import CacheFiles

    directory = paths.prefix_cache_dir()
    with reported_as(OutputError, f"use {directory}"):
        yield CacheFiles(directory)
