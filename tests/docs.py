"""The README, the manual and the shell commands in them, for the tests that run or parse them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from markdown_it import MarkdownIt

from mlxchat import cli

ROOT = Path(__file__).parent.parent
PROGRAM: Any = typer.main.get_command(cli.app)
README = ROOT / "README.md"
MANUAL = ROOT / "mlxchat" / "manual"
PAGES = [README, *sorted(MANUAL.glob("*.md"))]

# Arrows, lines and boxes: no command contains them.
DRAWN = re.compile(r"[←-⇿─-◿]")
QUOTED_OR_COMMENT = re.compile(
    r"""("(?:\\.|[^"\\])*" | '[^']*' | \\.) | (?<!\S)\#[ ]*([^\n]*)""", re.DOTALL | re.VERBOSE
)
CONTINUED = re.compile(r"\s*\\\n\s*")


def text() -> str:
    """All pages."""
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def commands() -> Iterator[str]:
    """The lines for a shell, without comments: of blocks marked `sh` or unmarked, but drawings."""
    for token in MarkdownIt().parse(text()):
        is_fence = token.type == "fence" and token.info.strip() in ("", "sh", "bash", "shell")
        is_shell = token.type == "code_block" or is_fence
        bare = QUOTED_OR_COMMENT.sub(lambda match: match[1] or "", token.content)
        if is_shell and not DRAWN.search(bare):
            lines = CONTINUED.sub(" ", bare).splitlines()
            yield from (line.strip() for line in lines if line.strip())


def called(line: str) -> Iterator[list[str]]:
    """The words after each `mlxchat` in a line of shell."""
    for call in re.findall(r"\bmlxchat\b((?:\s+(?:\"[^\"]*\"|'[^']*'|[^\s|&<>()]+))*)", line):
        yield shlex.split(call)


def parse(words: list[str]) -> None:
    """Raise a usage error if the program does not understand the words."""
    # These show something and exit while they are parsed.
    if {*words} & {"--version", "-V", "--help", "--help-all", "--install-completion"}:
        return
    context = PROGRAM.make_context("mlxchat", list(words))
    while arguments := [*context._protected_args, *context.args]:
        name, command, rest = context.command.resolve_command(context, arguments)
        context = command.make_context(name, rest, parent=context)
