"""`mlxchat doctor`: checks the installation and suggests fixes."""

import sys
from typing import Annotated

import typer

from mlxchat.cli.options import Json
from mlxchat.errors import ExitStatus
from mlxchat.terminal.table import format_finding, format_table, write, write_json_lines


def doctor(
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
    for each in examine(offline=offline):
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
