"""What a person sees on a terminal: no control characters, no traceback, no incomplete line."""

import re
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from mlxchat.chat.state import State, Turn, Usage
from mlxchat.manual import read_page
from mlxchat.terminal import progress, visible
from mlxchat.terminal.figures import draw_window
from mlxchat.terminal.output import Messages, Stdout, show_error, wrap
from mlxchat.terminal.progress import counting, terminal_question, waiting
from mlxchat.terminal.table import format_table, render_page
from mlxchat.units import format_bytes
from scripts.tiny_model import tiny_config, write_tiny_model
from tests.in_process import run_in_process
from tests.terminal import Terminal, on_terminal
from tests.test_signals import wait_until


@given(st.text())
def test_visible_text_has_no_control_characters_except_tab_and_newline(text: str) -> None:
    shown = visible(text)
    assert not any(ord(c) < 32 and c not in "\t\n" for c in shown)
    assert not any(127 <= ord(c) < 160 for c in shown)
    assert len(shown) == len(text)


def test_a_message_is_wrapped_between_words_commands_and_figures() -> None:
    message = "mlxchat: cannot reach the hub: run `mlxchat models list` to use one that is here"
    assert wrap(message, 40).split("\n") == [
        "mlxchat: cannot reach the hub: run",
        "`mlxchat models list` to use one that is",
        "here",
    ]
    assert wrap("/undo  undo the last turn", 18, indent=7) == "/undo  undo the\n       last turn"
    assert wrap(f"> {'書' * 18}。`書 書`", 38, indent=2) == f"> {'書' * 17}\n  書。`書 書`"
    figures = "prompt 1,061 tokens, 60.0 tok/s · first token 17.69 s · evicted 0"
    assert wrap(figures, 25).split("\n")[:2] == ["prompt 1,061 tokens, 60.0", "tok/s ·"]
    assert wrap(figures, 50) == "prompt 1,061 tokens, 60.0 tok/s ·\nfirst token 17.69 s · evicted 0"


def test_without_a_terminal_only_warnings_are_shown_and_figures_on_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for quiet, shown in ((False, "mlxchat: w\n"), (True, "")):
        messages = Messages(quiet=quiet)
        messages.warn("w")
        messages.note("n")
        messages.stats("s", None)
        assert capsys.readouterr() == ("", shown)
        messages.stats("s", True)
        assert capsys.readouterr() == ("", "s\n")


def test_bytes_are_written_with_three_digits() -> None:
    written = ["0 B", "1.00 kB", "10.0 kB", "999 kB", "1.00 MB", "10000 TB"]
    assert [*map(format_bytes, (0, 1000, 9996, 999_499, 999_500, 10**16))] == written


# `mlxchat` on a terminal


@pytest.mark.usefixtures("terminal")
def test_what_the_model_writes_controls_nothing_and_the_figures_are_below(tmp_path: Path) -> None:
    """A model with random weights writes every byte at a high temperature, including escape."""
    model = str(write_tiny_model(tmp_path / "m", config=tiny_config(layers=1)))
    run = ("generate", "-m", model, "--ignore-eos", "--temp", "50", "--seed", "1", "-n", "600")
    status, terminal = on_terminal(*run, "Hello", steps=[])
    text, _, figures = terminal.written.rpartition("\nprompt ")
    assert (status, figures.endswith("finish reason: length\n")) == (0, True)
    # After the bar, if loading took long enough for one.
    text = text.rpartition("\x1b[2K")[2]
    assert {"␛", "␇"} <= set(text)
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text) is None
    # Only text that is not seen is counted.
    _, unseen = on_terminal(*run, "-o", str(tmp_path / "out"), "Hello", steps=[])
    assert ["tokens/s" in each.written for each in (terminal, unseen)] == [False, True]


def test_a_page_is_plain_in_a_pipe_and_opens_in_the_pager_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paged: list[str] = []
    monkeypatch.setattr("pydoc.pager", paged.append)
    assert run_in_process("help", "Window").stdout == read_page("window")
    assert run_in_process("help", "").stdout.startswith("Pages:\n")
    assert run_in_process("help", "session", "rm").stdout.startswith("Usage: mlxchat session rm ")
    assert (paged, "…" in render_page(read_page("sampling"), 40)) == ([], False)
    assert "    mlxchat generate --schema invoice.json -f" in render_page(read_page("answers"), 40)
    status, terminal = on_terminal("help", "window", steps=[])
    assert (status, terminal.written) == (0, "")
    assert paged == [render_page(read_page("window"), 100)]
    assert max(map(len, re.sub(r"\x1b\[[\d;]*m", "", paged[0]).splitlines())) <= 100
    monkeypatch.setenv("COLUMNS", "40")
    drawn = format_table(("KEY", "IS"), [["generate.think-budget", "off " * 9]], for_terminal=True)
    assert "KEY: generate.think-budget\nIS: off off" in drawn


# Progress on stderr, while something takes long


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, ordinary_terminal: None) -> Terminal:
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    return Terminal()


@pytest.mark.parametrize("columns", [32, 60])
def test_the_terminals_ctrl_c_echo_does_not_wrap_the_line(columns: int, terminal: Terminal) -> None:
    """If the line was as wide as the terminal, it wrapped and was not erased."""
    with terminal.opened() as patch:
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("NO_COLOR", "1")
        with counting("tokenizing", "characters", quiet=False) as bar:
            bar(1, 20_000_000)
            wait_until(lambda: "tokenizing 1/20,000,000" in terminal.written)
            assert ("000 c" in terminal.written) == (columns == 60)
        with waiting("a\x1b[31m …", quiet=False):
            wait_until(lambda: "a␛[31m …" in terminal.written)
    assert terminal.text() == ""
    drawn = [line for line in re.split(r"\x1b\[\?*\d+\w|[\r\n]", terminal.written) if line.strip()]
    assert 10 < max(map(len, drawn)) <= columns - len("^C^C") - 1


def test_text_messages_errors_and_progress_have_one_line_each(terminal: Terminal) -> None:
    with terminal.opened():
        answer = Stdout()
        with counting("reading", "tokens", quiet=False) as bar:
            bar(0, 1_000)
            wait_until(lambda: "reading 0/1,000 tokens" in terminal.written)
            answer.write('{"event": "section"}\n')
            bar(10, 1_000)
            wait_until(lambda: "reading 10/1,000 tokens · " in terminal.written)
            answer.write("An answer")
            bar(20, 1_000)
            threading.Event().wait(0.1)
            assert "reading 20/" not in terminal.written
            Messages().warn("the disk is full")
            answer.write(" goes on.")
            show_error("cannot write a\nb\x1b[2J")
    assert re.search(r"10/1,000 tokens · [\d:]+ left · [\d,.]+ tokens/s", terminal.written)
    assert [line for line in terminal.text().split("\n") if line] == [
        '{"event": "section"}',
        "An answer",
        "mlxchat: the disk is full",
        " goes on.",
        "mlxchat: error: cannot write a b␛[2J",
    ]


@pytest.mark.parametrize(
    ("answer", "agrees"), [("\n", True), ("Yes\n", True), ("n\n", False), ("", False)]
)
def test_only_who_answers_agrees(answer: str, agrees: bool, terminal: Terminal) -> None:
    with terminal.opened() as patch:
        patch.setattr(terminal, "readline", lambda: answer)
        assert (ask := terminal_question()) is not None
        assert ask("Download 2 GB?") is agrees
    assert terminal.text() == "Download 2 GB? [Y/n]"


# The chart of `/context`

TEXTS = [
    "My name is Ada",
    "日本語で答えてください、お願いします。" * 2,
    "👨‍👩‍👧‍👦 and 👍🏽 and ❤️ and 🇩🇪 " * 4,
    "two\nlines\tand a tab \x1b[31m",
    "\u202eright to left\u202c שלום",
    "e\u0301" * 60,
]


@pytest.mark.parametrize(("columns", "window"), [(20, None), (40, 400), (80, None), (200, 400)])
def test_no_line_is_too_wide_and_numbers_add_up(columns: int, window: int | None) -> None:
    """Labels were measured in characters, of which Chinese ones take two columns."""
    turns = tuple(Turn(text) for text in TEXTS)
    usage = Usage(30, tuple((turn, 40) for turn in turns), window)
    lines = list(draw_window(usage, State(turns=turns), 50, columns))
    assert len(lines) == len(TEXTS) + (2 if window is None else 3)
    assert max(map(cell_len, lines)) <= columns
    # Bars begin below one another.
    assert len({line.index("█") for line in lines}) == 1
    assert not any(ord(char) < 0x20 for line in lines for char in line)
    numbers = [int(match[0]) for line in lines if (match := re.match(r" *\d+", line))]
    assert sum(numbers) == (window or 30 + 40 * len(turns) + 50)
