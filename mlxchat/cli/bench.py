"""`mlxchat bench`: measures the documented figures on the user's machine."""

from typing import Annotated, Any, Literal

import typer

from mlxchat.bench import BENCHES
from mlxchat.cli.options import build, with_options
from mlxchat.request.commands import COMMANDS

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
        typer.Option(
            metavar="mlx-lm",
            help="Also measure mlx-lm, on the same weights",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Measure less, for about a minute"),
    ] = False,
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Append JSON Lines to FILE; - writes them to stdout",
            show_default=False,
        ),
    ] = None,
    **values: Any,
) -> None:
    """Measure speed and memory on this machine."""
    from mlxchat.request import Setup
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
