"""The last line of what `mlxchat generate` writes has an end, so that `wc -l` and `read` see it."""

from pathlib import Path

import pytest

from scripts.tiny_model import CHAT_TEMPLATE
from tests.conftest import RunMlxchat
from tests.scripted_model import Scripted
from tests.scripted_program import say_scripts

WHOLE = "One line.\nTwo."


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    say_scripts(monkeypatch)


def model_saying(text: str, directory: Path) -> str:
    return str(Scripted(CHAT_TEMPLATE, (), f"{text}<|im_end|>").write(directory / "model"))


@pytest.mark.parametrize(
    ("text", "options", "written"),
    [
        (WHOLE, [], f"{WHOLE}\n"),
        (f"{WHOLE}\n", [], f"{WHOLE}\n"),
        ("", [], ""),
        (WHOLE, ["-n", "3"], "One\n"),
        (WHOLE, ["--stop", "Two"], "One line.\n"),
    ],
)
def test_the_output_ends_with_one_newline(
    text: str, options: list[str], written: str, run_mlxchat: RunMlxchat, tmp_path: Path
) -> None:
    """`generate … | while read line` lost the last line. It is the same in a file."""
    arguments = ["generate", "-m", model_saying(text, tmp_path), *options]
    done = run_mlxchat(*arguments, "Hello")
    assert (done.returncode, done.stdout, done.stderr) == (0, written, "")
    done = run_mlxchat(*arguments, "-o", str(tmp_path / "out.txt"), "Hello")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "out.txt").read_text() == written


def test_a_checkpoints_output_is_the_text_alone_whenever_it_is_resumed(
    run_mlxchat: RunMlxchat, tmp_path: Path
) -> None:
    """A newline written at the end of the first part would have to be in the middle of the whole,
    or be missing if the process died right before it."""
    # Without the prompt's last token, which the script would take for one of the reply.
    whole, night = WHOLE.replace("\n", " "), str(tmp_path / "night")
    model = model_saying(whole, tmp_path)
    begun = run_mlxchat("generate", "-m", model, "-n", "4", "--checkpoint", night, "Hello")
    assert (begun.returncode, begun.stderr) == (0, "")
    assert (tmp_path / "night/output.txt").read_text() == whole[:4]
    resumed = run_mlxchat("generate", "--resume", night, "-n", "-1")
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert (tmp_path / "night/output.txt").read_text() == whole
