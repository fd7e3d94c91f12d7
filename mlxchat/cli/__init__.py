"""The command line: parse, call, render, exit status. The only importer of Typer.

Commands import what they need when they run, so that help appears immediately. What they do is for
`app`, what they show for `terminal`. Read `options` first: how a declared option becomes Typer's,
and how it is configured; then `generate`, as an example of a command.
"""

import os
import sys
import time
from contextlib import redirect_stderr, suppress
from io import StringIO
from itertools import takewhile
from typing import Annotated, Any, NoReturn

import typer
from typer.exceptions import TyperException

from mlxchat import platform
from mlxchat.cli import chat, generate, group, machine
from mlxchat.cli.config import config_app
from mlxchat.cli.group import HELP_NAMES, App, Group
from mlxchat.cli.models import models_app
from mlxchat.cli.options import COMPLETING, Configured, join_options
from mlxchat.cli.sessions import session_app
from mlxchat.cli.usage_errors import check_question, explain
from mlxchat.errors import (
    ClosedPipe,
    DeviceError,
    ExitStatus,
    MlxchatError,
    RanksError,
    device_failures,
)
from mlxchat.paths import __version__
from mlxchat.terminal import Terminated
from mlxchat.terminal.output import show_error
from mlxchat.terminal.table import write

# Commands that run a model on all ranks; the others run only on rank 0.
TOGETHER = {"bench", "chat", "generate"}
FIRST_SHOWS_S = 2.0

EPILOG = """\
Examples:
  mlxchat
  mlxchat "Why is the sky blue?"
  cat report.txt | mlxchat "Summarize this in three sentences."
  mlxchat -c
  mlxchat models list

Variables, files and exit statuses: mlxchat help files
"""


def _show_version(context: typer.Context, wanted: bool) -> None:
    # A shell that completes a line must not run it.
    if not wanted or context.resilient_parsing:
        return
    import importlib.metadata

    platform.require_supported_system()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("mlx", "mlx-lm"))
    device = f"backend {platform.backend_name()}, device {platform.device_name()}"
    write(f"mlxchat {__version__} ({versions})\n{device}\nBLAS {platform.blas_name()}\n")
    raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option(
        *("-V", "--version"),
        callback=_show_version,
        is_eager=True,
        help="Show the version, the device and the BLAS",
    ),
]


class ChatByDefault(Group):
    """Without a command, the arguments are those of `mlxchat chat`."""

    def described(self, ctx: Any) -> list[Any]:
        """The group's own; before them those of chat, except for its --help."""
        chat: Any = self.commands["chat"]
        return [*chat.described(ctx)[:-1], *super().described(ctx)]

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        chats = self.commands["chat"].shell_complete(ctx, incomplete)
        return [*super().shell_complete(ctx, incomplete), *chats]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self._is_for_chat(ctx, args):
            ctx.meta[chat.IMPLIED] = True
            if args and not args[0].startswith("-"):
                # A mistyped command gets a hint even if its options are unknown to chat.
                words = [*takewhile(lambda each: not each.startswith("-"), args)]
                check_question(words, self, has_subject=True)
            args = ["chat", *args]
        return super().parse_args(ctx, args)

    def _is_for_chat(self, ctx: Any, args: list[str]) -> bool:
        if args and args[0].startswith("-"):
            own = {*HELP_NAMES, *(name for each in self.params for name in each.opts)}
            return args[0] not in own
        # While a shell completes a line, the first word may still become a command.
        return not ctx.resilient_parsing and not (args and args[0] in self.commands)

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        formatter.write_usage(ctx.command_path, "[OPTIONS] [QUESTION]")
        formatter.write_usage(ctx.command_path, "COMMAND [OPTIONS] [ARGUMENTS]")


app = App(
    name="mlxchat",
    cls=ChatByDefault,
    help="Chat with a language model, or ask it one question.",
    pretty_exceptions_enable=False,
    epilog=EPILOG,
)
app.command(cls=Configured, epilog=chat.EPILOG)(chat.chat)
app.command(cls=Configured, epilog=generate.EPILOG)(generate.generate)
app.command(cls=Configured, epilog=generate.BATCH_EPILOG)(generate.batch)
app.add_typer(models_app, name="models")
app.add_typer(session_app, name="session")
app.add_typer(machine.cache_app, name="cache")
app.command(epilog=machine.EPILOG)(machine.bench)
app.add_typer(config_app, name="config")
app.command(epilog="Example: mlxchat doctor --offline")(machine.doctor)
app.command("help", epilog=group.EPILOG, context_settings=group.DASHES)(group.help_)


@app.callback()
def set_up(context: typer.Context, show_version: VersionOption = False) -> None:
    if platform.launched_rank() and context.invoked_subcommand not in TOGETHER:
        raise typer.Exit(ExitStatus.OK)


def main() -> None:
    """Run the program and exit. Every error a user can cause is one line and an exit status."""
    platform.occupy_standard_streams()
    if os.environ.get(COMPLETING):
        # Wrapped help would count as several answers, an error as one.
        os.environ["COLUMNS"] = "10000"
        with redirect_stderr(StringIO()), suppress(Exception, KeyboardInterrupt):
            if os.environ[COMPLETING] == "complete_bash":
                join_options()
            app(prog_name="mlxchat")
        sys.exit(ExitStatus.FAILURE)
    status = _status()
    if status and platform.launched_rank():
        # mlx.launch ends the others at once: the first one has to show the error.
        time.sleep(FIRST_SHOWS_S)
    _exit(status)


def _exit(status: int) -> NoReturn:
    """Exit while MLX's threads may still load a model or wait for a lost rank: they must not run
    during the interpreter's shutdown. Our own files are closed by now."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    platform.exit_now(status)


def _status() -> int:
    leads = not platform.launched_rank()
    try:
        with device_failures():
            return app(prog_name="mlxchat", standalone_mode=False) or ExitStatus.OK
    except MlxchatError as error:
        # An error that all ranks find is shown once.
        own = isinstance(error, RanksError | DeviceError)
        if not isinstance(error, ClosedPipe) and (leads or own):
            show_error(error)
        return error.exit_status
    except TyperException as error:
        if leads:
            show_error(explain(error, sys.argv[1:], typer.main.get_command(app)))
        return error.exit_code
    except OSError as error:
        # Ours are MlxchatErrors; this is Typer failing to write help or a shell's file.
        show_error(f"cannot write {error.filename or 'to standard output'}: {error.strerror}")
        return ExitStatus.FAILURE
    except (KeyboardInterrupt, typer.Abort, SystemExit) as ended:
        # Typer exits when completion is installed, and when the reader of its help closes stdout.
        left = ExitStatus.BROKEN_PIPE if getattr(ended, "code", 0) else ExitStatus.OK
        return left if isinstance(ended, SystemExit) else ExitStatus.INTERRUPTED
    except Terminated as terminated:
        return terminated.status
