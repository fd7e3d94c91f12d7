"""`mlxchat chat`, and `mlxchat` alone: a conversation without end."""

from typing import Any

import typer

from mlxchat import platform
from mlxchat.cli.options import COMMANDS, ChatShown, build, given_names, with_options
from mlxchat.cli.version import VersionOption

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
  `mlxchat config show chat` shows what is in effect. Chats are saved as
  sessions: `mlxchat session list`.

Exit status: 0 done, 1 failed, 2 usage error, 130, 143 and 129 ended by
Ctrl-C, SIGTERM and SIGHUP, 141 output closed.
"""


@with_options(COMMANDS["chat"])
def chat(context: typer.Context, version: VersionOption = False, **values: Any) -> None:
    """Chat in the terminal; or, with a pipe, answer one turn a line.

    A line of a pipe may be JSON with role ("user" or "system") and content.
    """
    if platform.launched_rank() == 0 and platform.stdin_stays_open() and not values["events"]:
        from mlxchat.terminal.own_terminal import has_terminal_elsewhere, run_again_in_terminal

        if has_terminal_elsewhere():
            raise typer.Exit(run_again_in_terminal())
    # Here, after the parsing: what follows imports MLX.
    from mlxchat.cli.chat_run import run
    from mlxchat.cli.setup import setup_of
    from mlxchat.request import ChatOptions
    from mlxchat.settings import GenerationSettings

    generation = build(GenerationSettings, values, logprobs=0 if values["events"] else None)
    chosen = given_names(context)
    options = build(
        ChatOptions, values, setup=setup_of(values), generation=generation, chosen=chosen
    )
    raise typer.Exit(run(options, build(ChatShown, values)))
