"""Options that several commands have, and the question that --yes answers."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Write JSON Lines instead of text")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask")]


def agrees(question: str, *, yes: bool) -> bool:
    """Ask, unless `yes` answers for the user. Raises UsageError if this is not a terminal."""
    from mlxchat.errors import UsageError
    from mlxchat.terminal import visible
    from mlxchat.terminal.observing import terminal_question

    if yes:
        return True
    if terminal_question() is None:
        raise UsageError("not a terminal: pass --yes to confirm")
    return typer.confirm(visible(question), err=True)
