"""Shows a model's reply while it streams: plain, or as Markdown on a terminal.

The caller knows which text is a thought; `reply_segments` decides which rows are final. Text from
the model is made visible here, so that the terminal obeys none of its control characters.
"""

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, Protocol, Self

from rich.console import Console

from mlxchat.errors import OutputError
from mlxchat.handlers import undisturbed
from mlxchat.terminal import visible
from mlxchat.terminal.continued import when_continued
from mlxchat.terminal.live_rows import LiveRows
from mlxchat.terminal.reply_segments import Answer, HiddenThoughts, Renderer, Thoughts
from mlxchat.terminal.text_output import Stdout
from mlxchat.text.thinking import OuterWhitespace

Thinking = Literal["on", "hide"]

REFRESH_S = 1 / 12
# Drawing takes at most a fifth of the time, however long the unfinished part is.
REST_PER_DRAWING = 4


def reply_view(
    *, plain: bool, thinking: Thinking, is_json: bool = False
) -> "MarkdownView | PlainView":
    """Return a view on stdout: plain if requested, or if stdout cannot move a cursor.

    Raises OutputError.
    """
    stdout = Stdout(is_json=is_json)
    console = Console(file=sys.stdout)
    moves_cursor = stdout.is_terminal and console.is_terminal and not console.is_dumb_terminal
    if plain or not moves_cursor or not os.environ.get("TERM"):
        return PlainView(stdout, thinking)
    return MarkdownView(console, thinking)


# While the terminal is resized, nothing is drawn for this time after each change.
SETTLED_S = 0.25


class TextSink(Protocol):
    """The destination of a plain reply; `write` must flush."""

    def write(self, text: str, /) -> object: ...


class _View(ABC):
    """A reply in progress. Leaving the context finishes it, unless writing it failed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, OutputError):
            self.finish()

    @abstractmethod
    def add(self, text: str, thought: bool = False) -> None: ...

    @abstractmethod
    def begin_another_thought(self) -> None:
        """Separate the next text from the thought before it."""

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
                # Another thought has its own leading whitespace.
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
    """Renders a growing reply as Markdown, on a terminal that can move its cursor.

    Text that can no longer change is printed once and scrolls away. The rest, at most a screenful,
    is redrawn no more often than every REFRESH_S. Between calls the cursor is visible and below the
    text, so that an exception leaves the terminal sane wherever it is raised; `finish`, or leaving
    the context, prints all that is left. Raises OutputError.
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
        self._console, self._size = console, console.size
        self._trim = OuterWhitespace()
        self._thinking: Thinking = thinking
        self._part: Thoughts | HiddenThoughts | Answer = self._thoughts()
        self._is_apart = False
        self._due_s = 0.0

    def __enter__(self) -> Self:
        self._continued = when_continued(self._screen.stand)
        self._continued.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._continued.__exit__(*raised)
        super().__exit__(*raised)

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
            rest_s = max(REFRESH_S, REST_PER_DRAWING * (ended_s - begun_s))
            self._due_s = max(self._due_s, ended_s + rest_s)

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
            self._part = Answer(follows_text=self._screen.has_printed)

    def _draw(self, is_done: bool = False) -> None:
        if self._console.size != self._size and not is_done:
            # Wait until it has stopped changing.
            self._size, self._due_s = self._console.size, self._clock() + SETTLED_S
            return
        step = self._part.step(self._renderer, is_done)
        # No signal may separate what is written from the record of it.
        with undisturbed():
            if self._renderer.width != self._console.width and (step.final or not step.live):
                # What follows has the terminal's new width.
                self._screen.draw(step.final, [])
                self._part, self._renderer.width = step.rest, self._console.width
                step = self._part.step(self._renderer, is_done)
            self._screen.draw(step.final, step.live)
            self._part = step.rest
