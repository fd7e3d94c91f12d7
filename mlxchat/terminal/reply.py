"""Shows a model's reply while it streams: as it is, or as Markdown on a terminal.

What of thinking and answer is final is `reply_segments`' business; which text is which is told.
Text from the model is made visible here, so that no control character in it is obeyed.
"""

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, Protocol, Self

from rich.console import Console

from mlxchat.errors import OutputError
from mlxchat.handlers import undisturbed
from mlxchat.terminal import visible
from mlxchat.terminal.live_rows import LiveRows
from mlxchat.terminal.reply_segments import Answer, HiddenThoughts, Renderer, Thoughts
from mlxchat.terminal.text_output import Stdout
from mlxchat.text.thinking import OuterWhitespace

Thinking = Literal["on", "hide"]

REFRESH_S = 1 / 12
# At most a fifth of the time goes into drawing, however long the part that may still change.
REST_PER_DRAWING = 4


def reply_view(*, plain: bool, thinking: Thinking) -> "MarkdownView | PlainView":
    """Return a view on stdout: plain if asked for, or if stdout cannot move a cursor.

    Raises OutputError.
    """
    stdout = Stdout()
    console = Console(file=sys.stdout)
    moves_cursor = stdout.is_terminal and console.is_terminal and not console.is_dumb_terminal
    if plain or not moves_cursor or not os.environ.get("TERM"):
        return PlainView(stdout, thinking)
    return MarkdownView(console, thinking)


class TextSink(Protocol):
    """What a plain reply is written to; whoever implements it flushes."""

    def write(self, text: str, /) -> object: ...


class _View(ABC):
    """A reply as it comes. Leaving the context finishes it, unless it could not be written."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, OutputError):
            self.finish()

    @abstractmethod
    def add(self, text: str, thought: bool = False) -> None: ...

    @abstractmethod
    def begin_another_thought(self) -> None:
        """Show what follows apart from the thought before it."""

    @abstractmethod
    def finish(self) -> None: ...


class PlainView(_View):
    """Writes the reply as it comes. `finish` ends the last line."""

    def __init__(self, sink: TextSink, thinking: Thinking = "on") -> None:
        self._sink = sink
        self._shows_thinking = thinking == "on"
        self._thoughts = OuterWhitespace()
        self._shown: bool | None = None
        self._is_apart = False
        self._last = "\n"

    def add(self, text: str, thought: bool = False) -> None:
        if thought:
            text = self._thoughts.add(text) if self._shows_thinking else ""
        if text and (self._shown is not thought or self._is_apart):
            if self._shown is not None:
                self._write("\n\n")
            self._shown, self._is_apart = thought, False
            if not thought:
                # Another thought begins with blanks of its own.
                self._thoughts = OuterWhitespace()
        self._write(text)

    def begin_another_thought(self) -> None:
        self._is_apart = self._shows_thinking
        self._thoughts = OuterWhitespace()

    def finish(self) -> None:
        if self._last != "\n":
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            self._sink.write(visible(text))
            self._last = text[-1]


class MarkdownView(_View):
    """Renders the reply as Markdown while it grows, on a terminal that can move its cursor.

    What can no longer change is printed once and left to scroll. The rest, no more of it than
    fits on the screen, is drawn anew at most every REFRESH_S. Between two calls the cursor is
    shown and below the text, so an exception leaves the terminal sane wherever it is raised;
    leaving the context, or `finish`, prints all that is left. Raises OutputError.
    """

    def __init__(
        self,
        console: Console,
        thinking: Thinking = "on",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._renderer = Renderer(console)
        self._screen = LiveRows(console)
        self._trim = OuterWhitespace()
        self._thinking: Thinking = thinking
        self._part: Thoughts | HiddenThoughts | Answer = self._thoughts()
        self._is_apart = False
        self._due_s = 0.0

    def add(self, text: str, thought: bool = False) -> None:
        if thought and text:
            self._begin_thought()
            self._part = self._part.more(visible(self._trim.add(text)))
        elif text:
            self._begin_answer()
            self._part = self._part.more(visible(text))
        begun_s = self._clock()
        if begun_s >= self._due_s:
            self._draw()
            ended_s = self._clock()
            self._due_s = ended_s + max(REFRESH_S, REST_PER_DRAWING * (ended_s - begun_s))

    def begin_another_thought(self) -> None:
        self._is_apart = True

    def finish(self) -> None:
        self._draw(is_done=True)

    def _thoughts(self, above: str = "") -> Thoughts | HiddenThoughts:
        return Thoughts(above) if self._thinking == "on" else HiddenThoughts()

    def _begin_thought(self) -> None:
        if isinstance(self._part, Answer) or self._is_apart:
            self._draw(is_done=True)
            above = "\n" if self._screen.has_printed else ""
            self._part, self._trim = self._thoughts(above), OuterWhitespace()
            self._is_apart = False

    def _begin_answer(self) -> None:
        if not isinstance(self._part, Answer):
            self._draw(is_done=True)
            self._part = Answer(is_behind=self._screen.has_printed)

    def _draw(self, is_done: bool = False) -> None:
        step = self._part.step(self._renderer, is_done)
        # No signal comes between what is written and the memory of it.
        with undisturbed():
            self._screen.draw(step.final, step.live)
            self._part = step.rest
