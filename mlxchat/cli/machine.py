"""`mlxchat bench`, `doctor` and `cache`: what this machine can do, what is wrong with it, and the
prompts and documents whose keys and values are kept on its disk."""

import sys
from typing import Annotated, Any, Literal

import typer

from mlxchat import paths
from mlxchat.bench import BENCHES
from mlxchat.cli.group import App
from mlxchat.cli.options import Json, Yes, build, confirm, with_options
from mlxchat.errors import ExitStatus, OutputError
from mlxchat.files import reported_as
from mlxchat.request import Setup
from mlxchat.request.commands import COMMANDS
from mlxchat.terminal.output import Messages
from mlxchat.terminal.table import format_finding, format_table, write, write_json_lines
from mlxchat.units import count, format_bytes

OPTIONS = ("model", "adapter", "offline", "device", "dtype", "pipeline", "quiet")

EPILOG = """\
Examples:
  mlxchat bench --quick
  mlxchat bench prefill --against mlx-lm --json figures.jsonl

Benchmarks:
""" + "".join(f"  {each.name:<9}{each.measures}\n" for each in BENCHES)


@with_options({name: COMMANDS["generate"][name] for name in OPTIONS})
def bench(
    *,
    name: Annotated[
        Literal["startup", "prefill", "decode", "batch", "all"],
        typer.Argument(metavar="BENCHMARK", help="startup, prefill, decode, batch; else all"),
    ] = "all",
    against: Annotated[
        Literal["mlx-lm"] | None,
        typer.Option(metavar="mlx-lm", help="Also measure mlx-lm, on the same weights"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure less, a minute each")] = False,
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="FILE", help="Append JSON Lines to FILE; - writes them to stdout"
        ),
    ] = None,
    **values: Any,
) -> None:
    """Measure speed and memory on this machine."""
    from mlxchat.terminal.run_bench import BenchRequest, run_benches

    request = BenchRequest(
        entries=tuple(each for each in BENCHES if name in (each.name, "all")),
        setup=build(Setup, values, window=None, seed=0),
        against=against is not None,
        quick=quick,
        json_file=json_file,
        quiet=values["quiet"],
    )
    raise typer.Exit(run_benches(request))


def doctor(
    offline: Annotated[bool, typer.Option("--offline", help="Do not contact the Hub")] = False,
    as_json: Json = False,
) -> None:
    """Check the machine, caches, configuration and terminal, and suggest fixes.

    Each line is ok, a warning or a problem with its fix. In a pipe, the columns are separated by
    tabs: verdict, topic, finding, fix. Nothing is changed, and access tokens are never shown.
    """
    from mlxchat.doctor import Verdict, examine

    tally = dict.fromkeys(Verdict, 0)
    for each in examine(offline=offline):
        tally[each.verdict] += 1
        cells = (str(each.verdict), each.topic, each.found, each.fix)
        if as_json:
            write_json_lines([dict(zip(("verdict", "topic", "found", "fix"), cells, strict=True))])
        elif sys.stdout and sys.stdout.isatty():
            write(format_finding(*cells))
        else:
            write(format_table((), [[cell or "" for cell in cells]], for_terminal=False))
    problems, warnings = tally[Verdict.PROBLEM], tally[Verdict.WARNING]
    Messages().note(f"{count(problems, 'problem')}, {count(warnings, 'warning')}")
    raise typer.Exit(ExitStatus.FAILURE if problems else ExitStatus.OK)


cache_app = App(
    help="Manage the prefix cache of long prompts and blocks.",
    epilog="""\
Examples:
  mlxchat cache size

It holds up to 4 GB; --no-prefix-cache turns it off.
""",
)


@cache_app.command(epilog="Example: mlxchat cache size")
def size() -> None:
    """Show how much is cached, and where: prefixes and blocks, indexes of large documents."""
    from mlxchat.store.tensor_file import CacheFiles

    for directory in (paths.prefix_cache_dir(), paths.document_indexes_dir()):
        with reported_as(OutputError, f"use {directory}"):
            write(f"{format_bytes(CacheFiles(directory).size_bytes())} in {directory}\n")


@cache_app.command(epilog="Example: mlxchat cache clear")
def clear(yes: Yes = False) -> None:
    """Delete all prefixes and blocks, and the indexes of large documents."""
    from mlxchat.store.tensor_file import CacheFiles

    caches = CacheFiles(paths.prefix_cache_dir()), CacheFiles(paths.document_indexes_dir())
    with reported_as(OutputError, f"use {caches[0].directory.parent}"):
        held = format_bytes(sum(each.size_bytes() for each in caches))
        confirm(f"Delete all prefixes, blocks and indexes, {held}?", yes=yes)
        for each in caches:
            each.prune(-1)
        write(f"deleted {held}\n")
