"""Progress on stderr, on a terminal, while something takes long."""

import io
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pyte
import pytest

from mlxchat.terminal import progress as module
from mlxchat.terminal.messages import Messages, show_error
from mlxchat.terminal.progress import progress, waiting
from mlxchat.terminal.text_output import Stdout


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch, ordinary_terminal: None) -> Terminal:
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    monkeypatch.setenv("COLUMNS", "60")
    return Terminal()


@contextmanager
def seen_on(terminal: Terminal) -> Iterator[None]:
    """Call this in the test's body: before that, pytest replaces stderr."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        yield


def wait_for(text: str, terminal: Terminal) -> None:
    deadline_s = time.monotonic() + 5
    while text not in terminal.getvalue():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_line_is_drawn_while_waiting(stderr: Terminal) -> None:
    with seen_on(stderr), waiting("loading a\x1b[31m …", quiet=False):
        wait_for("loading a␛[31m …", stderr)
    # Erased, with the cursor shown again.
    assert stderr.getvalue().endswith("\r\x1b[1A\x1b[2K")


def test_a_dumb_terminal_gets_a_plain_line(
    stderr: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with seen_on(stderr), waiting("loading", quiet=False):
        wait_for("loading\n", stderr)
    assert stderr.getvalue() == "loading\n"


@pytest.mark.parametrize("columns", ["20", "40", "60"])
def test_the_terminals_ctrl_c_echo_does_not_wrap_the_line(
    columns: str, stderr: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the line was as wide as the terminal, it wrapped and stayed there."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("NO_COLOR", "1")
    with seen_on(stderr), progress("tokenizing", "characters", quiet=False) as bar:
        bar(0, 20_000_000)
        wait_for("tokenizing", stderr)
    drawn = [line for line in re.split(r"\x1b\[\?*\d+\w|[\r\n]", stderr.getvalue()) if line]
    assert 10 < max(map(len, drawn)) <= int(columns) - len("^C^C") - 1


def test_a_bar_shows_the_count_the_rate_and_the_time_left(stderr: Terminal) -> None:
    with seen_on(stderr), progress("reading", "tokens", quiet=False) as bar:
        bar(0, 1_000)
        wait_for("reading 0/1,000 tokens", stderr)
        bar(10, 1_000)
        wait_for("reading 10/1,000 tokens · ", stderr)
    assert re.search(r"reading 10/1,000 tokens · [\d.]+ tokens/s · \d:\d\d left", stderr.getvalue())


def test_text_messages_and_progress_never_share_a_line(stderr: Terminal) -> None:
    """A warning continued the line of the answer, and the answer that of the bar."""
    with seen_on(stderr), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stderr)
        answer = Stdout()
        with progress("reading", "tokens", quiet=False) as bar:
            bar(1, 4)
            wait_for("4 tokens", stderr)
            answer.write('{"event": "section"}\n')
            bar(2, 4)
            wait_for("2/4 tokens", stderr)
            answer.write("An answer")
            Messages().warn("the disk is full")
            answer.write(" goes on.")
            show_error("cannot write")
    screen = pyte.Screen(60, 9)
    pyte.Stream(screen).feed(stderr.getvalue().replace("\n", "\r\n"))
    assert [line.rstrip() for line in screen.display if line.strip()] == [
        '{"event": "section"}',
        "An answer",
        "mlxchat: the disk is full",
        " goes on.",
        "mlxchat: error: cannot write",
    ]
