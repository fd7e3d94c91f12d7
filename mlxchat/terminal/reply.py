"""Shows a model's reply while it streams: plain, or as Markdown on a terminal.

The caller knows which text is a thought. Text from the model is made visible here, so that the
terminal obeys none of its control characters.
"""

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import takewhile
from operator import eq
from typing import Literal, Protocol, Self

from rich.console import Console
from rich.text import Text

from mlxchat.errors import OutputError
from mlxchat.terminal import visible
from mlxchat.terminal.markdown import Cut, Renderer, find_cuts
from mlxchat.terminal.output import Stdout
from mlxchat.text.pieces import OuterWhitespace

Thinking = Literal["on", "hide"]

REFRESH_S = 1 / 12
# While the terminal is resized, nothing is drawn for this time after each change.
SETTLED_S = 0.25
THINKING = Text("thinking …", "dim")
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_ERASE_BELOW = "\r\x1b[J"
# Drawing takes at most a fifth of the time, however long the unfinished part is.
REST_PER_DRAWING = 4


def reply_view(*, plain: bool, thinking: Thinking) -> "ReplyView":
    """Return a view on stdout: plain if requested, or if stdout cannot move a cursor.

    Raises OutputError.
    """
    stdout = Stdout()
    console = Console(file=sys.stdout)
    moves_cursor = stdout.is_terminal and console.is_terminal and not console.is_dumb_terminal
    if plain or not moves_cursor or not os.environ.get("TERM"):
        return PlainView(stdout, thinking)
    return MarkdownView(console, thinking)


class TextSink(Protocol):
    """The destination of a plain reply; `write` must flush."""

    def write(self, text: str, /) -> object: ...


class ReplyView(ABC):
    """A reply in progress. Thoughts are trimmed, and apart from each other and from the answer.
    Leaving the context finishes it, unless writing it failed."""

    def __init__(self, thinking: Thinking) -> None:
        self._hides_thoughts = thinking == "hide"
        self._trim = OuterWhitespace()
        self._is_thought = self._is_apart = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, OutputError):
            self.finish()

    def add(self, text: str, thought: bool = False) -> None:
        text = visible(self._trim.add(text) if thought else text)
        if text and (thought is not self._is_thought or self._is_apart):
            self._begin_part()
            self._is_thought, self._is_apart = thought, False
            if not thought:
                # Another thought has its own leading whitespace.
                self._trim = OuterWhitespace()
        self._put(text)

    def begin_another_thought(self) -> None:
        """Separate the next text from the thought before it."""
        self._is_apart, self._trim = True, OuterWhitespace()

    def stand(self) -> None:
        """From now on, leave what is drawn in place. Callable from any thread."""
        return

    @property
    def _is_hidden(self) -> bool:
        return self._is_thought and self._hides_thoughts

    @abstractmethod
    def finish(self) -> None: ...

    @abstractmethod
    def _begin_part(self) -> None:
        """What follows is a thought after an answer, an answer after a thought, or another
        thought."""

    @abstractmethod
    def _put(self, text: str) -> None: ...


class PlainView(ReplyView):
    """Writes the reply as it comes. `finish` ends the last line."""

    def __init__(self, sink: TextSink, thinking: Thinking = "on") -> None:
        super().__init__(thinking)
        self._sink = sink
        self._last = ""

    def finish(self) -> None:
        if self._last not in ("", "\n"):
            self._write("\n")

    def _begin_part(self) -> None:
        if self._last:
            self._write("\n\n")

    def _put(self, text: str) -> None:
        if text and not self._is_hidden:
            self._write(text)

    def _write(self, text: str) -> None:
        self._sink.write(text)
        self._last = text[-1]


class MarkdownView(ReplyView):
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
        thinking: Thinking = "on",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(thinking)
        self._clock = clock
        self._console, self._size = console, console.size
        self._renderer = Renderer(console)
        # The text that is not printed for good, how much of it is drawn, and in which rows: only
        # the last ones if it `_is_cropped`.
        self._source, self._drawn_chars = "", 0
        self._rows: list[str] = []
        self._is_cropped = False
        # Whether an empty row separates it from what is printed.
        self._has_gap = False
        self._has_printed = self._may_have_moved = False
        self._due_s = 0.0

    def finish(self) -> None:
        self._draw(is_done=True)

    def _begin_part(self) -> None:
        self.finish()
        self._has_gap = self._has_printed

    def _put(self, text: str) -> None:
        self._source += text
        begun_s = self._clock()
        if begun_s >= self._due_s:
            self._draw()
            ended_s = self._clock()
            rest_s = max(REFRESH_S, REST_PER_DRAWING * (ended_s - begun_s))
            self._due_s = max(self._due_s, ended_s + rest_s)

    def stand(self) -> None:
        self._may_have_moved = True

    def _draw(self, is_done: bool = False) -> None:
        if self._console.size != self._size:
            self._size = self._console.size
            # A row as short as that of hidden thoughts stays one.
            self._may_have_moved = self._may_have_moved or not self._is_hidden
            if not is_done:
                # Wait until it has stopped changing.
                self._due_s = self._clock() + SETTLED_S
                return
        if self._may_have_moved:
            self._let_stand()
        if self._is_hidden:
            self._source = "" if is_done else self._source
            self._write([], self._renderer.rows(THINKING) if self._source else [])
            return
        cut = Cut(len(self._source)) if is_done else self._next_cut()
        final = self._rendered(self._source[: cut.at])
        self._go_on_after(cut, bool(final))
        live = [] if is_done else self._rendered(self._source)
        self._write(final, live)
        self._drawn_chars = len(self._source)

    def _let_stand(self) -> None:
        self._may_have_moved = False
        rows, self._rows = self._rows, []
        if not rows or self._is_hidden:
            return
        drawn = self._source[: self._drawn_chars]
        end = Cut(len(drawn)) if self._is_thought else find_cuts(drawn).end
        if self._is_cropped:
            # Some rows were left out for lack of room: only here are rows repeated.
            self._write(self._rendered(drawn[: end.at]), [])
        self._go_on_after(end, True)

    def _next_cut(self) -> Cut:
        """Where to cut the text: what is before it can no longer change."""
        if self._is_thought:
            return Cut(self._source.rfind("\n") + 1)
        cuts = find_cuts(self._source)
        # Rather print a long list or code in parts than only its end.
        is_long = cuts.item.at and len(self._rendered(self._source[cuts.block.at :])) > self._room
        return cuts.item if is_long else cuts.block

    def _go_on_after(self, cut: Cut, has_printed: bool) -> None:
        fence = f"{cut.fence}\n" if cut.fence else ""
        self._source = fence + self._source[cut.at :]
        if has_printed:
            self._has_gap = cut.has_gap

    @property
    def _room(self) -> int:
        """How many rows can be replaced."""
        return max(self._size.height - 2, 1)

    def _rendered(self, source: str) -> list[str]:
        """The rows of the text, after an empty one if there is a gap."""
        if self._is_thought:
            rows = self._renderer.rows(Text(source.removesuffix("\n"), "dim")) if source else []
        else:
            rows = self._renderer.markdown(source)
        return ["", *rows] if self._has_gap and rows else rows

    def _write(self, final: list[str], live: list[str]) -> None:
        """Replace the rows by `final`, which stays, and the last ones of `live`. Unchanged rows are
        not written again."""
        shown = live[-self._room :]
        rows, before = [*final, *shown], self._rows
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
        self._rows, self._is_cropped = shown, len(live) > len(shown)
        self._has_printed = self._has_printed or bool(final)
