"""What the README and the manual say can be typed: a dozen commands run, and so do the examples in
Python."""

import re
from pathlib import Path
from typing import Any

import pytest

import mlxchat
from mlxchat.models.load import load
from mlxchat.models.resolve import resolve_model
from scripts.tiny_model import tiny_config, write_tiny_model
from tests import docs
from tests.in_process import run_in_process

RUN = [
    'mlxchat "Why is the sky blue?"',
    "mlxchat --session holidays",
    "mlxchat session search whale",
    'cat report.txt | mlxchat generate "Summarize this in three sentences."',
    'mlxchat generate -f a.md -f b.md -n 300 "What do these two disagree on?"',
    'mlxchat generate --block a.md --block b.md "Which of the two is newer?"',
    'mlxchat generate --choice positive --choice negative "Is this review positive? It sank."',
    "mlxchat batch prompts.jsonl -o answers.jsonl",
    "mlxchat cache size",
    "mlxchat config set chat.max-kv-size 4096",
    "mlxchat models list --all",
]


def test_a_dozen_documented_commands_run_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {*RUN} <= {*docs.commands()}
    config = tiny_config(layers=1) | {"max_position_embeddings": 24_000}
    monkeypatch.setenv("MLXCHAT_MODEL", str(write_tiny_model(tmp_path / "tiny", config=config)))
    for command in ("CHAT", "GENERATE", "BATCH"):
        monkeypatch.setenv(f"MLXCHAT_{command}_MAX_TOKENS", "12")
    monkeypatch.chdir(tmp_path)
    whales = "All about whales. " * 9
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text(whales)
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "prompt": "Hello"}\n')
    for command in RUN:
        (words,) = docs.called(command)
        piped = whales if command.startswith("cat") or "--session" in words else None
        done = run_in_process(*words, stdin=piped)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert done.stdout or "set" in command or "-o" in command, command
    assert (tmp_path / "answers.jsonl").read_text().count("\n") == 1


def test_the_examples_in_python_run(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a tiny model instead of the embedded one, with a limit on generated tokens."""

    def resolve_tiny(name: str | None, **options: Any) -> Any:
        # A resumed run or session names the directory of its model.
        return resolve_model(str(tiny_model) if name == "smollm2" else name, **options)

    few = mlxchat.GenerationSettings(max_tokens=5)
    monkeypatch.setattr(mlxchat, "load", lambda _: load(str(tiny_model)), raising=False)
    monkeypatch.setattr("mlxchat.engine.reply.GenerationSettings", lambda: few)
    monkeypatch.setattr("mlxchat.app.opening.resolve_model", resolve_tiny)
    names: dict[str, Any] = {"report": "All about boats. "}
    names |= {name: tmp_path / name for name in ("directory", "night", "prompts", "answers")}
    names["prompts"].write_text('{"text": "Hello"}\n{"text": "Bye"}\n')
    examples = re.findall(r"```python\n(.*?)```", docs.text(), flags=re.DOTALL)
    assert len(examples) >= 6
    for example in examples:
        exec(compile(example, "example", "exec"), names)
    assert len(names["answers"].read_text().splitlines()) == 2
