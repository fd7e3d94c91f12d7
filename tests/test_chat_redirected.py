"""A chat in a terminal whose stdout or stderr goes elsewhere: stdout gets the replies alone."""

import shlex
import sys
from pathlib import Path

import pytest

from scripts.tiny_model import CHAT_TEMPLATE
from tests.pseudo_terminal import PseudoTerminal
from tests.scripted_model import Scripted
from tests.terminal_chat import CTRL_D, PROMPT

pytestmark = pytest.mark.usefixtures("ordinary_terminal")


@pytest.fixture
def program(tmp_path: Path) -> str:
    """The chat as a shell runs it, with a model that says "Yes!"."""
    model = Scripted(CHAT_TEMPLATE, (), "Yes!<|im_end|>").write(tmp_path / "model")
    command = [sys.executable, "-m", "tests.scripted_program", "-m", str(model), "--temp", "0"]
    return shlex.join(command)


def test_a_log_has_the_replies_and_the_screen_has_everything(program: str, tmp_path: Path) -> None:
    """The prompt, drawn with all its escape sequences, went into the log and garbled the screen."""
    chat = PseudoTerminal(["sh", "-c", f"{program} --stats | tee log"], cwd=tmp_path, columns=150)
    chat.shows(PROMPT)
    # Typed with a mistake that is edited.
    chat.send("helo\x7flo\r")
    chat.shows("^> hello\nYes!\nturn 1 .*\n>$")
    chat.send("/system Be kind.\r")
    chat.shows("^system prompt: Be kind.\n")
    chat.send("and again\r")
    chat.shows("^> and again\nYes!\n+turn 2 ")
    chat.shows(PROMPT)
    chat.send(CTRL_D)
    assert chat.ends() == 0
    assert (tmp_path / "log").read_text() == "Yes!\nYes!\n"


@pytest.mark.parametrize(
    ("redirection", "log", "on_screen"),
    [
        ("> log", "Yes!\n", "^> hello\n+turn 1 "),
        ("> log 2> err", "Yes!\n", "^> hello\n+>"),
        ("2> err", "", "^> hello\nYes!\n+>"),
    ],
)
def test_whatever_is_redirected_the_prompt_is_on_the_terminal(
    redirection: str, log: str, on_screen: str, program: str, tmp_path: Path
) -> None:
    arguments = f"{program} --stats {redirection}"
    chat = PseudoTerminal(["sh", "-c", arguments], cwd=tmp_path)
    chat.shows(PROMPT)
    chat.send("hello\r")
    chat.shows(on_screen)
    chat.send(CTRL_D)
    assert chat.ends() == 0
    if log:
        assert (tmp_path / "log").read_text() == log
    if "err" in redirection:
        assert (tmp_path / "err").read_text().startswith("turn 1 ")
