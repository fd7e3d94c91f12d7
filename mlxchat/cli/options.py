"""The options that several commands have, each defined once: its flags, its help, its panel."""

from typing import Annotated, Literal

import typer

from mlxchat.cli.completion import complete_model
from mlxchat.settings import SamplingSettings as Sampling

INPUT, SESSION, WINDOW, SAMPLING, END, OUTPUT, OVERNIGHT, MODEL = (
    "Input",
    "Session",
    "Window",
    "Sampling (defaults: the model's generation_config.json, else those given)",
    "When to end",
    "Output",
    "Overnight",
    "Model and machine",
)
DEFAULT = Sampling()

SystemOption = Annotated[
    str | None,
    typer.Option(
        "-s",
        "--system",
        "--system-prompt",
        metavar="TEXT",
        help="System prompt.",
        show_default="the chat template's own",
        rich_help_panel=INPUT,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        metavar="MODEL",
        autocompletion=complete_model,
        help="Directory, .gguf file, alias or hub id.",
        show_default="the configured one, a recommended one that fits, the embedded one",
        rich_help_panel=MODEL,
    ),
]
OfflineOption = Annotated[
    bool,
    typer.Option(
        "--offline/--no-offline",
        help="Never use the network, as with HF_HUB_OFFLINE=1.",
        rich_help_panel=MODEL,
    ),
]
DeviceOption = Annotated[
    Literal["auto", "cpu", "gpu"],
    typer.Option(help="Where to compute. auto: gpu if there is one.", rich_help_panel=MODEL),
]
DtypeOption = Annotated[
    Literal["auto", "float16", "bfloat16", "float32", "stored"],
    typer.Option(
        help="Form to hold the weights in. auto: stored on a GPU, float32 on a CPU where that "
        "fits.",
        rich_help_panel=MODEL,
    ),
]
WindowOption = Annotated[
    str,
    typer.Option(
        "--max-kv-size",
        metavar="auto|none|TOKENS",
        help="Window in tokens; older ones are forgotten. auto: the trained context or what "
        "fits in memory; none: unbounded.",
        rich_help_panel=WINDOW,
    ),
]
StepOption = Annotated[
    int,
    typer.Option(metavar="TOKENS", help="Prompt tokens processed at once.", rich_help_panel=WINDOW),
]
PipelineOption = Annotated[
    bool,
    typer.Option(
        "--pipeline/--no-pipeline",
        help="Under mlx.launch: give each rank some of the layers, instead of a part of each.",
        rich_help_panel=MODEL,
    ),
]
PrefixCacheOption = Annotated[
    bool,
    typer.Option(
        "--prefix-cache/--no-prefix-cache",
        help="Keep what long prompts begin with on the disk, so that it is read only once.",
        rich_help_panel=WINDOW,
    ),
]
PrefixCacheSizeOption = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        help="Most that is kept of them; what was used least lately goes first.",
        rich_help_panel=WINDOW,
    ),
]
TempOption = Annotated[
    float | None,
    typer.Option(
        "--temp",
        help="Temperature, no unit; 0 is greedy.",
        show_default=str(DEFAULT.temp),
        rich_help_panel=SAMPLING,
    ),
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        help="Least likely tokens beyond this probability are left out; 1 is off.",
        show_default=str(DEFAULT.top_p),
        rich_help_panel=SAMPLING,
    ),
]
TopKOption = Annotated[
    int | None,
    typer.Option(
        metavar="TOKENS",
        help="Only this many likeliest tokens; 0 is off.",
        show_default=str(DEFAULT.top_k),
        rich_help_panel=SAMPLING,
    ),
]
MinPOption = Annotated[
    float | None,
    typer.Option(
        help="Tokens below this share of the likeliest's probability are left out; 0 is off.",
        show_default=str(DEFAULT.min_p),
        rich_help_panel=SAMPLING,
    ),
]
PenaltyOption = Annotated[
    float | None,
    typer.Option(
        help="Divides the logits of the latest 20 tokens; 1 is off.",
        show_default=str(DEFAULT.repetition_penalty),
        rich_help_panel=SAMPLING,
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(
        help="Whole number that fixes the sampling.",
        show_default="random, told by --json",
        rich_help_panel=SAMPLING,
    ),
]
StopOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT",
        help="End before this text; repeatable.",
        show_default="none",
        rich_help_panel=END,
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json/--no-json", help="Write JSON Lines instead of text.", rich_help_panel=OUTPUT
    ),
]
ThinkOption = Annotated[
    Literal["on", "off", "hide"] | None,
    typer.Option(
        metavar="on|off|hide",
        help="A model's thoughts: shown, turned off, or not shown.",
        show_default="as the template has them, shown",
        rich_help_panel=OUTPUT,
    ),
]
TemplateArgOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Variable of the chat template, such as reasoning_effort=high; repeatable.",
        show_default="none",
        rich_help_panel=INPUT,
    ),
]
QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet/--no-quiet",
        "-q",
        help="No progress, warnings or stats on stderr.",
        rich_help_panel=OUTPUT,
    ),
]


def given_names(context: typer.Context) -> frozenset[str]:
    """Names of the parameters that are on the command line, and no defaults of any kind."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(
        name
        for name, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    )
