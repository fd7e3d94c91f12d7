"""The README, the manual and the shell commands in them, for the tests that run or parse them."""

import re
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parent.parent
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
    """The lines for a shell, without comments: of the blocks marked `sh` or not at all, unless they
    are drawings."""
    for token in MarkdownIt().parse(text()):
        is_shell = token.type == "code_block" or (
            token.type == "fence" and token.info.strip() in ("", "sh", "bash", "shell")
        )
        bare = QUOTED_OR_COMMENT.sub(lambda match: match[1] or "", token.content)
        if is_shell and not DRAWN.search(bare):
            lines = CONTINUED.sub(" ", bare).splitlines()
            yield from (line.strip() for line in lines if line.strip())
