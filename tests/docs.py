"""The README, the manual and the shell commands in them, for the tests that run or parse them.

An indented block, or a fenced one marked `sh` or not at all, contains commands unless it is a
drawing. Running them is for the callers.
"""

import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
MANUAL = ROOT / "mlxchat" / "manual"
PAGES = [README, *sorted(MANUAL.glob("*.md"))]

SHELLS = ("", "sh", "bash", "shell")
CHAPTERS = ("h1", "h2")

# Arrows, lines and boxes: no command contains them.
DRAWN = re.compile(r"[←-⇿─-◿]")
QUOTED_OR_COMMENT = re.compile(
    r"""("(?:\\.|[^"\\])*" | '[^']*' | \\.) | (?<!\S)\#[ ]*([^\n]*)""", re.DOTALL | re.VERBOSE
)
CONTINUED = re.compile(r"\s*\\\n\s*")

# Words before a command, besides operators; a redirection comes before a file.
BEFORE_A_COMMAND = {"do", "then", "else", "elif", "if", "while", "until", "!", "{"}
SIGNS = set("();<>|&")
NO_COMMANDS = {"for", "case", "done", "fi", "esac", "}", ":", "cd", "exit", "sleep", "wait"}


@dataclass(frozen=True, slots=True)
class Command:
    """A line for the shell, with its comment. The page's lines count from 1."""

    text: str
    comment: str
    page: str
    chapter: str
    line: int

    def __str__(self) -> str:
        return f"{self.page}, line {self.line}: {self.text}"

    @property
    def words(self) -> list[str]:
        """Raises ValueError for an unclosed quotation."""
        try:
            return words(self.text)
        except ValueError as error:
            raise ValueError(f"{self}: {error}") from error

    @property
    def programs(self) -> list[str]:
        return list(programs(self.words))


def text() -> str:
    """All pages."""
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def read() -> list[Command]:
    """The commands of all pages, in order."""
    return [
        command
        for page in PAGES
        for command in commands(page.read_text(encoding="utf-8"), page.name)
    ]


def commands(markdown: str, page: str) -> Iterator[Command]:
    """The commands of one page, in order."""
    chapter = ""
    tokens = MarkdownIt().parse(markdown)
    for at, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag in CHAPTERS:
            chapter = tokens[at + 1].content
        is_fence = token.type == "fence"
        if (is_fence and token.info.strip() in SHELLS) or token.type == "code_block":
            assert token.map is not None
            if not _is_drawing(token.content):
                first_line = token.map[0] + is_fence + 1
                yield from _of_block(token.content, page, chapter, first_line)


def words(text: str) -> list[str]:
    """Split as by a shell; `|`, `;` and the like are words."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    return list(lexer)


def programs(words: Iterable[str]) -> Iterator[str]:
    """The programs: the first word of each simple command, without shell built-ins."""
    expected = True
    rest = iter(words)
    for word in rest:
        if set(word) <= SIGNS and re.search(r"[<>]&?$", word):
            next(rest, None)
        elif set(word) <= SIGNS or word in BEFORE_A_COMMAND:
            expected = not word.endswith(")")
        elif expected and not re.match(r"\w+=", word):
            expected = False
            if word not in NO_COMMANDS:
                yield word


def _of_block(block: str, page: str, chapter: str, first_line: int) -> Iterator[Command]:
    begun, first = "", first_line
    for at, line in enumerate(block.splitlines(keepends=True), first_line + 1):
        begun += line
        if _is_whole(begun):
            text, comment = _without_comments(begun)
            if text:
                yield Command(text, comment, page, chapter, first)
            begun, first = "", at
    if begun.strip():
        yield Command(begun.strip(), "", page, chapter, first)


def _is_whole(text: str) -> bool:
    """Whether a shell would need no further line; here-documents are not supported."""
    if text.rstrip("\n").endswith("\\"):
        return False
    checked = subprocess.run(
        ["bash", "-n", "-c", text], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return checked.returncode == 0


def _without_comments(text: str) -> tuple[str, str]:
    comments = [match[2] for match in QUOTED_OR_COMMENT.finditer(text) if match[2]]
    bare = QUOTED_OR_COMMENT.sub(lambda match: match[1] or "", text)
    return CONTINUED.sub(" ", bare).strip(), " ".join(comments)


def _is_drawing(block: str) -> bool:
    return DRAWN.search(QUOTED_OR_COMMENT.sub("", block)) is not None
