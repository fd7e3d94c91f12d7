"""`mlxchat help`: the pages of the manual, one of them, or the options of a command."""

from typing import Annotated, Any

import typer

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
    root: Any = context.find_root().command
    return [*((name, summary(name)) for name in PAGES), *root.commands]


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
    root: Any = context.find_root().command
    words = topic or []
    if not words:
        pages = [f"  {name:<17}{summary(name)}\n" for name in PAGES]
        more = "`mlxchat help PAGE` shows a page, `mlxchat COMMAND --help` options."
        write(f"Pages:\n{''.join(pages)}\n{more}\n")
    elif len(words) == 1 and words[0].lower() in PAGES:
        from mlxchat.terminal.table import show_page

        show_page(read_page(words[0].lower()))
    elif words[0] in root.commands:
        root.main([*words, "--help"], prog_name="mlxchat", standalone_mode=False)
    else:
        raise UsageError(f"no page or command named {' '.join(words)!r}; see `mlxchat help`")
