"""`mlxchat bench`: measures the documented figures on the user's machine."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from mlxchat.bench.benchmarks import BENCHES, Benchmark
from mlxchat.bench.workload_texts import WorkloadName
from mlxchat.cli.group import HELP_NAMES, App, Group
from mlxchat.cli.options import build, some_of, with_options
from mlxchat.options import Panel

ALL = "all"


class AllByDefault(Group):
    """Without a command, the options are those of `mlxchat bench all`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in HELP_NAMES):
            args = [ALL, *args]
        return super().parse_args(ctx, args)


bench_app = App(
    cls=AllByDefault,
    help="Measure speed and memory on this machine.",
    epilog="Example: mlxchat bench prefill --quick --against mlx-lm",
)

MEASURE = "Measurement"
AgainstOption = Annotated[
    Literal["mlx-lm"] | None,
    typer.Option(
        metavar="mlx-lm",
        help="Also measure mlx-lm, on the same weights",
        show_default=False,
        rich_help_panel=MEASURE,
    ),
]
WorkloadOption = Annotated[
    list[WorkloadName] | None,
    typer.Option(
        "--workload",
        metavar="NAME",
        help="Measure only drafts on this workload; repeatable",
        show_default=False,
        rich_help_panel=MEASURE,
    ),
]
QuickOption = Annotated[
    bool,
    typer.Option(
        "--quick",
        help="Measure less, for about a minute",
        rich_help_panel=MEASURE,
    ),
]
JsonFileOption = Annotated[
    str | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Append JSON Lines to FILE; - writes them to stdout",
        show_default=False,
        rich_help_panel=Panel.OUTPUT,
    ),
]


def _command(entry: Benchmark, entries: tuple[Benchmark, ...]) -> Callable[..., None]:
    """A command with the options that apply to the sub-bench."""

    def command(
        *,
        against: AgainstOption = None,
        workload: WorkloadOption = None,
        quick: QuickOption = False,
        json_file: JsonFileOption = None,
        **values: Any,
    ) -> None:
        from mlxchat.request import Setup
        from mlxchat.terminal.run_bench import BenchRequest, run_benches

        request = BenchRequest(
            entries=entries,
            setup=build(Setup, values, window=None, seed=0),
            against=against is not None,
            workloads=tuple(workload or ()),
            quick=quick,
            json_file=json_file,
            quiet=values["quiet"],
        )
        raise typer.Exit(run_benches(request))

    names = ("model", "adapter", "offline", "device", "dtype", "pipeline", "quiet")
    with_options(some_of("generate", *names))(command)
    # Typer makes an option of each parameter in the signature.
    special = {"pipeline": entry.on_ranks, "workload": entry.has_workloads}
    shown = inspect.signature(command)
    meant = [each for name, each in shown.parameters.items() if special.get(name, True)]
    vars(command)["__signature__"] = shown.replace(parameters=meant)
    return command


for _entry, _entries in [
    *((entry, (entry,)) for entry in BENCHES),
    (Benchmark(ALL, "Run all benchmarks (the default)."), BENCHES),
]:
    bench_app.command(
        _entry.name,
        help=_entry.summary,
        epilog=f"Example: mlxchat bench {_entry.name} --against mlx-lm --json figures.jsonl",
    )(_command(_entry, _entries))
