"""The Python examples of README.md and the manual, run in order."""

import re
from pathlib import Path
from typing import Any

import pytest

import mlxchat
from mlxchat.models.load import load
from mlxchat.models.resolve import resolve_model
from tests import docs


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", docs.text(), flags=re.DOTALL)


def test_the_examples_run(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On a tiny model instead of the embedded one, with a limit on generated tokens."""

    def load_tiny(name: str) -> mlxchat.Model:
        assert name == "smollm2"
        return load(str(tiny_model), offline=True)

    settings = mlxchat.GenerationSettings

    monkeypatch.setattr(mlxchat, "load", load_tiny, raising=False)
    monkeypatch.setattr(
        "mlxchat.engine.generate.GenerationSettings", lambda: settings(max_tokens=5)
    )

    def resolve_tiny(name: str | None, **options: Any) -> Any:
        # A resumed run or session names the directory of its model.
        return resolve_model(str(tiny_model) if name == "smollm2" else name, **options)

    monkeypatch.setattr("mlxchat.app.opening.resolve_model", resolve_tiny)
    names = {
        "report": "A long report about boats. " * 9,
        "directory": tmp_path / "blocks",
        "night": tmp_path / "night",
        "prompts": tmp_path / "prompts.jsonl",
        "answers": tmp_path / "answers.jsonl",
    }
    (tmp_path / "prompts.jsonl").write_text('{"text": "Hello"}\n{"text": "Bye"}\n')
    assert len(examples()) >= 6
    for example in examples():
        exec(compile(example, "example", "exec"), names)
        assert capsys.readouterr().out
    assert len(list((tmp_path / "blocks").rglob("*.safetensors"))) == 1
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 2
