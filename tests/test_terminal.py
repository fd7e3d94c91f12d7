"""Output to a terminal: no control characters, no traceback, no incomplete line."""

import fcntl
import os
import struct
import sys
import termios
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxchat.engine.generate import Stats
from mlxchat.terminal import visible
from mlxchat.terminal.figures import stats_line, turn_line
from mlxchat.terminal.messages import Messages, show_error, wrap


@given(st.text())
def test_visible_text_has_no_control_characters_except_tab_and_newline(text: str) -> None:
    shown = visible(text)
    assert not any(ord(c) < 32 and c not in "\t\n" for c in shown)
    assert not any(127 <= ord(c) < 160 for c in shown)
    assert len(shown) == len(text)


def test_escape_sequences_are_shown_and_not_interpreted() -> None:
    assert visible("\x1b[31mred\x07\x9b0m\x7f") == "␛[31mred␇\ufffd0m␡"


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


def test_a_notice_on_a_terminal_fits_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    outer, inner = os.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
    with os.fdopen(inner, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        Messages().note("using the embedded model smollm2")
    assert os.read(outer, 1000) == b"mlxchat: using the embedded\r\nmodel smollm2\r\n"
    os.close(outer)


def test_quiet_keeps_errors_and_requested_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    quiet = Messages(quiet=True)
    quiet.warn("w")
    quiet.note("n")
    quiet.stats("s", None)
    assert capsys.readouterr().err == ""
    quiet.stats("s", True)
    assert capsys.readouterr().err == "s\n"


def test_without_a_terminal_only_warnings_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    messages = Messages()
    messages.warn("w")
    messages.note("n")
    messages.stats("s", None)
    assert capsys.readouterr().err == "mlxchat: w\n"


def test_the_closing_line_shows_every_figure() -> None:
    stats = Stats(
        finish_reason="stop",
        prompt_tokens=4232,
        cached_tokens=0,
        prefilled_tokens=4232,
        generated_tokens=128,
        evicted_tokens=12,
        ttft_s=7.125,
        prefill_tokens_per_s=593.9,
        decode_tokens_per_s=41.25,
        kv_tokens=4360,
        kv_bytes=200_900_000,
        peak_memory_bytes=1_230_000_000,
    )
    assert stats_line(stats) == (
        "prompt 4,232 tokens, 593.9 tok/s · generated 128 tokens, 41.2 tok/s · first token 7.12 s "
        "· KV 4,360 tokens, 201 MB · evicted 12 · peak memory 1.23 GB · finish reason: stop"
    )
    early = replace(
        stats, finish_reason="interrupted", prefilled_tokens=512, generated_tokens=0, ttft_s=0.0
    )
    early = replace(early, kv_tokens=512, evicted_tokens=0, decode_tokens_per_s=0.0)
    # A stage that did not run has no rate. It used to be "0.0 tok/s".
    assert stats_line(early) == (
        "prompt 4,232 tokens, 512 read, 593.9 tok/s · KV 512 tokens, 201 MB · evicted 0 "
        "· peak memory 1.23 GB · finish reason: interrupted"
    )
    assert turn_line(2, early, 3.0) == (
        "turn 2 · 3.00 s · prefilled 512 of 4,232 tokens · finish reason: interrupted"
    )
