"""Thoughts in a chat: shown dim, hidden or turned off, and their effect on the next turn."""

import re
from pathlib import Path

import pytest

from tests.conftest import RunMlxchat
from tests.terminal_chat import CTRL_D, Chat
from tests.thinking_model import ANSWER, THOUGHT, write_thinking_model

pytestmark = pytest.mark.usefixtures("ordinary_terminal")

THOUGHT_SHOWN = f"{re.escape(THOUGHT)}\n\n{ANSWER}"


@pytest.fixture(scope="session")
def thinking_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_thinking_model(tmp_path_factory.mktemp("models") / "thinking")


def test_thoughts_are_dim_hidden_or_turned_off(thinking_model: Path) -> None:
    chat = Chat(str(thinking_model), "--stats")
    chat.says("hello")
    chat.shows(f"^> hello\n{THOUGHT_SHOWN}\nturn 1 [^>]*generated 16,")
    assert f"\x1b[2m{THOUGHT}" in chat.written
    assert f"\x1b[2m{ANSWER}" not in chat.written
    chat.says("/think hide")
    chat.shows("^thoughts: hide$")
    chat.says("hidden")
    chat.shows(f"^> hidden\n{ANSWER}\nturn 2 [^>]*generated 16,")
    chat.says("/think off")
    chat.shows("^thoughts: off$")
    chat.says("none")
    chat.shows(f"^> none\n{ANSWER}\nturn 3 [^>]*generated 4,")
    # The setting belongs to the conversation, whatever the model.
    chat.says(f"/model {thinking_model}")
    chat.says("still none")
    chat.shows(f"^> still none\n{ANSWER}\nturn 4 [^>]*generated 4,")
    chat.says("/think on")
    chat.says("shown")
    chat.shows(f"^> shown\n{THOUGHT_SHOWN}\nturn 5 [^>]*generated 16,")
    chat.send(CTRL_D)
    assert chat.ends() == 0
    assert "think>" not in chat.written


def test_an_interrupted_thought_continues_as_a_thought(thinking_model: Path) -> None:
    """The rest of the thought was shown as the answer, with its closing tag."""
    chat = Chat(str(thinking_model), "-n", "5")
    chat.says("hello")
    chat.shows("^> hello\nHm,$")
    chat.says("/set max-tokens 50")
    chat.says("/continue")
    chat.shows(f"^> /continue\nduck\\?\n\n{ANSWER}$")
    assert "\x1b[2mduck?" in chat.written
    # One more turn, with a reply in two parts.
    chat.says("again")
    chat.shows(f"^> again\n{THOUGHT_SHOWN}$")
    chat.send(CTRL_D)
    assert chat.ends() == 0
    assert "think>" not in chat.written


def test_a_pipe_gets_everything_or_only_the_answer(
    thinking_model: Path, run_mlxchat: RunMlxchat
) -> None:
    def replies(how: str, *arguments: str) -> str:
        arguments = ("-m", str(thinking_model), "--temp", "0", "--think", how, *arguments)
        done = run_mlxchat(*arguments, stdin="hello\nagain\n")
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert replies("on") == f"<think>{THOUGHT}</think>\n\n{ANSWER}\n" * 2
    assert replies("hide") == f"{ANSWER}\n" * 2
    assert replies("off") == f"{ANSWER}\n" * 2
    # Only the beginning of a thought.
    assert replies("hide", "-n", "5") == "\n" * 2
