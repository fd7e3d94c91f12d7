"""Shows a model's reply while it streams: plain, or as Markdown on a terminal.

The caller knows which text is a thought. Text from the model is made visible here, so that the
terminal obeys none of its control characters; nor is anything in its Markdown obeyed: no HTML,
images, hyperlinks, or entities for control characters. `MarkdownView` decides what is drawn when.
"""

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import pairwise, takewhile
from operator import eq
from typing import ClassVar, NamedTuple, cast

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Markdown, MarkdownElement, TableElement
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from mlxchat.errors import OutputError
from mlxchat.terminal import is_dumb, is_in_background, visible
from mlxchat.terminal.output import Stdout, TerminalLine
from mlxchat.text.extract import OuterWhitespace

STDOUT = 1
REFRESH_S = 1 / 12
# While the terminal is resized, nothing is drawn for this time after each change.
SETTLED_S = 0.25
THINKING = Text("thinking …", "dim")
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_ERASE_BELOW = "\r\x1b[J"
# Drawing takes at most a fifth of the time, however long the unfinished part is.
REST_PER_DRAWING = 4

# The terminal's own colours, so that code is readable on any background.
CODE_THEME = "ansi_dark"
CODE_INDENT = 2
# Quotes and lists nested deeper than this would have no width left, and Rich drops them.
MAX_LEVEL = 10

# Underlined headings would change lines that are printed; the others hide text of the model.
_PARSER = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["strikethrough", "table"])
    .disable(["lheading", "reference", "image", "autolink", "html_block", "html_inline"])
)
_FENCE = re.compile(r"\s*(`{3,}|~{3,})[^`]*\Z")
_BLANK_END = re.compile(r"(?: |\x1b\[[\d;]+m +\x1b\[0m)+\Z")
_BLANKS_BEFORE_RESET = re.compile(r" +(?=\x1b\[0m\Z)")
_ITEM = re.compile(r"([-*+]|\d+[.)]) ")
# A line that has only begun, and may become an item.
_MARKER = re.compile(r" *([-*+]|\d{1,9}[.)]?)( +[-*+])* *")
# A character that `visible` leaves in no text, and that Markdown takes for a letter.
_BORDER = "\x01"
_BELOW_HEADER = re.compile(r"(?=.*\|)[|:\s-]*-[|:\s-]*")


def reply_view(*, plain: bool, hides_thoughts: bool, after: str = "") -> "PlainView":
    """Return a view on stdout: plain if requested, or if stdout cannot move a cursor. The reply
    continues the text `after` which it comes. Raises OutputError."""
    stdout = Stdout()
    console = Console(file=sys.stdout)
    if plain or is_dumb() or not (stdout.is_terminal and console.is_terminal):
        return PlainView(stdout.write, hides_thoughts)
    return MarkdownView(console, hides_thoughts, after=visible(after))


class PlainView(AbstractContextManager["PlainView"]):
    """A reply in progress: `write` gets it as it comes. Thoughts are trimmed, and apart from each
    other and from the answer. Leaving the context finishes it, unless writing it failed."""

    def __init__(self, write: Callable[[str], object], hides_thoughts: bool = False) -> None:
        self._write_text = write
        self._hides_thoughts = hides_thoughts
        self._trim = OuterWhitespace()
        self._is_thought = self._is_apart = False
        self._last = ""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, OutputError):
            self.finish()

    def add(self, text: str, thought: bool = False, another: bool = False) -> None:
        """`another` thought is apart from the one before it."""
        if another:
            self._is_apart, self._trim = True, OuterWhitespace()
        text = visible(self._trim.add(text) if thought else text)
        if text and (thought is not self._is_thought or self._is_apart):
            self._begin_part()
            self._is_thought, self._is_apart = thought, False
            if not thought:
                # Another thought has its own leading whitespace.
                self._trim = OuterWhitespace()
        self._put(text)

    def finish(self) -> None:
        if self._last not in ("", "\n"):
            self._put_anyway("\n")

    @property
    def _is_hidden(self) -> bool:
        return self._is_thought and self._hides_thoughts

    def _begin_part(self) -> None:
        """A thought after an answer, an answer after a thought, or another thought follows."""
        if self._last:
            self._put_anyway("\n\n")

    def _put(self, text: str) -> None:
        if text and not self._is_hidden:
            self._put_anyway(text)

    def _put_anyway(self, text: str) -> None:
        self._write_text(text)
        self._last = text[-1]


class MarkdownView(PlainView):
    """Renders a growing reply as Markdown, on a terminal that can move its cursor.

    Text that can no longer change is printed once and scrolls away. The rest, at most a screenful,
    is redrawn no more often than every REFRESH_S. Between calls the cursor is visible and below the
    text, so that an exception leaves the terminal sane wherever it is raised; `finish`, or leaving
    the context, prints all that is left. Raises OutputError.

    What is drawn stands once it may have moved: the terminal has been resized, in which some
    terminals wrap rows again and others do not, or a shell has written below it. What follows goes
    below, so that nothing is shown twice.
    """

    def __init__(
        self,
        console: Console,
        hides_thoughts: bool = False,
        clock: Callable[[], float] = time.monotonic,
        after: str = "",
    ) -> None:
        super().__init__(console.print, hides_thoughts)
        self._clock = clock
        self._console, self._size = console, console.size
        # The text that is not printed for good, and how much of it is drawn.
        self._source, self._drawn_chars = "", 0
        # How many of its rows are printed for good, and the rows after them: only the last ones if
        # it `_is_cropped`.
        self._kept, self._rows = 0, list[str]()
        self._is_cropped = False
        # Whether an empty row separates it from what is printed.
        self._has_gap = False
        self._has_printed = self._may_have_moved = False
        # The end of what stands, if the text goes on within it.
        self._above = ""
        self._go_on(find_cuts(after), after)
        self._moves = TerminalLine.moves
        self._due_s = 0.0

    def finish(self) -> None:
        self._draw(is_done=True)

    def _begin_part(self) -> None:
        self.finish()
        self._has_gap, self._above = self._has_printed, ""

    def _put(self, text: str) -> None:
        self._source += text
        begun_s = self._clock()
        if begun_s >= self._due_s:
            self._draw()
            ended_s = self._clock()
            rest_s = max(REFRESH_S, REST_PER_DRAWING * (ended_s - begun_s))
            self._due_s = max(self._due_s, ended_s + rest_s)

    def _draw(self, is_done: bool = False, is_second: bool = False) -> None:
        if self._console.size != self._size:
            self._size = self._console.size
            # A row as short as that of hidden thoughts stays one.
            self._may_have_moved = self._may_have_moved or not self._is_hidden
            if not is_done:
                # Wait until it has stopped changing.
                self._due_s = self._clock() + SETTLED_S
                return
        if self._may_have_moved or self._has_moved():
            self._moves = TerminalLine.moves
            self._let_stand()
        before = self._source, self._above, self._kept, self._has_gap, self._is_cropped
        if self._is_hidden:
            self._source = "" if is_done else self._source
            self._rows = self._write(rows_of(self._console, THINKING) if self._source else [])
            return
        cuts = find_cuts(self._source)
        cut, scrolls = cuts.block, cuts.scrolls or find_cuts(self._above).scrolls
        if self._is_thought:
            cut = self._source.rfind("\n") + 1
        is_item = not (is_done or self._is_thought) and _MARKER.fullmatch(self._source, cuts.end)
        begun = self._source[cuts.end :] if is_item else ""
        final = self._print_for_good(len(self._source) if is_done else cut)
        live = self._rendered(self._source.removesuffix(begun))[self._kept :]
        # How many rows can be replaced.
        excess = len(live) - max(self._size.height - 2, 1)
        self._is_cropped = excess > 0 and not scrolls
        if excess > 0 and scrolls:
            self._kept += excess
            final, live = [*final, *live[:excess]], live[excess:]
        shown = live[max(excess, 0) :] if self._is_cropped else live
        # The program may have been stopped meanwhile, or go on in the background.
        waits = not is_done and is_in_background(STDOUT)
        if waits or (not is_second and self._has_moved()):
            self._source, self._above, self._kept, self._has_gap, self._is_cropped = before
            if not waits:
                self._draw(is_done, is_second=True)
            return
        self._write([*final, *shown])
        self._rows = shown
        self._has_printed = self._has_printed or bool(final)
        self._drawn_chars = len(self._source)

    def _has_moved(self) -> bool:
        TerminalLine.look()
        return self._moves != TerminalLine.moves

    def _print_for_good(self, cut: int) -> list[str]:
        """Take the text before the cut; return its rows."""
        final = self._rendered(self._source[:cut])[self._kept :]
        if cut:
            printed = self._has_printed or bool(final)
            self._source, self._above, self._kept = self._source[cut:], "", 0
            self._has_gap = printed and not self._is_thought
        return final

    def _let_stand(self) -> None:
        self._may_have_moved = False
        rows, self._rows = self._rows, []
        if not rows or self._is_hidden:
            return
        cuts = find_cuts(self._source[: self._drawn_chars])
        if self._is_thought:
            cuts = Cuts(0, cuts.scrolls, self._drawn_chars, "")
        if self._is_cropped:
            # Some rows were left out for lack of room: only here are rows repeated.
            self._write(self._rendered(self._source[: cuts.end]))
        self._go_on(cuts, self._source)
        self._kept, self._has_gap, self._has_printed = 0, False, True

    def _go_on(self, cuts: "Cuts", source: str) -> None:
        # The rest is drawn below, as a part of what it is in.
        self._above = (self._above if cuts.block == 0 else "") + source[cuts.block : cuts.end]
        self._source = (f"{cuts.opening}\n" if cuts.opening else "") + source[cuts.end :]

    def _rendered(self, source: str) -> list[str]:
        """The rows of the text, after an empty one if there is a gap."""
        if self._is_thought:
            rows = rows_of(self._console, Text(source.removesuffix("\n"), "dim")) if source else []
        else:
            rows = markdown_rows(self._console, reopened(self._above, source))
        return ["", *rows] if self._has_gap and rows else rows

    def _write(self, rows: list[str]) -> list[str]:
        """Replace the drawn rows, and return them. Unchanged ones are not written again."""
        before = self._rows
        same = sum(1 for _ in takewhile(lambda pair: eq(*pair), zip(rows, before, strict=False)))
        if rows != before:
            up = len(before) - same
            text = "".join(f"{row}\n" for row in rows[same:])
            move = f"\x1b[{up}A" if up else ""
            try:
                self._console.file.write(f"{_HIDE_CURSOR}{move}{_ERASE_BELOW}{text}{_SHOW_CURSOR}")
                self._console.file.flush()
            except OSError as error:
                raise OutputError(f"cannot write to the terminal: {error.strerror}") from error
        return rows


class Cuts(NamedTuple):
    """Where a growing text can be cut: what is before `block` is final. The rows of what follows
    only grow at their end if it is a list or code, which `scrolls`.

    `end` is the end of the text, or the start of its last line if that opens or closes code, or is
    a bare marker or an indentation in code, and so is not shown, or is a row of a table, or of
    the first of the lines that may become its head. `opening` is what begins the code or the table
    around it.
    """

    block: int
    scrolls: bool
    end: int
    opening: str


def find_cuts(source: str) -> Cuts:
    """Blocks are separated by empty lines outside code; indented lines continue a block."""
    block = at = end = head = 0
    is_after_blank, scrolls = True, False
    fence = around = mark = table = before = ""
    for line in source.split("\n"):
        text, opens = line.strip(), _FENCE.match(line)
        head = head if before.startswith("|") else at
        is_apart = opens or table or (not text if fence else _MARKER.fullmatch(line))
        end, around = at if is_apart else at + len(line), fence or table
        end = head if (line or before).startswith("|") and not around else end
        if fence:
            if text.startswith(mark) and not text.strip(mark[0]):
                fence = mark = ""
        elif text:
            if line[0] not in " \t" and is_after_blank:
                block, scrolls = at, _ITEM.match(line) is not None
            if opens:
                fence, mark = line, opens[1]
                scrolls = True
            elif before and not table and _BELOW_HEADER.fullmatch(text):
                table = f"{before}\n{line}"
        table, before = (table if text else ""), line
        is_after_blank = not text
        at += len(line) + 1
    return Cuts(block, scrolls, end, around)


def markdown_rows(console: Console, source: str) -> list[str]:
    """The rows of the text on a terminal, without empty ones at both ends."""
    # Rich would leave an empty row for an empty inline.
    tokens = [token for token in _PARSER.parse(source) if token.type != "inline" or token.children]
    for token in (each for inline in tokens for each in inline.children or ()):
        # A poem's lines stay lines.
        token.type = "hardbreak" if token.type == "softbreak" else token.type
    is_deep = any(token.level > MAX_LEVEL for token in tokens)
    rows = rows_of(console, Text(source) if is_deep else _DrawnReply([*_with_markers(tokens)]))
    text = "\n".join(rows).strip("\n")
    return text.split("\n") if text else []


def reopened(above: str, below: str) -> str:
    """The text below as it is drawn apart from what it goes on within: with the marks of inline
    code and emphasis that are open there, and the end of a heading or an item as a paragraph."""
    marks = _open_marks(f"{above}{_BORDER}{below}") if above[-1:] not in ("", "\n") else []
    text = below.lstrip(" ") if marks else below
    while marks and text.startswith(marks[-1]):
        text = text.removeprefix(marks.pop())
    lines = above.split("\n")
    if (lines[-1].startswith("#") or any(map(_ITEM.match, lines))) and not find_cuts(above).opening:
        # Else the next line would join it, such as an item that does not begin at 1.
        text = text.replace("\n", "\n\n", 1)
    return "".join(marks) + text


def _open_marks(source: str) -> list[str]:
    marks = list[str]()
    for token in (each for inline in _PARSER.parse(source) for each in inline.children or ()):
        if _BORDER in token.content:
            return [*marks, token.markup] if token.type == "code_inline" else marks
        if token.nesting > 0:
            marks.append(token.markup)
        elif token.nesting < 0:
            marks.pop()
    return []


def _with_markers(tokens: list[Token]) -> Iterator[Token]:
    """Rich would draw nothing for an item or a quote without text, such as the item "4."."""
    for token, after in pairwise([*tokens, Token("", "", 0)]):
        yield token
        if token.type in ("list_item_open", "blockquote_open") and after.nesting < 0:
            text = Token("inline", "", 0, children=[Token("text", "", 0)])
            yield from (Token("paragraph_open", "p", 1), text, Token("paragraph_close", "p", -1))


def rows_of(console: Console, renderable: RenderableType) -> list[str]:
    with console.capture() as drawn:
        console.print(renderable)
    # Rich pads some lines: on a terminal made narrower, the padding would wrap.
    rows = [_BLANK_END.sub("", row) for row in drawn.get().split("\n")[:-1]]
    return [_BLANKS_BEFORE_RESET.sub("", row) for row in rows]


class _Code(CodeBlock):
    """Code without a box, so that it can be copied."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip().expandtabs(4)
        text = Syntax("", self.lexer_name, theme=self.theme, word_wrap=True).highlight(code)
        # A few lexers drop characters.
        shown = text if text.plain.rstrip() == code else Text(code)
        shown.rstrip()
        yield Padding(shown, (0, 0, 0, CODE_INDENT))


class WideTable(TableElement):
    """Rich would cut words that are wider than their column, and add empty rows around a table."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in cast(Iterator[Table], super().__rich_console__(console, options)):
            for column in table.columns:
                column.overflow = "fold"
            table.show_edge = False
            yield Padding(table, (0, 0, 0, 1))


class _DrawnReply(Markdown):
    """Rich's Markdown from our tokens."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "fence": _Code,
        "code_block": _Code,
        "table_open": WideTable,
    }

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__("", code_theme=CODE_THEME, hyperlinks=False)
        self.parsed = tokens
