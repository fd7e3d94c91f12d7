"""README.md and the manual: a dozen commands and all examples of Python run, every link leads
somewhere. `test_help` parses all commands."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

import mlxchat
from mlxchat.models.load import load
from mlxchat.models.resolve import resolve_model
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
    "mlxchat cache size",
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


# Links


def parse(markdown: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(markdown)


def targets(page: Path) -> Iterator[str]:
    """What the page links to, and its pictures."""
    for block in parse(page.read_text(encoding="utf-8")):
        for token in block.children or ():
            target = token.attrGet("href") or token.attrGet("src")
            if target is not None:
                yield str(target)


def anchors(page: Path) -> set[str]:
    """The page's headings, as GitHub spells them in a link."""
    tokens = parse(page.read_text(encoding="utf-8"))
    headings = (after.content for each, after in pairwise(tokens) if each.type == "heading_open")
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    """The page's links that lead nowhere."""
    found: list[str] = []
    for target in targets(page):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        if not linked.is_file() or (anchor and anchor not in anchors(linked)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", docs.PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken(page) == []


# Python


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
    monkeypatch.setattr("mlxchat.engine.reply.GenerationSettings", lambda: settings(max_tokens=5))

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
