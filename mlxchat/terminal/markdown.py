"""Markdown that can be printed block by block: parsing, splitting into blocks, styles.

Nothing in it is obeyed: no HTML, images, hyperlinks, or entities for control characters; `reply`
makes the characters themselves visible. `reply_segments` decides what is final.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, blockquote, list_block
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import (
    CodeBlock,
    HorizontalRule,
    ListElement,
    Markdown,
    MarkdownElement,
    TableElement,
)
from rich.padding import Padding
from rich.rule import Rule
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

_BlockRule = Callable[[StateBlock, int, int, bool], bool]

# The terminal's own colours, so that code is readable on any background.
CODE_THEME = "ansi_dark"
CODE_INDENT = 2
# How many earlier lines of code are parsed to colour the next: more would take long.
CODE_CONTEXT = 100
# Quotes and lists nested deeper than this would have no width left.
MAX_LEVEL = 10

_LISTS = ("bullet_list_open", "ordered_list_open")
_CONTAINERS = (*_LISTS, "blockquote_open", "table_open")


def _unless_deep(rule: _BlockRule) -> _BlockRule:
    def shallow_rule(state: StateBlock, start: int, end: int, silent: bool) -> bool:
        return state.level < MAX_LEVEL and rule(state, start, end, silent)

    return shallow_rule


# Underlined headings and link references would change lines that are already printed; the other
# rules would hide text that the model wrote.
_MARKDOWN = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["strikethrough", "table"])
    .disable(["lheading", "reference", "image", "autolink", "html_block", "html_inline"])
)
_ALT = ["paragraph", "blockquote", "list"]
_MARKDOWN.block.ruler.at("blockquote", _unless_deep(blockquote), {"alt": _ALT})
_MARKDOWN.block.ruler.at("list", _unless_deep(list_block), {"alt": _ALT[:-1]})


@dataclass(frozen=True)
class Block:
    """A block of Markdown, or one item of a list, that can be rendered alone.

    `number` is the number of an item that follows others of its list. `code_lines` counts the lines
    of an open code block that can be printed.
    """

    tokens: list[Token]
    first_line: int
    has_space_before: bool
    number: int | None = None

    @property
    def code_lines(self) -> int:
        is_fence = self.tokens[0].type == "fence"
        code = self.tokens[0].content.rstrip()
        return code.count("\n") + 1 if is_fence and code else 0


def parse(source: str) -> list[Token]:
    """Parse, without the empty inlines for which Rich would leave an empty line."""
    tokens = _MARKDOWN.parse(source)
    return [token for token in tokens if token.type != "inline" or token.children]


def split_blocks(tokens: list[Token], follows_text: bool, number: int | None) -> Iterator[Block]:
    for group in _groups(tokens, level=0):
        if group[0].type in _LISTS:
            yield from _split_items(group, follows_text, number)
        else:
            yield Block(group, _first_line(group), follows_text)
        follows_text, number = True, None


def _split_items(tokens: list[Token], follows_text: bool, number: int | None) -> Iterator[Block]:
    opening, *items, closing = tokens
    next_number = int(opening.attrs.get("start", 1)) if number is None else number
    for item in _groups(items, level=1):
        opening_here = replace(opening, attrs={"start": next_number})
        has_space_before = follows_text and number is None
        group = [opening_here, *item, closing]
        yield Block(group, _first_line(item), has_space_before, number)
        next_number += 1
        number = next_number


def _groups(tokens: list[Token], level: int) -> Iterator[list[Token]]:
    """Split `tokens` after each one that ends something at `level`."""
    group: list[Token] = []
    for token in tokens:
        group.append(token)
        if token.level == level and token.nesting <= 0:
            yield group
            group = []
    assert not group


def _first_line(tokens: list[Token]) -> int:
    assert tokens[0].map is not None
    return tokens[0].map[0]


class _Code(CodeBlock):
    """Code without a box, so that it can be copied and printed line by line."""

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> Self:
        name = (token.info or "").partition(" ")[0] or "text"
        return cls(name, markdown.code_theme, getattr(markdown, "skip", 0))

    def __init__(self, lexer_name: str, theme: str, skip: int) -> None:
        super().__init__(lexer_name, theme)
        self._skip = skip

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip().expandtabs(4).split("\n")
        begin = max(0, self._skip - CODE_CONTEXT)
        text = _highlight("\n".join(code[begin:]), self.lexer_name, self.theme)
        lines = text.split("\n")[self._skip - begin :]
        if lines:
            yield Padding(Text("\n").join(lines), (0, 0, 0, CODE_INDENT))


def _highlight(code: str, lexer_name: str, theme: str) -> Text:
    text = Syntax("", lexer_name, theme=theme, word_wrap=True).highlight(code)
    # A few lexers drop characters.
    return text if text.plain.rstrip() == code else Text(code)


class _Line(HorizontalRule):
    """A rule that leaves the space after it to the next block."""

    new_line = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style="markdown.hr", characters="-")


class _List(ListElement):
    """A list whose number width does not depend on later items."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.list_type == "bullet_list_open":
            yield from super().__rich_console__(console, options)
            return
        assert self.list_start is not None
        for number, item in enumerate(self.items, self.list_start):
            yield from item.render_number(console, options, number, max(number, 10))


class _Table(TableElement):
    """A table without the empty lines that Rich draws above and below it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            assert isinstance(table, Table)
            table.show_edge = False
            yield table


class ReplyMarkdown(Markdown):
    """Rich's Markdown from tokens, without `skip` lines of code; nothing hidden or obeyed."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "fence": _Code,
        "code_block": _Code,
        "hr": _Line,
        "bullet_list_open": _List,
        "ordered_list_open": _List,
        "table_open": _Table,
    }

    def __init__(self, tokens: list[Token], skip: int = 0) -> None:
        super().__init__("", code_theme=CODE_THEME, hyperlinks=False)
        self.parsed = tokens
        self.skip = skip

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        segments = iter(super().__rich_console__(console, options))
        first = next(segments, None)
        # Rich puts an empty line even above the first block if it contains blocks.
        if first is not None and not (self._begins_with_blocks() and first == Segment.line()):
            yield first
        yield from segments

    def _begins_with_blocks(self) -> bool:
        return self.parsed[0].type in _CONTAINERS and self.parsed[1].nesting >= 0
