"""Shows long texts: pages of the manual as rich renders Markdown, all in $PAGER, or less."""

import io
import os
import pydoc
import re
import shutil
import sys

from mlxchat.terminal import is_dumb
from mlxchat.terminal.output import Stdout
from mlxchat.terminal.worker import ctrl_c_ignored

MAX_COLUMNS = 100

PAGE_LINK = re.compile(r"(?<!!)\[([^]]+)\]\((\w+)\.md(?:#[\w-]+)?\)")
CHART = re.compile(r"!\[([^]]*)\]\([^)]+\)")


def show_page(markdown: str) -> None:
    """Show a page of the manual, in a pipe as it is written."""
    if sys.stdout is None or not sys.stdout.isatty():
        Stdout().write(markdown)
    else:
        page(render_page(markdown, min(shutil.get_terminal_size().columns, MAX_COLUMNS)))


def render_page(markdown: str, columns: int) -> str:
    """The page for a terminal. A link to another page names the command that shows it."""
    from rich.console import Console
    from rich.markdown import Markdown

    markdown = PAGE_LINK.sub(r"\1 (help \2)", CHART.sub(r"(chart: \1)", markdown))
    plain = is_dumb() or bool(os.environ.get("NO_COLOR"))
    console = Console(file=io.StringIO(), width=columns, force_terminal=not plain)
    console.print(Markdown(markdown, hyperlinks=False, code_theme="ansi_dark"))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def page(text: str) -> None:
    # Quit if the text fits the screen, leave it there, and pass colors through.
    os.environ["LESS"] = f"{os.environ.get('LESS') or '-FX'} -R"
    with ctrl_c_ignored():
        pydoc.pager(text)
