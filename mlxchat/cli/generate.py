"""`mlxchat generate`: reads a pipe, writes a pipe."""

from typing import Annotated, Any

import typer

from mlxchat.cli.options import (
    END,
    INPUT,
    OUTPUT,
    OVERNIGHT,
    WINDOW,
    DeviceOption,
    DtypeOption,
    JsonOption,
    MinPOption,
    ModelOption,
    OfflineOption,
    PenaltyOption,
    PipelineOption,
    PrefixCacheOption,
    PrefixCacheSizeOption,
    QuietOption,
    SeedOption,
    StepOption,
    StopOption,
    SystemOption,
    TemplateArgOption,
    TempOption,
    ThinkOption,
    TopKOption,
    TopPOption,
    WindowOption,
    given_names,
)
from mlxchat.cli.version import VersionOption
from mlxchat.errors import UsageError
from mlxchat.settings import (
    DEFAULT_CHECKPOINT_EVERY,
    DEFAULT_KEEP,
    DEFAULT_PREFILL_STEP_SIZE,
    DEFAULT_PREFIX_CACHE_SIZE,
    GenerationSettings,
    OnLoop,
)

EPILOG = """\
Examples:
  cat report.txt | mlxchat generate "Summarize this in three sentences."
  mlxchat generate -f a.md -f b.md -n 300 "What do these two disagree on?"
  mlxchat generate --block a.md --block b.md "Which of the two is newer?"
  mlxchat generate --raw --ignore-eos --max-kv-size 512 "Once upon a time"
  mlxchat generate --ignore-eos --checkpoint night --until 07:00 "A saga."
  mlxchat generate --resume night

Environment and files:
  Every option but PROMPT can be configured: --max-tokens as the variable
  MLXCHAT_GENERATE_MAX_TOKENS, or by `mlxchat config set generate.max-tokens`.
  `mlxchat config show generate` tells what is in effect.

Exit status: 0 done, 1 failed, 2 makes no sense, 3 ended by --on-loop stop,
130, 143 and 129 ended by Ctrl-C, SIGTERM and SIGHUP, 141 nobody reads on.
"""


def generate(
    context: typer.Context,
    prompt: Annotated[
        str | None, typer.Argument(help="Instruction; it goes behind all documents.")
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="Document to read, - for stdin; repeatable.",
            show_default="stdin if it is piped",
            rich_help_panel=INPUT,
        ),
    ] = None,
    block: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Document to read once and keep: joined to any prompt, beside any others, later. "
            "Nearly, not exactly, what -f gives. Repeatable.",
            show_default="none",
            rich_help_panel=INPUT,
        ),
    ] = None,
    system: SystemOption = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw/--no-raw",
            help="Continue the text itself, without the chat template.",
            rich_help_panel=INPUT,
        ),
    ] = False,
    template_arg: TemplateArgOption = None,
    model: ModelOption = None,
    offline: OfflineOption = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    pipeline: PipelineOption = False,
    max_kv_size: WindowOption = "auto",
    keep: Annotated[
        int,
        typer.Option(
            metavar="TOKENS",
            help="First tokens, never forgotten.",
            rich_help_panel=WINDOW,
        ),
    ] = DEFAULT_KEEP,
    prefill_step_size: StepOption = DEFAULT_PREFILL_STEP_SIZE,
    prefix_cache: PrefixCacheOption = True,
    prefix_cache_size: PrefixCacheSizeOption = DEFAULT_PREFIX_CACHE_SIZE,
    temp: TempOption = None,
    top_p: TopPOption = None,
    top_k: TopKOption = None,
    min_p: MinPOption = None,
    repetition_penalty: PenaltyOption = None,
    seed: SeedOption = None,
    max_tokens: Annotated[
        int,
        typer.Option(
            "-n",
            "--max-tokens",
            metavar="TOKENS",
            help="Most tokens to generate; -1: no limit.",
            rich_help_panel=END,
        ),
    ] = GenerationSettings().max_tokens,
    stop: StopOption = None,
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos/--no-ignore-eos",
            help="Go on past the model's end tokens.",
            rich_help_panel=END,
        ),
    ] = False,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="End at a local time: 07:00, or 2026-11-22 07:00.",
            show_default="none",
            rich_help_panel=END,
        ),
    ] = None,
    lasting: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="DURATION",
            help="End after so long: 8h, 1h30m.",
            show_default="none",
            rich_help_panel=END,
        ),
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="End before the text is larger: 100MB.",
            show_default="none",
            rich_help_panel=END,
        ),
    ] = None,
    on_loop: Annotated[
        OnLoop,
        typer.Option(
            help="What happens when the text repeats itself. warn: it is said; stop: it ends, with "
            "exit status 3; nudge: the temperature is raised for a while.",
            rich_help_panel=END,
        ),
    ] = OnLoop.WARN,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the text to a new file.",
            show_default="stdout; with --checkpoint, output.txt in its directory",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    rotate: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Go on in FILE.001, FILE.002 … when the file is as large as this: 50MB.",
            show_default="never",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Append a JSON line of figures every minute.",
            show_default="none",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Keep what is needed to go on after a crash in a new directory.",
            show_default="none",
            rich_help_panel=OVERNIGHT,
        ),
    ] = None,
    checkpoint_every: Annotated[
        int,
        typer.Option(
            metavar="TOKENS", help="How often the checkpoint is renewed.", rich_help_panel=OVERNIGHT
        ),
    ] = DEFAULT_CHECKPOINT_EVERY,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Go on with a checkpoint, with all the options that it was begun with.",
            show_default="none",
            rich_help_panel=OVERNIGHT,
        ),
    ] = None,
    think: ThinkOption = None,
    json_events: JsonOption = False,
    logprobs: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="With --json: the K likeliest tokens of each step, with natural "
            "log-probabilities.",
            show_default="none",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    quiet: QuietOption = False,
    stats: Annotated[
        bool | None,
        typer.Option(
            "--stats/--no-stats",
            help="A closing line of figures on stderr.",
            show_default="on a terminal",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    version: VersionOption = False,
) -> None:
    """Generate text after a prompt, documents, or both: reads a pipe, writes a pipe."""
    # Here, after the parsing: what follows imports MLX.
    from mlxchat.app.request import Overnight, Request
    from mlxchat.cli.overnight import OVERNIGHT_OPTIONS, overnight_values
    from mlxchat.cli.run import Shown, resume_run, run
    from mlxchat.cli.setup import setup_of
    from mlxchat.text.template_args import parse_template_args

    if resume is not None:
        anew = _given_anew(context)
        shown = {name: anew.pop(name) for name in ("quiet", "stats") if name in anew}
        raise typer.Exit(resume_run(resume, shown, **overnight_values(anew)))
    if raw:
        # What is configured is meant for the chat template.
        given = given_names(context)
        system = system if "system" in given else None
        think = think if "think" in given else None
        template_arg = template_arg if "template_arg" in given else None
    long = {name: context.params[name] for name in OVERNIGHT_OPTIONS}
    request = Request(
        setup=setup_of(context.params),
        prompt=prompt,
        files=tuple(file or ()),
        blocks=tuple(block or ()),
        system=system,
        raw=raw,
        think=think,
        template_args=parse_template_args(template_arg or (), "--template-arg"),
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        events=json_events,
        logprobs=logprobs,
        overnight=Overnight(**overnight_values(long)),
        kept={"quiet": quiet, "stats": stats},
    )
    raise typer.Exit(run(request, Shown(quiet, stats)))


# What may be asked otherwise when a run goes on: nothing that its text so far depends on.
GIVEN_ANEW = {
    *("until", "lasting", "max_bytes", "max_tokens", "on_loop", "metrics"),
    *("offline", "device", "quiet", "stats"),
}


def _given_anew(context: typer.Context) -> dict[str, Any]:
    """The options beside --resume, by name. Raises UsageError for those that the run has."""
    given = {name: context.params[name] for name in given_names(context) - {"resume"}}
    for name in given.keys() - GIVEN_ANEW:
        raise UsageError(
            f"--resume goes on with what the run was begun with: leave {_option_of(context, name)} "
            "out"
        )
    return given


def _option_of(context: typer.Context, name: str) -> str:
    """How a parameter is written on the command line."""
    parameter = next(each for each in context.command.params if each.name == name)
    return max(parameter.opts, key=len) if parameter.opts[0].startswith("-") else "the prompt"
