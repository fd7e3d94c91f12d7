"""`mlxchat chat`, and `mlxchat` alone: a conversation that goes on for ever."""

from typing import Annotated, Literal

import typer

from mlxchat import platform
from mlxchat.cli.completion import complete_session
from mlxchat.cli.options import (
    END,
    OUTPUT,
    SESSION,
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
    TopKOption,
    TopPOption,
    WindowOption,
    given_names,
)
from mlxchat.cli.version import VersionOption
from mlxchat.settings import (
    DEFAULT_PREFILL_STEP_SIZE,
    DEFAULT_PREFIX_CACHE_SIZE,
    GenerationSettings,
    Roll,
)

EPILOG = """\
Examples:
  mlxchat --max-kv-size 512
  mlxchat -c
  mlxchat chat --session holidays -s "You answer in one sentence."
  mlxchat chat --temp 0 --stats < turns.txt

In the chat, /help lists its commands; Ctrl-C stops a reply, Ctrl-D leaves.

Environment and files:
  Every option can be configured: --max-kv-size as the variable
  MLXCHAT_CHAT_MAX_KV_SIZE, or by `mlxchat config set chat.max-kv-size`.
  `mlxchat config show chat` tells what is in effect. Chats are saved as
  sessions: `mlxchat session list`.

Exit status: 0 done, 1 failed, 2 makes no sense, 130, 143 and 129 ended by
Ctrl-C, SIGTERM and SIGHUP, 141 nobody reads on.
"""


def chat(
    context: typer.Context,
    system: SystemOption = None,
    latest: Annotated[
        bool,
        typer.Option(
            "-c", "--continue", help="Go on with the last session.", rich_help_panel=SESSION
        ),
    ] = False,
    session: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=complete_session,
            help="Go on with a session, or begin one of that name.",
            show_default="a new one, named after the time",
            rich_help_panel=SESSION,
        ),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact/--no-exact",
            help="Fail where what the model held cannot be restored to the bit, instead of "
            "reading the transcript again.",
            rich_help_panel=SESSION,
        ),
    ] = False,
    save: Annotated[
        bool,
        typer.Option(
            "--save/--no-save",
            help="Save the chat as it goes; --no-save leaves nothing on the disk.",
            rich_help_panel=SESSION,
        ),
    ] = True,
    template_arg: TemplateArgOption = None,
    model: ModelOption = None,
    offline: OfflineOption = False,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    pipeline: PipelineOption = False,
    max_kv_size: WindowOption = "auto",
    roll: Annotated[
        Roll,
        typer.Option(
            help="What happens when the window is full. shift: the oldest turns are evicted in "
            "place; refill: they are dropped and the rest is read again; stop: nothing is "
            "forgotten and no more is said.",
            rich_help_panel=WINDOW,
        ),
    ] = Roll.SHIFT,
    keep: Annotated[
        int,
        typer.Option(
            metavar="TOKENS",
            help="First tokens, never forgotten, where the system prompt and what the template "
            "puts before the first message are fewer.",
            rich_help_panel=WINDOW,
        ),
    ] = 0,
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
            help="Most tokens of a reply; -1: no limit.",
            rich_help_panel=END,
        ),
    ] = GenerationSettings().max_tokens,
    stop: StopOption = None,
    think: Annotated[
        Literal["on", "off", "hide"],
        typer.Option(
            help="Reasoning, where the model has it: shown dim, turned off, or not shown.",
            rich_help_panel=OUTPUT,
        ),
    ] = "on",
    plain: Annotated[
        bool,
        typer.Option(
            "--plain/--no-plain",
            help="Replies as they are, not rendered as Markdown.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    json_events: JsonOption = False,
    quiet: QuietOption = False,
    stats: Annotated[
        bool | None,
        typer.Option(
            "--stats/--no-stats",
            help="A line of figures on stderr after each reply.",
            show_default="off",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    version: VersionOption = False,
) -> None:
    """Chat in the terminal; or, with a pipe, answer one turn a line.

    A line of a pipe may be JSON with role ("user" or "system") and content.
    """
    if platform.launched_rank() == 0 and platform.stdin_never_ends() and not json_events:
        from mlxchat.terminal.own_terminal import has_terminal_elsewhere, run_again_in_terminal

        if has_terminal_elsewhere():
            raise typer.Exit(run_again_in_terminal())
    # Here, after the parsing: what follows imports MLX.
    from mlxchat.app.chat import ChatOptions
    from mlxchat.cli.chat_run import ChatRequest
    from mlxchat.cli.chat_run import run as run_chat
    from mlxchat.cli.setup import setup_of
    from mlxchat.text.template_args import parse_template_args

    given = given_names(context)
    options = ChatOptions(
        setup=setup_of(context.params),
        system=system,
        roll=roll,
        generation=GenerationSettings(
            max_tokens=max_tokens, stop=tuple(stop or ()), logprobs=0 if json_events else None
        ),
        think=think != "off",
        template_args=parse_template_args(template_arg or (), "--template-arg"),
        exact=exact,
        chosen=given | ({"template_args"} if "template_arg" in given else set()),
    )
    request = ChatRequest(
        options=options,
        latest=latest,
        session=session,
        save=save,
        think=think,
        plain=plain,
        json_events=json_events,
        stats=bool(stats),
        quiet=quiet,
    )
    raise typer.Exit(run_chat(request))
