"""A reply's Markdown: where it can be cut while it grows, and how it is drawn.

Nothing in it is obeyed: no HTML, images, hyperlinks, or entities for control characters; `reply`
makes the characters themselves visible, and decides what is drawn when.
"""

import re
from typing import ClassVar, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import COLOR_SYSTEMS, Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Markdown, MarkdownElement
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text

# The terminal's own colours, so that code is readable on any background.
CODE_THEME = "ansi_dark"
CODE_INDENT = 2
# Quotes and lists nested deeper than this would have no width left, and Rich drops them.
MAX_LEVEL = 10

# Underlined headings would change lines that are already printed; the others hide text that the
# model wrote.
_PARSER = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["strikethrough", "table"])
    .disable(["lheading", "reference", "image", "autolink", "html_block", "html_inline"])
)
_FENCE = re.compile(r"\s*(`{3,}|~{3,})[^`]*\Z")
_BLANK_END = re.compile(r"(?: |\x1b\[[\d;]+m +\x1b\[0m)+\Z")
_BLANKS_BEFORE_RESET = re.compile(r" +(?=\x1b\[0m\Z)")
_ITEM = re.compile(r"([-*+]|\d+[.)]) ")


class Cuts(NamedTuple):
    """Where a growing text can be cut: what is before `block` is final. The rows of what follows
    only grow at their end if it is a list or code, which `scrolls`.

    `end` is the end of the text, or the start of its last line if that opens or closes code, and so
    is not shown. `fence` is the line that opens the code around it.
    """

    block: int
    scrolls: bool
    end: int
    fence: str


def find_cuts(source: str) -> Cuts:
    """Blocks are separated by empty lines outside code; indented lines continue a block."""
    block = at = end = 0
    is_after_blank, scrolls = True, False
    fence = around = mark = ""
    for line in source.split("\n"):
        text, opens = line.strip(), _FENCE.match(line)
        end, around = at if opens else at + len(line), fence
        if fence:
            if text.startswith(mark) and not text.strip(mark[0]):
                fence = mark = ""
        elif text:
            if line[0] not in " \t" and is_after_blank:
                block, scrolls = at, _ITEM.match(line) is not None
            if opens:
                fence, mark = line, opens[1]
                scrolls = True
        is_after_blank = not text
        at += len(line) + 1
    return Cuts(block, scrolls, end, around)


class Renderer:
    """Draws text as rows for a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def markdown(self, source: str) -> list[str]:
        """Without empty rows at both ends."""
        # Rich would leave an empty row for an empty inline.
        tokens = [
            token for token in _PARSER.parse(source) if token.type != "inline" or token.children
        ]
        is_deep = any(token.level > MAX_LEVEL for token in tokens)
        rows = self.rows(Text(source) if is_deep else _DrawnReply(tokens))
        while rows and not rows[-1]:
            rows.pop()
        while rows and not rows[0]:
            rows.pop(0)
        return rows

    def rows(self, renderable: RenderableType) -> list[str]:
        lines = self._console.render_lines(renderable, pad=False)
        # Rich pads some lines: on a terminal made narrower, the padding would wrap.
        rows = [_BLANK_END.sub("", "".join(map(self._styled, line))) for line in lines]
        return [_BLANKS_BEFORE_RESET.sub("", row) for row in rows]

    def _styled(self, segment: Segment) -> str:
        style = segment.style or Style.null()
        if self._console.no_color:
            style = style.without_color
        system = COLOR_SYSTEMS.get(self._console.color_system or "")
        return style.render(segment.text, color_system=system)


class _Code(CodeBlock):
    """Code without a box, so that it can be copied."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip().expandtabs(4)
        text = Syntax("", self.lexer_name, theme=self.theme, word_wrap=True).highlight(code)
        # A few lexers drop characters.
        shown = text if text.plain.rstrip() == code else Text(code)
        shown.rstrip()
        yield Padding(shown, (0, 0, 0, CODE_INDENT))


class _DrawnReply(Markdown):
    """Rich's Markdown from our tokens."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "fence": _Code,
        "code_block": _Code,
    }

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__("", code_theme=CODE_THEME, hyperlinks=False)
        self.parsed = tokens
