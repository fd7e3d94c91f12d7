"""`mlxchat cache`: prompts and documents whose keys and values are kept on the disk."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from mlxchat.cli.completion import complete_prefix
from mlxchat.cli.group import App
from mlxchat.cli.options import Json, Yes, agrees
from mlxchat.terminal.table import minute, write, write_json_lines, write_table

if TYPE_CHECKING:
    from mlxchat.store.cache_files import CacheFiles, Entry

cache_app = App(
    help="Manage the prefix cache of long prompts and blocks.",
    no_args_is_help=True,
    epilog="""\
Examples:
  mlxchat generate -f report.txt "Who wrote this?"
  mlxchat cache list

The options --prefix-cache-size and --no-prefix-cache of chat and generate
limit it and turn it off.
""",
)

COLUMNS = ("ID", "KIND", "TOKENS", "USED", "TEXT", "MODEL")


@cache_app.command("list", epilog="Example: mlxchat cache list")
def list_prefixes(as_json: Json = False) -> None:
    """List the prefixes and blocks, latest first, and their size.

    In a pipe, each line has the columns of the table, separated by tabs.
    """
    from mlxchat.store.cache_files import ends_of
    from mlxchat.units import format_bytes

    with _files() as files:
        entries = files.entries()
    ends = ends_of(entries)
    if as_json:
        shown = ("key", "kind", "tokens", "model", "label", "used")
        write_json_lines({name: getattr(each, name) for name in shown} for each in ends)
        return
    write_table(COLUMNS, [_row(each) for each in ends], ("TOKENS",), cut=("TEXT", "MODEL"))
    if sys.stdout.isatty():
        size_bytes = sum(each.bytes for each in entries)
        write(f"{format_bytes(size_bytes)} in {files.directory}\n")


@cache_app.command(epilog="Example: mlxchat cache rm 3f9c2ab81d07")
def rm(
    ids: Annotated[
        list[str],
        typer.Argument(metavar="ID…", help="IDs in `cache list`", autocompletion=complete_prefix),
    ],
    yes: Yes = False,
) -> None:
    """Delete prefixes and blocks; pages that others share stay."""
    from mlxchat.store.cache_files import ends_of
    from mlxchat.units import format_bytes

    with _files() as files:
        ends = ends_of(files.entries())
        # Nothing is deleted if one of them does not exist.
        found = list(dict.fromkeys(_with_id(id_, ends) for id_ in ids))
        what = found[0][:12] if len(found) == 1 else f"{len(found)} entries"
        if not agrees(f"Delete {what} from the cache?", yes=yes):
            return
        freed = format_bytes(sum(files.delete_text(key) for key in found))
    write(f"deleted {', '.join(key[:12] for key in found)}, {freed}\n")


@cache_app.command(epilog="Example: mlxchat cache clear")
def clear(yes: Yes = False) -> None:
    """Delete all prefixes and blocks."""
    from mlxchat.units import format_bytes

    with _files() as files:
        size = format_bytes(files.size_bytes())
        if agrees(f"Delete the whole cache, {size}?", yes=yes):
            files.prune(-1)
            write(f"deleted {size}\n")


def _row(entry: "Entry") -> tuple[str, ...]:
    tokens = f"{entry.tokens:,}"
    return entry.key[:12], entry.kind, tokens, minute(entry.used), entry.label, entry.model


def _with_id(id_: str, entries: "list[Entry]") -> str:
    """The key that begins so. Raises UsageError unless there is exactly one."""
    from mlxchat.errors import UsageError

    found = [each.key for each in entries if each.key.startswith(id_)]
    if len(found) != 1 or not id_:
        what = "several entries match" if found else "no entry matches"
        raise UsageError(f"{what} {id_!r}: `mlxchat cache list` shows their IDs")
    return found[0]


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
