"""`mlxchat generate`: reads a pipe, writes a pipe."""

import os
from typing import Annotated, Literal

import typer

from mlxchat.cli.version import VersionOption
from mlxchat.settings import DEFAULT_KEEP, DEFAULT_PREFILL_STEP_SIZE, GenerationSettings
from mlxchat.settings import SamplingSettings as Sampling

INPUT, WINDOW, SAMPLING, END, OUTPUT, MODEL = (
    "Input",
    "Window",
    "Sampling (defaults: the model's generation_config.json, else those given)",
    "When to end",
    "Output",
    "Model and machine",
)
DEFAULT = Sampling()


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
    system: Annotated[
        str | None,
        typer.Option(
            "-s",
            "--system",
            "--system-prompt",
            help="System prompt.",
            show_default="the chat template's own",
            rich_help_panel=INPUT,
        ),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw/--no-raw",
            help="Continue the text itself, without the chat template.",
            rich_help_panel=INPUT,
        ),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--model",
            help="Directory, .gguf file, alias or hub id.",
            show_default="$MLXCHAT_MODEL, the configuration file's, a recommended one that fits, "
            "the embedded one",
            rich_help_panel=MODEL,
        ),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline/--no-offline",
            help="Never use the network.",
            rich_help_panel=MODEL,
        ),
    ] = False,
    device: Annotated[
        Literal["auto", "cpu", "gpu"],
        typer.Option(help="Where to compute. auto: gpu if there is one.", rich_help_panel=MODEL),
    ] = "auto",
    dtype: Annotated[
        Literal["auto", "float16", "bfloat16", "float32", "stored"],
        typer.Option(
            help="Form to hold the weights in. auto: stored on a GPU, float32 on a CPU where "
            "that fits.",
            rich_help_panel=MODEL,
        ),
    ] = "auto",
    max_kv_size: Annotated[
        str,
        typer.Option(
            "--max-kv-size",
            metavar="auto|none|TOKENS",
            help="Window in tokens; older ones are forgotten. auto: the trained context or what "
            "fits in memory; none: unbounded.",
            rich_help_panel=WINDOW,
        ),
    ] = "auto",
    keep: Annotated[
        int,
        typer.Option(
            metavar="TOKENS",
            help="First tokens, never forgotten.",
            rich_help_panel=WINDOW,
        ),
    ] = DEFAULT_KEEP,
    prefill_step_size: Annotated[
        int,
        typer.Option(
            metavar="TOKENS",
            help="Prompt tokens processed at once.",
            rich_help_panel=WINDOW,
        ),
    ] = DEFAULT_PREFILL_STEP_SIZE,
    temp: Annotated[
        float | None,
        typer.Option(
            "--temp",
            help="Temperature, no unit; 0 is greedy.",
            show_default=str(DEFAULT.temp),
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Least likely tokens beyond this probability are left out; 1 is off.",
            show_default=str(DEFAULT.top_p),
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            help="Only this many likeliest tokens; 0 is off.",
            show_default=str(DEFAULT.top_k),
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(
            help="Tokens below this share of the likeliest's probability are left out; 0 is off.",
            show_default=str(DEFAULT.min_p),
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            help="Divides the logits of the latest 20 tokens; 1 is off.",
            show_default=str(DEFAULT.repetition_penalty),
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Whole number that fixes the sampling.",
            show_default="random, told by --json",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
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
    stop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="End before this text; repeatable.",
            show_default="none",
            rich_help_panel=END,
        ),
    ] = None,
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos/--no-ignore-eos",
            help="Go on past the model's end tokens.",
            rich_help_panel=END,
        ),
    ] = False,
    json_events: Annotated[
        bool,
        typer.Option(
            "--json/--no-json",
            help="Write JSON Lines instead of text.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
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
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet/--no-quiet",
            "-q",
            help="No progress, warnings or stats on stderr.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
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

    request = Request(
        prompt=prompt,
        files=tuple(file or ()),
        system=system,
        raw=raw,
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
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
        json_events=json_events,
        logprobs=logprobs,
        quiet=quiet,
        stats=stats,
    )
    raise typer.Exit(run(request))
