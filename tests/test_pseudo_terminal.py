"""`mlxchat generate` in a real pseudo-terminal: what a user sees and does."""

import re
import sys
from pathlib import Path

import pexpect

from scripts.tiny_model import tiny_config, write_tiny_model


def spawn(model: Path, *arguments: str) -> "pexpect.spawn[str]":
    command = ["-m", "mlxchat", "generate", "-m", str(model), "--ignore-eos", *arguments]
    return pexpect.spawn(
        sys.executable, command, encoding="utf-8", timeout=100, dimensions=(24, 100), echo=False
    )


def screen_of(child: "pexpect.spawn[str]") -> str:
    child.expect(pexpect.EOF)
    child.close()
    assert child.before is not None
    return child.before


def test_a_user_sees_the_text_and_then_the_figures_on_a_separate_line(
    tiny_model: Path,
) -> None:
    child = spawn(tiny_model, "-n", "12", "Hello")
    screen = screen_of(child)
    assert child.exitstatus == 0
    _, figures = screen.split("\r\nprompt ")
    assert figures.endswith("\r\n")
    assert " ".join(figures.split()).endswith("finish reason: length")


def test_the_terminal_interprets_nothing_the_model_writes(tmp_path: Path) -> None:
    """A model with random weights writes every byte at a high temperature, including escape."""
    model = write_tiny_model(tmp_path / "m", config=tiny_config(layers=1))
    child = spawn(model, "-n", "1000", "--temp", "50", "--seed", "1", "--no-stats", "Hello")
    screen = screen_of(child)
    assert "␛" in screen
    assert "␇" in screen
    controls = set(re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", screen.replace("\r\n", "\n")))
    assert controls == set()
