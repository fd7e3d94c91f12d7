"""Shows a model's reply while it streams: as it is, or as Markdown on a terminal.

What is thinking and what is answer `thinking` tells. Text from the model is made visible here
and is never obeyed: no HTML, no images, no hyperlinks, no entity that could be a control character.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType, TracebackType
from typing import ClassVar, Literal, NamedTuple, Protocol, Self

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, blockquote, list_block
from markdown_it.token import Token
from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
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
from rich.style import Style
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from mlxchat.errors import OutputError
from mlxchat.terminal import visible
from mlxchat.terminal.text_output import Stdout
from mlxchat.terminal.thinking import OuterWhitespace, Piece, ThinkSplitter

_BlockRule = Callable[[StateBlock, int, int, bool], bool]
Thinking = Literal["on", "hide"]

REFRESH_S = 1 / 12
# At most a fifth of the time goes into drawing, however long the part that may still change.
REST_PER_DRAWING = 4
# The terminal's own colours, so that code can be read on any background.
CODE_THEME = "ansi_dark"
CODE_INDENT = 2
# Lines of code above those to be drawn from which their colours are told: more would take long.
CODE_CONTEXT = 100
# Quotes and lists nested deeper than any reader follows would be squeezed to nothing.
MAX_LEVEL = 10

_COLOR_SYSTEMS = {
    "standard": ColorSystem.STANDARD,
    "256": ColorSystem.EIGHT_BIT,
    "truecolor": ColorSystem.TRUECOLOR,
}
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_ERASE_BELOW = "\r\x1b[J"

_LISTS = ("bullet_list_open", "ordered_list_open")
_CONTAINERS = (*_LISTS, "blockquote_open", "table_open")


def _unless_deep(rule: _BlockRule) -> _BlockRule:
    def shallow_rule(state: StateBlock, start: int, end: int, silent: bool) -> bool:
        return state.level < MAX_LEVEL and rule(state, start, end, silent)

    return shallow_rule


# Headings by underlining and link references would change lines that have been printed long ago;
# the others would hide what the model wrote.
_MARKDOWN = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["strikethrough", "table"])
    .disable(["lheading", "reference", "image", "autolink", "html_block", "html_inline"])
)
_ALT = ["paragraph", "blockquote", "list"]
_MARKDOWN.block.ruler.at("blockquote", _unless_deep(blockquote), {"alt": _ALT})
_MARKDOWN.block.ruler.at("list", _unless_deep(list_block), {"alt": _ALT[:-1]})


def reply_view(
    *,
    plain: bool,
    thinking: Thinking,
    think_tags: tuple[str, str] | None,
    inside_thinking: bool = False,
) -> "MarkdownView | PlainView":
    """Return a view on stdout: plain if asked for, or where stdout cannot move a cursor.

    `think_tags` open and close thinking; None where the model knows none. Raises OutputError.
    """
    splitter = ThinkSplitter(*think_tags, inside_thinking) if think_tags else None
    stdout = Stdout()
    console = Console(file=sys.stdout)
    moves_cursor = stdout.is_terminal and console.is_terminal and not console.is_dumb_terminal
    if plain or not moves_cursor or not os.environ.get("TERM"):
        return PlainView(stdout, splitter, thinking)
    return MarkdownView(console, splitter, thinking)


class TextSink(Protocol):
    """What a plain reply is written to; whoever implements it flushes."""

    def write(self, text: str, /) -> object: ...


class PlainView:
    """Writes the reply as it comes. `finish` ends the last line; leaving the context does too."""

    def __init__(
        self, sink: TextSink, splitter: ThinkSplitter | None = None, thinking: Thinking = "on"
    ) -> None:
        self._sink, self._splitter = sink, splitter
        self._shows_thinking = thinking == "on"
        self._thoughts = OuterWhitespace()
        self._is_behind_thoughts = False
        self._last = "\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not isinstance(error, OutputError):
            self.finish()

    def add(self, text: str) -> None:
        self._write_pieces(self._splitter.add(text) if self._splitter else [(False, text)])

    def finish(self) -> None:
        self._write_pieces(self._splitter.finish() if self._splitter else [])
        if self._last != "\n":
            self._write("\n")

    def _write_pieces(self, pieces: list[Piece]) -> None:
        for is_thinking, text in pieces:
            if not is_thinking:
                self._write_answer(text)
            elif self._shows_thinking:
                self._write_thinking(self._thoughts.add(text))

    def _write_thinking(self, text: str) -> None:
        self._is_behind_thoughts = self._is_behind_thoughts or bool(text)
        self._write(text)

    def _write_answer(self, text: str) -> None:
        if self._is_behind_thoughts:
            self._is_behind_thoughts = False
            self._write("\n\n")
        self._write(text)

    def _write(self, text: str) -> None:
        if text:
            self._sink.write(visible(text))
            self._last = text[-1]


class MarkdownView:
    """Renders the reply as Markdown while it grows, on a terminal that can move its cursor.

    What can no longer change is printed once and left to scroll. The rest, no more of it than
    fits on the screen, is drawn anew at most every REFRESH_S. Between two calls the cursor is
    shown and below the text, so an exception leaves the terminal sane wherever it is raised;
    leaving the context, or `finish`, prints all that is left. Raises OutputError.
    """

    def __init__(
        self,
        console: Console,
        splitter: ThinkSplitter | None = None,
        thinking: Thinking = "on",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._splitter, self._clock = splitter, clock
        self._renderer = _Renderer(console)
        self._screen = _LiveRows(console)
        self._trim = OuterWhitespace()
        self._part: _Thoughts | _HiddenThoughts | _Answer = (
            _Thoughts() if thinking == "on" else _HiddenThoughts()
        )
        self._due_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not isinstance(error, OutputError):
            self.finish()

    def add(self, text: str) -> None:
        self._take_pieces(self._splitter.add(text) if self._splitter else [(False, text)])
        begun_s = self._clock()
        if begun_s >= self._due_s:
            self._draw()
            ended_s = self._clock()
            self._due_s = ended_s + max(REFRESH_S, REST_PER_DRAWING * (ended_s - begun_s))

    def finish(self) -> None:
        self._take_pieces(self._splitter.finish() if self._splitter else [])
        self._draw(is_done=True)

    def _take_pieces(self, pieces: list[Piece]) -> None:
        for is_thinking, text in pieces:
            if is_thinking:
                self._part = self._part.more(visible(self._trim.add(text)))
            else:
                self._begin_answer()
                self._part = self._part.more(visible(text))

    def _begin_answer(self) -> None:
        if not isinstance(self._part, _Answer):
            self._draw(is_done=True)
            self._part = _Answer(is_behind=self._screen.has_printed)

    def _draw(self, is_done: bool = False) -> None:
        step = self._part.step(self._renderer, is_done)
        with _signals_later():
            self._screen.draw(step.final, step.live)
            self._part = step.rest


class _Row(NamedTuple):
    """A row of the screen: what to write, without the newline, and how wide it is."""

    ansi: str
    cells: int


class _LiveRows:
    """Rows at the bottom of a terminal that can still be replaced; above them all is permanent.

    The cursor always stands at the beginning of the row below them.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: list[_Row] = []
        self._width = console.width
        self.has_printed = False

    def draw(self, final: list[_Row], live: list[_Row]) -> None:
        """Put `final`, for good, and `live` in place of the live rows; the last of `live` only
        where the screen is too small for all. Rows that stay the same are not written again.
        """
        live = live[-max(1, self._console.height - 2) :]
        rows = [*final, *live]
        same = self._count_same(rows)
        if rows != self._shown:
            self._write(self._height(self._shown[same:]), rows[same:])
        self._shown = live
        self._width = self._console.width
        self.has_printed = self.has_printed or bool(final)

    def _count_same(self, rows: list[_Row]) -> int:
        if self._console.width != self._width:
            return 0
        pairs = enumerate(zip(rows, self._shown, strict=False))
        return next((i for i, (a, b) in pairs if a != b), min(len(rows), len(self._shown)))

    def _height(self, rows: list[_Row]) -> int:
        """How far up `rows` begin: a terminal that was made narrower has wrapped them."""
        width = self._console.width
        height = sum(max(1, -(-row.cells // width)) for row in rows)
        return min(height, self._console.height - 1)

    def _write(self, up: int, rows: list[_Row]) -> None:
        move = f"\x1b[{up}A" if up else ""
        text = "".join(row.ansi + "\n" for row in rows)
        try:
            self._console.file.write(_HIDE_CURSOR + move + _ERASE_BELOW + text + _SHOW_CURSOR)
            self._console.file.flush()
        except OSError as error:
            raise OutputError(f"cannot write to the terminal: {error.strerror}") from error


@contextmanager
def _signals_later() -> Iterator[None]:
    """Let no signal come between what is written and the memory of it."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.getsignal(number) for number in numbers}
    if threading.current_thread() is not threading.main_thread() or None in handlers.values():
        yield
        return
    came: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        came.append(number)

    try:
        for number in numbers:
            signal.signal(number, remember)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


class _Renderer:
    """Turns what Rich can render into rows, at the width that the terminal has now."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def rows(self, renderable: RenderableType) -> list[_Row]:
        lines = self._console.render_lines(renderable, pad=False)
        # A wide row would be wrapped by the terminal, and the rows to be replaced miscounted.
        lines = [Segment.adjust_line_length(line, self._console.width, pad=False) for line in lines]
        lines = [_without_trailing_blanks(line) for line in lines]
        return [_Row(self._ansi(line), Segment.get_line_length(line)) for line in lines]

    def _ansi(self, line: list[Segment]) -> str:
        return "".join(self._styled(text, style or Style.null()) for text, style, _ in line)

    def _styled(self, text: str, style: Style) -> str:
        if self._console.no_color:
            style = style.without_color
        color_system = _COLOR_SYSTEMS.get(self._console.color_system or "none")
        return style.render(text, color_system=color_system)

    def block_rows(self, blocks: "Iterable[_Block]", skip: int) -> list[_Row]:
        """Render `blocks`, the first without the `skip` lines of code that are printed."""
        rows: list[_Row] = []
        for block in blocks:
            if block.has_space_before and not skip:
                rows.append(_Row("", 0))
            rows += self.rows(ReplyMarkdown(block.tokens, skip))
            skip = 0
        return rows


def _without_trailing_blanks(line: list[Segment]) -> list[Segment]:
    line = list(line)
    while line and not line[-1].text.strip(" ") and not _is_seen_on_blanks(line[-1].style):
        line.pop()
    return line


def _is_seen_on_blanks(style: Style | None) -> bool:
    return bool(style and (style.bgcolor or style.underline or style.reverse or style.strike))


class _Step(NamedTuple):
    """What to draw now, and what has to be rendered again the next time."""

    final: list[_Row]
    live: list[_Row]
    rest: "_Thoughts | _HiddenThoughts | _Answer"


@dataclass(frozen=True)
class _Thoughts:
    """Thinking as dim text: lines are printed as they are completed."""

    text: str = ""

    def more(self, text: str) -> "_Thoughts":
        return _Thoughts(self.text + text)

    def step(self, renderer: _Renderer, is_done: bool) -> _Step:
        *complete, last = self.text.split("\n")
        final = [row for line in complete for row in renderer.rows(Text(line, "dim"))]
        live = renderer.rows(Text(last, "dim")) if last else []
        if is_done:
            return _Step(final + live, [], _Thoughts())
        return _Step(final, live, _Thoughts(last))


@dataclass(frozen=True)
class _HiddenThoughts:
    """Thinking as a sign that there is some, gone when the answer begins."""

    has_begun: bool = False

    def more(self, text: str) -> "_HiddenThoughts":
        return _HiddenThoughts(self.has_begun or bool(text))

    def step(self, renderer: _Renderer, is_done: bool) -> _Step:
        is_shown = self.has_begun and not is_done
        return _Step([], renderer.rows(Text("thinking …", "dim")) if is_shown else [], self)


@dataclass(frozen=True)
class _Answer:
    """The Markdown that is not printed yet, beginning with the start of a block.

    `is_behind` tells that something stands above. `number` is that of the list item it begins
    with, where the list's first items are printed; `skip` counts the printed lines of the code
    block it begins with.
    """

    source: str = ""
    is_behind: bool = False
    number: int | None = None
    skip: int = 0

    def more(self, text: str) -> "_Answer":
        return replace(self, source=self.source + text)

    def step(self, renderer: _Renderer, is_done: bool) -> _Step:
        if is_done:
            rows = renderer.block_rows(self._blocks(self.source), self.skip)
            return _Step(rows, [], _Answer(is_behind=self.is_behind or bool(rows)))
        # Half a line can still become anything; whole lines never reopen a block.
        *closed, last = self._blocks(self.source[: self.source.rfind("\n") + 1]) or [None]
        rest = self._behind(last) if last and closed else self
        final = renderer.block_rows([block for block in closed if block], self.skip)
        if last and last.code_lines > rest.skip:
            final += renderer.block_rows([last], rest.skip)
            rest = replace(rest, skip=last.code_lines)
        live = renderer.block_rows(rest._blocks(rest.source), rest.skip)
        return _Step(final, live, rest)

    def _blocks(self, source: str) -> "list[_Block]":
        return list(_split_blocks(_parse(source), self.is_behind, self.number))

    def _behind(self, block: "_Block") -> "_Answer":
        """What is left, from `block` on, when all before it is printed."""
        lines = self.source.split("\n")[block.first_line :]
        return _Answer("\n".join(lines), is_behind=True, number=block.number)


@dataclass(frozen=True)
class _Block:
    """A block of Markdown, or one item of a list, that can be rendered by itself.

    `number` is an item's where items of its list stand above it. `code_lines` counts what can
    be printed of an open code block.
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


def _parse(source: str) -> list[Token]:
    """Parse, without the empty inlines for which Rich would leave an empty line."""
    tokens = _MARKDOWN.parse(source)
    return [token for token in tokens if token.type != "inline" or token.children]


def _split_blocks(tokens: list[Token], is_behind: bool, number: int | None) -> Iterator[_Block]:
    for group in _groups(tokens, level=0):
        if group[0].type in _LISTS:
            yield from _split_items(group, is_behind, number)
        else:
            yield _Block(group, _first_line(group), is_behind)
        is_behind, number = True, None


def _split_items(tokens: list[Token], is_behind: bool, number: int | None) -> Iterator[_Block]:
    opening, *items, closing = tokens
    next_number = int(opening.attrs.get("start", 1)) if number is None else number
    for item in _groups(items, level=1):
        opening_here = replace(opening, attrs={"start": next_number})
        has_space_before = is_behind and number is None
        group = [opening_here, *item, closing]
        yield _Block(group, _first_line(item), has_space_before, number)
        next_number += 1
        number = next_number


def _groups(tokens: list[Token], level: int) -> Iterator[list[Token]]:
    """Cut `tokens` behind each that ends something at `level`."""
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
    """Code without a box, so that it can be copied and its first lines printed early."""

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
    # A few lexers leave characters out.
    return text if text.plain.rstrip() == code else Text(code)


class _Line(HorizontalRule):
    """A rule that leaves the space behind it to the block that follows."""

    new_line = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style="markdown.hr", characters="-")


class _List(ListElement):
    """A list in which the width of a number does not depend on the items still to come."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.list_type == "bullet_list_open":
            yield from super().__rich_console__(console, options)
            return
        assert self.list_start is not None
        for number, item in enumerate(self.items, self.list_start):
            yield from item.render_number(console, options, number, max(number, 10))


class _Table(TableElement):
    """A table without the empty lines that Rich draws as its upper and lower edge."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            assert isinstance(table, Table)
            table.show_edge = False
            yield table


class ReplyMarkdown(Markdown):
    """Rich's Markdown from tokens, `skip` lines of code left out, nothing hidden or obeyed."""

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
        # Rich puts an empty line even above the first block, if that has blocks within.
        if first is not None and not (self._begins_with_blocks() and first == Segment.line()):
            yield first
        yield from segments

    def _begins_with_blocks(self) -> bool:
        return self.parsed[0].type in _CONTAINERS and self.parsed[1].nesting >= 0
