"""The command line: parse, call, render, exit status. The only importer of Typer.

Commands import what they need when they run, so that help is there at once.
"""

import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

import typer
from typer.exceptions import TyperException

from mlxchat import platform
from mlxchat.cli import completion
from mlxchat.cli.bench import bench_app
from mlxchat.cli.chat import EPILOG as CHAT_EPILOG
from mlxchat.cli.chat import chat
from mlxchat.cli.config import config_app
from mlxchat.cli.configured import FROM_PYDANTIC, Configured
from mlxchat.cli.doctor import doctor
from mlxchat.cli.generate import EPILOG as GENERATE_EPILOG
from mlxchat.cli.generate import generate
from mlxchat.cli.group import Group
from mlxchat.cli.help import EPILOG as HELP_EPILOG
from mlxchat.cli.help import help_
from mlxchat.cli.models import models_app
from mlxchat.cli.prefix_commands import cache_app
from mlxchat.cli.sessions import session_app
from mlxchat.cli.version import VersionOption
from mlxchat.errors import ClosedPipe, DeviceError, ExitStatus, MlxchatError, RanksError
from mlxchat.failures import device_failures
from mlxchat.terminal.messages import show_error
from mlxchat.terminal.signals import Terminated, terminate_by_exception

# Commands that run a model on all ranks; the others run on rank 0 alone.
TOGETHER = {"bench", "chat", "generate"}

GROUP_OPTIONS = {"-h", "--help", "--version", "--install-completion", "--show-completion"}

EPILOG = """\
Examples:
  mlxchat
  mlxchat -c
  cat README.md | mlxchat generate -n 100 "What is this program for?"
  mlxchat doctor

Environment:
  MLXCHAT_MODEL                  the model where -m is not given
  MLXCHAT_CHAT_TEMP, …           any option of chat, by its long name
  MLXCHAT_GENERATE_TEMP, …       any option of generate
  MLXCHAT_NO_PROJECT             if set, no project's file is read
  HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE
                                 the hub: its cache, access, place; no network
  VISUAL, EDITOR, NO_COLOR       as everywhere

Files:
  config.toml                    what you have configured: mlxchat config path
  .mlxchat.toml                  the same of a project: mlxchat config show

Exit status:
  0    done
  1    failed: one line on stderr says what, and what to do
  2    the command line, a variable or a file of configuration makes no sense
  3    the text went round in circles, and --on-loop stop was given
  130, 143, 129, 141
       ended by Ctrl-C, SIGTERM, SIGHUP; stdout was closed
"""


class ChatByDefault(Group):
    """`mlxchat`, and `mlxchat --max-kv-size 512`, are `mlxchat chat` with those options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Where a shell asks what may follow, nothing is not yet a chat.
        nothing_yet = not args and not ctx.resilient_parsing
        if nothing_yet or (args and args[0].startswith("-") and args[0] not in GROUP_OPTIONS):
            args = ["chat", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        found = super().shell_complete(ctx, incomplete)
        if not incomplete.startswith("-"):
            return found
        chat_command = self.commands["chat"]
        chat_context = chat_command.make_context("chat", [], parent=ctx, resilient_parsing=True)
        known = {item.value for item in found}
        options = chat_command.shell_complete(chat_context, incomplete)
        return [*found, *(item for item in options if item.value not in known)]


app = typer.Typer(
    name="mlxchat",
    cls=ChatByDefault,
    help="Chat and text generation in the terminal with MLX that never has to stop. Without a "
    "command: chat.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EPILOG,
)
app.command(cls=Configured, epilog=CHAT_EPILOG)(chat)
app.command(cls=Configured, epilog=GENERATE_EPILOG)(generate)
app.add_typer(models_app, name="models")
app.add_typer(session_app, name="session")
app.add_typer(cache_app, name="cache")
app.add_typer(bench_app, name="bench")
app.add_typer(config_app, name="config")
app.command(epilog="Example: mlxchat doctor --offline")(doctor)
app.command("help", epilog=HELP_EPILOG)(help_)


@app.callback()
def set_up(context: typer.Context, version: VersionOption = False) -> None:
    if platform.launched_rank() and context.invoked_subcommand not in TOGETHER:
        # Under mlx.launch, one is enough.
        raise typer.Exit(ExitStatus.OK)


def main() -> None:
    """Run the program and exit. Every error that a user can meet is one line and a status."""
    platform.occupy_standard_streams()
    if completion.asked():
        completion.answer(app)
        sys.exit(ExitStatus.FAILURE)
    if not platform.launched_rank():
        terminate_by_exception()
    sys.exit(_status())


def _leave_at_once(status: ExitStatus) -> NoReturn:
    """End where MLX's threads may still wait for a rank that is gone: they must not outlive what
    the interpreter takes down at its end. All of ours is closed by now."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


def _status() -> int:
    leads = not platform.launched_rank()
    try:
        with device_failures():
            return app(prog_name="mlxchat", standalone_mode=False) or ExitStatus.OK
    except MlxchatError as error:
        # What all ranks find wrong, one tells.
        own = isinstance(error, RanksError | DeviceError)
        if not isinstance(error, ClosedPipe) and (leads or own):
            show_error(error)
        if isinstance(error, RanksError):
            _leave_at_once(error.exit_status)
        return error.exit_status
    except TyperException as error:
        # A group without a command has shown its help, and has nothing to add.
        if leads and (message := error.format_message()):
            show_error(f"{message.replace(FROM_PYDANTIC, '')} (see mlxchat --help)")
        return error.exit_code
    except OSError as error:
        # Where ours can happen they are told apart; Typer cannot write a shell's file.
        show_error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return ExitStatus.FAILURE
    except (KeyboardInterrupt, typer.Abort):
        return ExitStatus.INTERRUPTED
    except Terminated as terminated:
        return terminated.status
