"""What a person sees on a terminal: no control characters, no traceback, no incomplete line."""

import io
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from mlxchat.chat.state import Turn, Usage
from mlxchat.terminal import progress as module
from mlxchat.terminal import visible
from mlxchat.terminal.figures import draw_window, summary
from mlxchat.terminal.output import Messages, Stdout, show_error, wrap
from mlxchat.terminal.progress import counting, waiting
from mlxchat.units import beginning, format_bytes
from scripts.tiny_model import tiny_config, write_tiny_model
from tests.pseudo_terminal import PseudoTerminal


@given(st.text())
def test_visible_text_has_no_control_characters_except_tab_and_newline(text: str) -> None:
    shown = visible(text)
    assert not any(ord(c) < 32 and c not in "\t\n" for c in shown)
    assert not any(127 <= ord(c) < 160 for c in shown)
    assert len(shown) == len(text)


def test_an_error_is_one_line_whatever_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    show_error("no such file: a\nb\x1b[2J")
    assert capsys.readouterr().err == "mlxchat: error: no such file: a b␛[2J\n"


@pytest.mark.parametrize("columns", [40, 80])
def test_a_message_is_wrapped_between_words_and_commands_stay_whole(columns: int) -> None:
    """The first lines that a new user saw broke inside words: "run `ml", "xchat models list`"."""
    message = (
        "mlxchat: cannot reach https://huggingface.co: check the network, or run `mlxchat models "
        "list` to use a model that is here"
    )
    lines = wrap(message, columns).split("\n")
    assert " ".join(lines) == message
    assert max(map(len, lines)) <= columns
    assert any("`mlxchat models list`" in line for line in lines)


def test_a_line_of_figures_is_wrapped_between_figures() -> None:
    """The closing line of `generate` broke inside a number: "first token 1", "7.69 s"."""
    figures = "prompt 1,061 tokens, 60.0 tok/s · first token 17.69 s · evicted 0"
    assert wrap(figures, 50).split("\n") == [
        "prompt 1,061 tokens, 60.0 tok/s ·",
        "first token 17.69 s · evicted 0",
    ]


def test_without_a_terminal_only_warnings_are_shown_and_figures_on_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for quiet, shown in ((False, "mlxchat: w\n"), (True, "")):
        messages = Messages(quiet=quiet)
        messages.warn("w")
        messages.note("n")
        messages.stats("s", None)
        assert capsys.readouterr().err == shown
        messages.stats("s", True)
        assert capsys.readouterr().err == "s\n"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9994, "9.99 kB"),
        (9996, "10.0 kB"),
        (99_960, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (2_260_000_000, "2.26 GB"),
        (10**16, "10000 TB"),
    ],
)
def test_bytes_are_written_with_three_digits(size_bytes: int, text: str):
    assert format_bytes(size_bytes) == text


def test_only_the_beginning_of_a_long_text_is_shown() -> None:
    """Resuming a session whose last message contained a 20 MB file took minutes to draw."""
    assert beginning("abc", 3) == "abc"
    assert beginning("abcd" * 500, 3) == "abc … (2,000 characters)"


# `mlxchat generate` in a real pseudo-terminal


def test_the_terminal_interprets_nothing_the_model_writes_and_shows_the_figures_below(
    tmp_path: Path,
) -> None:
    """A model with random weights writes every byte at a high temperature, including escape."""
    model = str(write_tiny_model(tmp_path / "m", config=tiny_config(layers=1)))
    command = ["-m", "mlxchat", "generate", "-m", model, "--ignore-eos", "--temp", "50"]
    terminal = PseudoTerminal([sys.executable, *command, "--seed", "1", "-n", "1000", "Hello"])
    assert terminal.ends() == 0
    text, _, figures = terminal.written.rpartition("\r\nprompt ")
    assert " ".join(figures.split()).endswith("finish reason: length")
    # After the bar, if loading took long enough for one.
    text = text.rpartition("\x1b[2K")[2]
    assert {"␛", "␇"} <= set(text)
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text.replace("\r\n", "\n")) is None


# Progress on stderr, while something takes long


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


@pytest.mark.parametrize("columns", ["20", "40", "60"])
def test_the_terminals_ctrl_c_echo_does_not_wrap_the_line(
    columns: str, stderr: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the line was as wide as the terminal, it wrapped and stayed there."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("NO_COLOR", "1")
    with seen_on(stderr), counting("tokenizing", "characters", quiet=False) as bar:
        bar(0, 20_000_000)
        wait_for("tokenizing", stderr)
    drawn = [line for line in re.split(r"\x1b\[\?*\d+\w|[\r\n]", stderr.getvalue()) if line]
    assert 10 < max(map(len, drawn)) <= int(columns) - len("^C^C") - 1


def test_a_bar_shows_the_count_the_rate_and_the_time_left(stderr: Terminal) -> None:
    with seen_on(stderr), counting("reading", "tokens", quiet=False) as bar:
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
        with counting("reading", "tokens", quiet=False) as bar:
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


# The chart of `/context`

TEXTS = [
    "My name is Ada",
    "日本語で答えてください、お願いします。" * 2,
    "👨‍👩‍👧‍👦 and 👍🏽 and ❤️ and 🇩🇪 " * 4,
    "two\nlines\tand a tab \x1b[31m",
    "\u202eright to left\u202c שלום",
    "e\u0301" * 60,
]


def usage(tokens: int = 40, window: int | None = 400) -> tuple[Usage, list[Turn]]:
    turns = [Turn(text) for text in TEXTS]
    return Usage(30, tuple((turn, tokens) for turn in turns), window), turns


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    """Labels were measured in characters, of which Chinese ones take two columns."""
    used, turns = usage()
    lines = list(draw_window(used, turns, 50, columns))
    assert len(lines) == len(TEXTS) + 3
    assert max(map(cell_len, lines)) <= columns
    # Bars begin below one another.
    assert len({line.index("█") for line in lines}) == 1
    assert not any(ord(char) < 0x20 for line in lines for char in line)


@pytest.mark.parametrize("window", [None, 400])
def test_the_numbers_add_up_to_the_total(window: int | None) -> None:
    used, turns = usage(window=window)
    lines = list(draw_window(used, turns, 50, 80))
    numbers = [int(match[0]) for line in lines if (match := re.match(r" *\d+", line))]
    assert sum(numbers) == (window or used.tokens + 50)
    limit = "" if window is None else " of 400"
    assert summary(used, 50, 2).startswith(f"320{limit} tokens · 2 turns forgotten")
