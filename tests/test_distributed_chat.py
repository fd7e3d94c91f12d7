"""A chat under MLX's launcher, from the launcher's terminal."""

import re
import sys
from pathlib import Path

import pytest

from mlxchat.sessions.listing import read_session
from scripts.tiny_model import write_tiny_model
from tests.launched import under_mlx_launch
from tests.pseudo_terminal import PseudoTerminal
from tests.test_distributed import CONFIGS

CTRL_C, CTRL_D, PROMPT = "\x03", "\x04", "^>$"


class LaunchedChat(PseudoTerminal):
    """`mlx.launch -n 2 -- mlxchat` at its first prompt."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "mlxchat", *arguments]
        super().__init__(under_mlx_launch(2, command), columns=90, lines=60)
        self.shows(PROMPT)

    def says(self, text: str) -> None:
        self.send(f"{text}\r")
        self.shows(f"^> {re.escape(text)}")
        self.shows(PROMPT)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("chat") / "llama", config=CONFIGS["llama"]))


@pytest.mark.slow
@pytest.mark.usefixtures("ordinary_terminal")
def test_a_chat_under_the_launcher_retries_forgets_is_interrupted_and_saved(
    model: str, temporary_home: Path
) -> None:
    options = ["-m", model, "--temp", "0", "--max-kv-size", "200", "-n", "12", "--session", "far"]
    chat = LaunchedChat(*options)
    chat.says("one")
    chat.says("/retry")
    chat.says("two")
    chat.send("/undo\r")
    chat.shows("^> two\n+.*\n*\\Z")
    chat.send(CTRL_C)
    chat.shows(PROMPT)
    chat.says("three is a longer one, so that something has to go")
    chat.says("four is a longer one too, so that something has to go")
    chat.shows("forgotten")
    chat.send(CTRL_D)
    assert chat.ends() == 0
    assert "Traceback" not in chat.written
    assert "WARN" not in chat.written
    # Only one of the two processes saves.
    assert len(list(temporary_home.rglob("sessions.db"))) == 1
    assert [turn.user for turn in read_session("far").turns] == [
        "one",
        "three is a longer one, so that something has to go",
        "four is a longer one too, so that something has to go",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("ordinary_terminal")
def test_ctrl_c_ends_the_reply_but_not_the_chat_under_the_launcher(model: str) -> None:
    chat = LaunchedChat("-m", model, "--temp", "0", "--no-save", "--plain", "-n", "-1")
    chat.send("go on for ever\r")
    # While the model is loading there is no reply, and Ctrl-C would take back the message.
    chat.shows("^> go on for ever\n(?!.*(?:loading|reading)).*\\S")
    chat.send(CTRL_C)
    chat.shows("^stopped$")
    chat.shows(PROMPT)
    chat.says("/window")
    chat.send(CTRL_D)
    assert chat.ends() == 0
    assert "Traceback" not in chat.written
    assert "WARN" not in chat.written
