"""`mlxchat generate`: reads a pipe, writes a pipe."""

import os
from typing import Annotated

import typer

from mlxchat.cli.options import (
    END,
    INPUT,
    OUTPUT,
    WINDOW,
    DeviceOption,
    DtypeOption,
    JsonOption,
    MinPOption,
    ModelOption,
    OfflineOption,
    PenaltyOption,
    QuietOption,
    SeedOption,
    StepOption,
    StopOption,
    SystemOption,
    TempOption,
    TopKOption,
    TopPOption,
    WindowOption,
)
from mlxchat.cli.version import VersionOption
from mlxchat.settings import DEFAULT_KEEP, DEFAULT_PREFILL_STEP_SIZE, GenerationSettings


def generate(
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
    system: SystemOption = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw/--no-raw",
            help="Continue the text itself, without the chat template.",
            rich_help_panel=INPUT,
        ),
    ] = False,
    model: ModelOption = None,
    offline: OfflineOption = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
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
    """Generate text after a prompt, documents, or both: reads a pipe, writes a pipe.

    Examples:

        cat report.txt | mlxchat generate "Summarize this in three sentences."

        mlxchat generate -f a.md -f b.md -n 300 "What do these two disagree on?"

        mlxchat generate --raw --ignore-eos --max-kv-size 512 "Once upon a time"
    """
    # Here, behind the parsing: what follows imports MLX.
    from mlxchat.cli.run import Request, run
    from mlxchat.cli.setup import Setup

    setup = Setup(
        model=model,
        offline=offline,
        device=device,
        dtype=dtype,
        window=max_kv_size,
        keep=keep,
        prefill_step_size=prefill_step_size,
        sampling={
            "temp": temp,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
        },
        seed=int.from_bytes(os.urandom(4)) if seed is None else seed,
        quiet=quiet,
    )
    request = Request(
        setup=setup,
        prompt=prompt,
        files=tuple(file or ()),
        system=system,
        raw=raw,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        json_events=json_events,
        logprobs=logprobs,
        stats=stats,
    )
    raise typer.Exit(run(request))
