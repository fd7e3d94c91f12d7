"""A terminal in this process: `mlxchat` reads keys from it and draws on it, as on a real one.

What only a real one has, job control and the kernel's signals and settings, is for `smoke`."""

import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyte
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output

from mlxchat import cli

# So wide that no path of a temporary directory is cut off.
COLUMNS, LINES = 200, 40
CTRL_C, CTRL_D, CTRL_G, CTRL_U, LEFT = "\x03", "\x04", "\x07", "\x15", "\x1b[D"
PROMPT = "^>$"

# A pattern for the screen, with `^` and `$` for line ends, and keys to type then, or what to do.
Step = tuple[str, str | Callable[[], object]]


class _Output(Vt100_Output):
    """Knows where the cursor is, which a real terminal has to be asked."""

    def __init__(self, terminal: "Terminal") -> None:
        super().__init__(
            terminal,
            lambda: Size(LINES, COLUMNS),
            term="xterm",
            default_color_depth=ColorDepth.from_env(),
            enable_cpr=False,
        )
        self._terminal = terminal

    def get_rows_below_cursor_position(self) -> int:
        return LINES - self._terminal.row


class Terminal(io.StringIO):
    """What is written to it is drawn on a screen. The steps are taken in turn."""

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        super().__init__()
        self._screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.Stream(self._screen)
        self._steps = list(steps)
        self._lock = threading.RLock()
        self.written = ""
        self.type: Callable[[str], object] = lambda _: None
        self.hang_up: Callable[[], object] = lambda: None

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            self.written += text
            self._stream.feed(re.sub("\r?\n", "\r\n", text))
        return len(text)

    def flush(self) -> None:
        with self._lock:
            while self._steps and re.search(self._steps[0][0], self.text(), re.MULTILINE):
                _, act = self._steps.pop(0)
                if isinstance(act, str):
                    self.type(act)
                else:
                    act()

    @property
    def row(self) -> int:
        return self._screen.cursor.y

    def text(self) -> str:
        """The lines on the screen, without empty ones at its end."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip("\n")

    def check_all_steps_are_taken(self) -> None:
        assert not self._steps, f"{self._steps[0][0]!r} is not on the screen:\n{self.text()}"

    @contextmanager
    def opened(self) -> Iterator[pytest.MonkeyPatch]:
        """The standard streams, and what prompt_toolkit uses, are this terminal."""
        with create_pipe_input() as pipe, pytest.MonkeyPatch.context() as patch:
            # Invalid bytes are lone surrogates.
            self.type = lambda text: pipe.send_bytes(text.encode("utf-8", "surrogateescape"))
            self.hang_up = pipe.close
            patch.setenv("TERM", "xterm-256color")
            for name in ("stdin", "stdout", "stderr"):
                patch.setattr(sys, name, self)
            patch.setenv("COLUMNS", str(COLUMNS))
            patch.setenv("LINES", str(LINES))
            try:
                with create_app_session(input=pipe, output=_Output(self)):
                    self.flush()
                    yield patch
            finally:
                # Shown if the test fails.
                print(self.text(), file=sys.__stdout__)


def on_terminal(*arguments: str, steps: Sequence[Step]) -> tuple[int, Terminal]:
    """Run the program; returns its exit status and the terminal. All steps must be taken."""
    terminal = Terminal(steps)
    with terminal.opened() as patch:
        patch.setattr(sys, "argv", ["mlxchat", *arguments])
        patch.setattr(cli, "_exit", sys.exit)
        with pytest.raises(SystemExit) as ended:
            cli.main()
    terminal.check_all_steps_are_taken()
    assert isinstance(ended.value.code, int)
    return ended.value.code, terminal


def interrupt() -> None:
    """As the kernel does for a key that is not read as one."""
    os.kill(os.getpid(), signal.SIGINT)
