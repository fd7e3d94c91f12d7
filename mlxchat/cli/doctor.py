"""`mlxchat doctor`: checks the installation and suggests fixes."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlxchat import paths
from mlxchat.cli.configured import check_file, checked
from mlxchat.cli.options import COMMANDS, Json
from mlxchat.config.file import read_user_config, variables_for
from mlxchat.errors import ConfigError, ExitStatus
from mlxchat.terminal.table import format_finding, format_table, write, write_json_lines

if TYPE_CHECKING:
    from mlxchat.doctor import Finding


def doctor(
    context: typer.Context,
    offline: Annotated[bool, typer.Option("--offline", help="Do not contact the Hub")] = False,
    as_json: Json = False,
) -> None:
    """Check the machine, caches, configuration and terminal, and suggest fixes.

    Each line is ok, a warning or a problem with its fix. In a pipe, the columns are separated by
    tabs: verdict, topic, finding, fix. Nothing is changed, and access tokens are never shown.
    """
    from mlxchat.doctor import Verdict, examine
    from mlxchat.terminal.output import Messages
    from mlxchat.units import count

    tally = dict.fromkeys(Verdict, 0)
    for each in examine(configuration=lambda: _configuration(context), offline=offline):
        tally[each.verdict] += 1
        cells = (str(each.verdict), each.topic, each.found, each.fix)
        if as_json:
            write_json_lines([dict(zip(("verdict", "topic", "found", "fix"), cells, strict=True))])
        elif sys.stdout.isatty():
            write(format_finding(*cells))
        else:
            write(format_table((), [[cell or "" for cell in cells]], for_terminal=False))
    problems, warnings = tally[Verdict.PROBLEM], tally[Verdict.WARNING]
    Messages().note(f"{count(problems, 'problem')}, {count(warnings, 'warning')}")
    raise typer.Exit(ExitStatus.FAILURE if problems else ExitStatus.OK)


def _configuration(context: typer.Context) -> Iterator["Finding"]:
    from mlxchat.doctor import Finding

    root: Any = context.find_root().command
    path = paths.config_file()
    try:
        check_file(read_user_config(), root, context)
        yield Finding(str(path) if path.exists() else f"none at {path}")
    except ConfigError as error:
        yield Finding(str(error), "mlxchat config edit", is_problem=True)
    try:
        for name in COMMANDS:
            checked(root.commands[name], variables_for(name), context)
    except ConfigError as error:
        fix = "unset the variable, or give it another value"
        yield Finding(str(error), fix, is_problem=True)
