"""`mlxchat help`: the pages of the manual, one of them, or the options of a command."""

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from mlxchat.cli.group import help_page
from mlxchat.errors import UsageError
from mlxchat.manual import PAGES, read_page, summary
from mlxchat.terminal.table import write

EPILOG = """\
Examples:
  mlxchat help
  mlxchat help window
  mlxchat help session rm
"""


def complete_topic(context: typer.Context, incomplete: str) -> list[str | tuple[str, str]]:
    return [*((name, summary(name)) for name in PAGES), *_commands(context)]


Topic = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PAGE", help="Page of the manual, or command", autocompletion=complete_topic
    ),
]


def help_(context: typer.Context, topic: Topic = None) -> None:
    """Show a page of the manual, or list all pages.

    If there is no page for a command, its options are shown. Pages open in $PAGER, or less.
    """
    words = topic or []
    if not words:
        write(_list())
    elif len(words) == 1 and words[0].lower() in PAGES:
        from mlxchat.terminal.manual_page import show_page

        show_page(read_page(words[0].lower()))
    else:
        _show_command(context, words)


def _list() -> str:
    pages = [f"  {name:<17}{summary(name)}\n" for name in PAGES]
    more = "`mlxchat help PAGE` shows a page, `mlxchat COMMAND --help` options."
    return f"Pages:\n{''.join(pages)}\n{more}\n"


def _show_command(context: typer.Context, words: list[str]) -> None:
    parent: Any = context.find_root()
    command: Any = parent.command
    for at, word in enumerate(words):
        known = getattr(command, "commands", {})
        if word not in known:
            raise _unknown(words[:at], word, known if at else [*PAGES, *_commands(context)])
        command = known[word]
        parent = command.make_context(word, [], parent=parent, resilient_parsing=True)
    write(help_page(parent, everything=False))


def _unknown(group: list[str], word: str, known: Iterable[str]) -> UsageError:
    from difflib import get_close_matches

    wanted = " ".join([*group, word])
    near = get_close_matches(word.lower(), known, n=1)
    if near:
        hint = f"did you mean {' '.join([*group, *near])}?"
    else:
        hint = f"see `{' '.join(['mlxchat help', *group])}`"
    return UsageError(f"no page or command named {wanted!r}; {hint}")


def _commands(context: typer.Context) -> list[str]:
    root: Any = context.find_root().command
    return [name for name in root.commands if name != "help"]
