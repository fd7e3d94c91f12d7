"""A dozen commands of README.md and the manual run as a reader would run them; `test_help` parses
them all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.tiny_model import tiny_config, write_tiny_model
from tests import docs

DOCUMENT_BYTES = 1500

RUN = [
    'mlxchat "Why is the sky blue?"',
    "mlxchat --session holidays",
    "mlxchat session search whale",
    "mlxchat session verify spain",
    'cat report.txt | mlxchat generate "Summarize this in three sentences."',
    'mlxchat generate -f a.md -f b.md -n 300 "What do these two disagree on?"',
    'mlxchat generate --block a.md --block b.md "Which of the two is newer?"',
    'mlxchat generate --choice positive --choice negative "Is this review positive? It sank."',
    "mlxchat batch prompts.jsonl -o answers.jsonl",
    "mlxchat cache list",
    "mlxchat config set chat.max-kv-size 4096",
    "mlxchat models list --all",
]


def test_the_commands_run_one_after_another(
    tmp_path: Path, temporary_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config() | {"max_position_embeddings": 16 * DOCUMENT_BYTES}
    monkeypatch.setenv("MLXCHAT_MODEL", str(write_tiny_model(tmp_path / "tiny", config=config)))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    for command in ("CHAT", "GENERATE", "BATCH"):
        monkeypatch.setenv(f"MLXCHAT_{command}_MAX_TOKENS", "8")
    for name in ("report.txt", "a.md", "b.md"):
        (tmp_path / name).write_text("All about whales. " * (DOCUMENT_BYTES // 18))
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "prompt": "Hello"}\n')
    assert {*RUN} <= {*docs.commands()}
    for command in RUN:
        ready = "mlxchat session rename holidays spain; " if "spain" in command else ""
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", ready + command],
            cwd=tmp_path,
            input="Tell me of a whale.\n" if "--session" in command else "",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert done.stdout or "set" in command or "-o" in command, command
        assert "mlxchat: error" not in done.stderr
    assert (tmp_path / "answers.jsonl").read_text().count("\n") == 1
