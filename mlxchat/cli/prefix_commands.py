"""`mlxchat cache`: what is kept of what was read before, and reading something beforehand."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlxchat.cli.completion import complete_prefix
from mlxchat.cli.group import Group
from mlxchat.cli.listing import Json, minute, write, write_json_lines, write_table
from mlxchat.cli.options import some_of, with_options

if TYPE_CHECKING:
    from mlxchat.store.prefix_index import PrefixIndex

cache_app = typer.Typer(
    cls=Group,
    help="What is kept on the disk of long prompts and of blocks, so that they are read only once.",
    no_args_is_help=True,
    epilog="""\
Examples:
  mlxchat cache warm report.txt
  mlxchat generate -f report.txt "Who wrote this?"
  mlxchat cache info

`mlxchat cache info` says where it is. --prefix-cache-size of chat and of
generate is the most that is kept, and --no-prefix-cache turns it off.
""",
)

# What hangs on a prefix's last page is the prefix.
KINDS = {"page": "prefix", "block": "block"}

WARM = some_of(
    "generate",
    *("system", "template_args", "model", "offline", "device", "dtype", "window"),
    *("prefill_step_size", "prefix_cache_bytes", "quiet"),
)


@cache_app.command("list", epilog="Example: mlxchat cache list")
def list_prefixes(as_json: Json = False) -> None:
    """List the prefixes and blocks that are kept, what was used last first.

    When piped: one line each, tab-separated, in the order of the table's columns.
    """
    with _index() as index:
        prefixes = index.prefixes()
    if as_json:
        write_json_lines(asdict(each) | {"kind": KINDS[each.kind]} for each in prefixes)
        return
    rows = [
        (each.key[:12], KINDS[each.kind], f"{each.tokens:,}", minute(each.used), each.model)
        for each in prefixes
    ]
    write_table(("ID", "KIND", "TOKENS", "USED", "MODEL"), rows, ("TOKENS",))


@cache_app.command(epilog="Example: mlxchat cache info")
def info() -> None:
    """Say how much is kept, of which models, and where."""
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
        typer.Argument(
            metavar="ID…", help="As `cache list` shows them.", autocompletion=complete_prefix
        ),
    ],
) -> None:
    """Delete prefixes and blocks; what others share of them stays."""
    from mlxchat.errors import UsageError

    with _index() as index:
        for id_ in ids:
            found = [each.key for each in index.prefixes() if each.key.startswith(id_)]
            if len(found) != 1 or not id_:
                what = "nothing" if not found else "more than one"
                raise UsageError(
                    f"{what} of what is kept begins with {id_!r}: see mlxchat cache list"
                )
            index.remove_prefix(found[0])


@cache_app.command(epilog="Example: mlxchat cache clear")
def clear() -> None:
    """Delete all of them."""
    from mlxchat.units import count

    with _index() as index:
        pages = index.clear()
    write(f"{count(pages, 'page')} deleted\n")


@cache_app.command(epilog="Example: mlxchat cache warm -s 'Answer briefly.' report.txt")
@with_options(WARM)
def warm(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Document, - for stdin.")],
    block: Annotated[
        bool, typer.Option("--block", help="Keep it as a block, for `mlxchat generate --block`.")
    ] = False,
    **values: Any,
) -> None:
    """Read a document now, so that `mlxchat generate -f FILE "question"` begins at once later.

    The model, the system prompt, --template-arg and --dtype must be those of later. With --block,
    what begins at once is `mlxchat generate --block FILE`, beside other blocks or alone.
    """
    from mlxchat.cli.setup import setup_of
    from mlxchat.cli.warm import warm as warm_up

    template_args = WARM["template_args"].value_of(values["template_args"] or [])
    warm_up(
        setup_of(values),
        file,
        values["system"],
        template_args,
        block=block,
        quiet=values["quiet"],
    )


@contextmanager
def _index() -> "Iterator[PrefixIndex]":
    """Raises OutputError where the disk, or the database on it, cannot be used."""
    from mlxchat import paths
    from mlxchat.errors import OutputError
    from mlxchat.files import reported_as
    from mlxchat.store.prefix_index import PrefixIndex

    directory = paths.prefix_cache_dir()
    with reported_as(OutputError, f"use {directory}"):
        yield PrefixIndex(directory)
