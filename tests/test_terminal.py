"""Output to a terminal: no control characters, no traceback, no incomplete line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxchat.terminal import visible
from mlxchat.terminal.messages import Messages, show_error, wrap


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
