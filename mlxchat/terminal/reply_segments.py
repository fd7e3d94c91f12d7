"""The segments of a reply, thoughts and answer: which rows of each are final and which may change.

A segment is a value: it takes more text, and each step returns its rows and the remaining segment.
`reply` decides when rows are drawn, and `live_rows` writes them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from rich.color import ColorSystem
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from mlxchat.terminal.live_rows import Row
from mlxchat.terminal.markdown import Block, ReplyMarkdown, parse, split_blocks

_COLOR_SYSTEMS = {
    "standard": ColorSystem.STANDARD,
    "256": ColorSystem.EIGHT_BIT,
    "truecolor": ColorSystem.TRUECOLOR,
}


class Renderer:
    """Renders anything Rich can render into rows of a given width: what is shown of a block keeps
    its width while the terminal gets another."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.width = console.width

    def rows(self, renderable: RenderableType) -> list[Row]:
        options = self._console.options.update(width=self.width)
        lines = self._console.render_lines(renderable, options, pad=False)
        # The terminal would wrap a row that is too wide, and the rows to replace would be
        # miscounted.
        lines = [Segment.adjust_line_length(line, self.width, pad=False) for line in lines]
        lines = [_without_trailing_blanks(line) for line in lines]
        return [Row(self._ansi(line), Segment.get_line_length(line)) for line in lines]

    def _ansi(self, line: list[Segment]) -> str:
        return "".join(self._styled(text, style or Style.null()) for text, style, _ in line)

    def _styled(self, text: str, style: Style) -> str:
        if self._console.no_color:
            style = style.without_color
        color_system = _COLOR_SYSTEMS.get(self._console.color_system or "none")
        return style.render(text, color_system=color_system)

    def block_rows(self, blocks: Iterable[Block], skip: int) -> list[Row]:
        """Render `blocks`, the first without the `skip` lines of code that are already printed."""
        rows: list[Row] = []
        for block in blocks:
            if block.has_space_before and not skip:
                rows.append(Row("", 0))
            rows += self.rows(ReplyMarkdown(block.tokens, skip))
            skip = 0
        return rows


def _without_trailing_blanks(line: list[Segment]) -> list[Segment]:
    """Rich pads some lines: on a terminal made narrower, the padding would wrap."""
    line = list(line)
    while line and not _is_seen_on_blanks(line[-1].style):
        last = line.pop()
        if text := last.text.rstrip(" "):
            return [*line, Segment(text, last.style)]
    return line


def _is_seen_on_blanks(style: Style | None) -> bool:
    return bool(style and (style.bgcolor or style.underline or style.reverse or style.strike))


class Step(NamedTuple):
    """The rows to draw now, and the segment to render next time."""

    final: list[Row]
    live: list[Row]
    rest: "Thoughts | HiddenThoughts | Answer"


@dataclass(frozen=True)
class Thoughts:
    """Thoughts as dim text, printed line by line."""

    text: str = ""

    def more(self, text: str) -> "Thoughts":
        return Thoughts(self.text + text)

    def step(self, renderer: Renderer, is_done: bool) -> Step:
        *complete, last = self.text.split("\n")
        final = [row for line in complete for row in renderer.rows(Text(line, "dim"))]
        live = renderer.rows(Text(last, "dim")) if last else []
        if is_done:
            return Step(final + live, [], Thoughts())
        return Step(final, live, Thoughts(last))


@dataclass(frozen=True)
class HiddenThoughts:
    """A sign that the model is thinking, which disappears when the answer begins."""

    has_begun: bool = False

    def more(self, text: str) -> "HiddenThoughts":
        return HiddenThoughts(self.has_begun or bool(text))

    def step(self, renderer: Renderer, is_done: bool) -> Step:
        is_shown = self.has_begun and not is_done
        return Step([], renderer.rows(Text("thinking …", "dim")) if is_shown else [], self)


@dataclass(frozen=True)
class Answer:
    """The Markdown that is not printed yet; it starts with a block.

    `follows_text`: there is output above it. `number` is the number of its first list item, if
    earlier items of that list are printed; `skip` counts the printed lines of its first code block.
    """

    source: str = ""
    follows_text: bool = False
    number: int | None = None
    skip: int = 0

    def more(self, text: str) -> "Answer":
        return replace(self, source=self.source + text)

    def step(self, renderer: Renderer, is_done: bool) -> Step:
        if is_done:
            rows = renderer.block_rows(self._blocks(self.source), self.skip)
            return Step(rows, [], Answer(follows_text=self.follows_text or bool(rows)))
        # An unfinished line may still turn into anything; whole lines never reopen a block.
        *closed, last = self._blocks(self.source[: self.source.rfind("\n") + 1]) or [None]
        rest = self._rest_from(last) if last and closed else self
        final = renderer.block_rows([block for block in closed if block], self.skip)
        if last and last.code_lines > rest.skip:
            final += renderer.block_rows([last], rest.skip)
            rest = replace(rest, skip=last.code_lines)
        live = renderer.block_rows(rest._blocks(rest.source), rest.skip)
        return Step(final, live, rest)

    def _blocks(self, source: str) -> list[Block]:
        return list(split_blocks(parse(source), self.follows_text, self.number))

    def _rest_from(self, block: Block) -> "Answer":
        """The rest from `block` on, once everything before it is printed."""
        lines = self.source.split("\n")[block.first_line :]
        return Answer("\n".join(lines), follows_text=True, number=block.number)
