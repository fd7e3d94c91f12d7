"""`mlxchat cache`: prompts and documents whose keys and values are kept on the disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlxchat.cli.completion import complete_prefix
from mlxchat.cli.group import App
from mlxchat.cli.options import some_of, with_options
from mlxchat.cli.shared_options import Json, Yes, agrees
from mlxchat.terminal.listing import minute, write, write_json_lines, write_table

if TYPE_CHECKING:
    from mlxchat.store.prefix_index import PrefixIndex, StoredPrefix

cache_app = App(
    help="Manage the prefix cache of long prompts and blocks.",
    no_args_is_help=True,
    epilog="""\
Examples:
  mlxchat cache warm report.txt
  mlxchat generate -f report.txt "Who wrote this?"
  mlxchat cache info

`mlxchat cache info` shows where it is. The options --prefix-cache-size and
--no-prefix-cache of chat and generate limit it and turn it off.
""",
)

COLUMNS = ("ID", "KIND", "TOKENS", "USED", "TEXT", "MODEL")

# A prefix is listed by its last page.
KINDS = {"page": "prefix", "block": "block"}

WARM = some_of(
    "generate",
    *("system", "template_args", "model", "chat_template", "offline", "device", "dtype", "window"),
    *("prefill_step_size", "prefix_cache_bytes", "quiet"),
)


@cache_app.command("list", epilog="Example: mlxchat cache list")
def list_prefixes(as_json: Json = False) -> None:
    """List the prefixes and blocks, most recently used first.

    In a pipe, each line has the columns of the table, separated by tabs.
    """
    with _index() as index:
        prefixes = index.prefixes()
    if as_json:
        write_json_lines(asdict(each) | {"kind": KINDS[each.kind]} for each in prefixes)
        return
    write_table(COLUMNS, [_row(each) for each in prefixes], ("TOKENS",), cut=("TEXT", "MODEL"))


@cache_app.command(epilog="Example: mlxchat cache info")
def info() -> None:
    """Show the size of the cache and its directory."""
    from mlxchat import paths
    from mlxchat.units import format_bytes

    with _index() as index:
        models, total_bytes = index.models(), index.total_bytes()
    rows = [
        (
            each.model,
            str(each.pages),
            f"{each.tokens:,}",
            format_bytes(each.bytes),
            format_bytes(each.bytes / each.tokens),
            minute(each.used),
        )
        for each in models
    ]
    headers = ("MODEL", "PAGES", "TOKENS", "SIZE", "BYTES/TOKEN", "USED")
    write_table(headers, rows, headers[1:5])
    write(f"{format_bytes(total_bytes)} in {paths.prefix_cache_dir()}\n")


@cache_app.command(epilog="Example: mlxchat cache rm 3f9c2ab81d07")
def rm(
    ids: Annotated[
        list[str],
        typer.Argument(metavar="ID…", help="IDs in `cache list`", autocompletion=complete_prefix),
    ],
    yes: Yes = False,
) -> None:
    """Delete prefixes and blocks; pages that others share stay."""
    from mlxchat.units import format_bytes

    with _index() as index:
        prefixes = index.prefixes()
        # Nothing is deleted if one of them does not exist.
        found = list(dict.fromkeys(_with_id(id_, prefixes) for id_ in ids))
        what = found[0][:12] if len(found) == 1 else f"{len(found)} entries"
        if not agrees(f"Delete {what} from the cache?", yes=yes):
            return
        before_bytes = index.total_bytes()
        for key in found:
            index.remove_prefix(key)
        freed = format_bytes(before_bytes - index.total_bytes())
    write(f"deleted {', '.join(key[:12] for key in found)}, {freed}\n")


@cache_app.command(epilog="Example: mlxchat cache clear")
def clear(yes: Yes = False) -> None:
    """Delete all prefixes and blocks."""
    from mlxchat.units import count, format_bytes

    with _index() as index:
        size = format_bytes(index.total_bytes())
        if agrees(f"Delete the whole cache, {size}?", yes=yes):
            write(f"deleted {count(index.clear(), 'page')}, {size}\n")


@cache_app.command(epilog="Example: mlxchat cache warm -s 'Answer briefly.' report.txt")
@with_options(WARM)
def warm(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Document, - for stdin")],
    block: Annotated[
        bool, typer.Option("--block", help="Store a block, for `mlxchat generate --block`")
    ] = False,
    **values: Any,
) -> None:
    """Read a document now, so that later questions start immediately.

    Ask them with `mlxchat generate -f FILE "question"`, and the same model, system prompt,
    --template-arg, --chat-template and --dtype. With --block, use `mlxchat generate --block FILE`,
    alone or with other blocks.
    """
    from mlxchat.cli.setup import setup_of
    from mlxchat.terminal.run_warm import warm as warm_up

    template_args = WARM["template_args"].value_of(values["template_args"] or [])
    warm_up(
        setup_of(values),
        file,
        values["system"],
        template_args,
        block=block,
        quiet=values["quiet"],
    )


def _row(prefix: "StoredPrefix") -> tuple[str, ...]:
    kind, tokens = KINDS[prefix.kind], f"{prefix.tokens:,}"
    return prefix.key[:12], kind, tokens, minute(prefix.used), prefix.label, prefix.model


def _with_id(id_: str, prefixes: "list[StoredPrefix]") -> str:
    """The key that begins so. Raises UsageError unless there is exactly one."""
    from mlxchat.errors import UsageError

    found = [each.key for each in prefixes if each.key.startswith(id_)]
    if len(found) != 1 or not id_:
        what = "several entries match" if found else "no entry matches"
        raise UsageError(f"{what} {id_!r}: `mlxchat cache list` shows their IDs")
    return found[0]


@contextmanager
def _index() -> "Iterator[PrefixIndex]":
    """Raises OutputError if the disk, or the database on it, cannot be used."""
    from mlxchat import paths
    from mlxchat.errors import OutputError
    from mlxchat.files import reported_as
    from mlxchat.store.prefix_index import PrefixIndex

    directory = paths.prefix_cache_dir()
    with reported_as(OutputError, f"use {directory}"):
        yield PrefixIndex(directory)
