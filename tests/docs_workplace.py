"""The surroundings of a reader of the documentation: a home, a directory, models, documents, a hub.

Everything that the commands name is created first.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from mlxchat import paths
from mlxchat.models.catalog import HUB_ALIASES
from mlxchat.models.load import load
from mlxchat.models.locate import is_hub_id
from tests import docs_shell
from tests.docs import Command
from tests.docs_shell import Done
from tests.fake_hub import FakeHub, FakeRepo
from tests.gguf_files import tiny_gguf
from tests.trained_adapter import train

ROOT = Path(__file__).parent.parent

# Enough for a prefix to be kept: a byte is a token of the tiny model.
DOCUMENT_BYTES = 1500
DOCUMENT = re.compile(r"[\w./*-]+\.(?:txt|md|rst|log|csv|html|json|jsonl)")
WRITTEN = ("-o", "--output", "--json", ">", ">>", "tee")

MAX_TOKENS = 8

# Files that are not just text.
FORMS = {
    "invoice.json": b'{"properties": {"number": {"type": "integer"}}, "required": ["number"]}',
    "moves.lark": b'start: "left" | "right"\n',
    "prompts.jsonl": b'{"id": "a", "prompt": "Hello"}\n{"id": "b", "prompt": "Bye", "temp": 0.5}\n',
    "conversations.json": (
        b'[{"title": "Trip", "mapping": {"a": {"message": {"author": {"role": "user"}, '
        b'"content": {"parts": ["Where to?"]}}}}}]'
    ),
    "mail.csv": b'id,subject,text\n7,Win,"You, too, can win."\n8,Lunch,Tomorrow at noon?\n',
}

# Words in capitals stand for the reader's own.
MODEL_ON_THE_HUB = "mlx-community/Tiny-4bit"
PLACEHOLDERS = {
    "NAME": MODEL_ON_THE_HUB,
    "ID": "$(mlxchat cache list | head -n 1 | cut -f 1)",
}


class Workplace:
    """`path` is the working directory, `home` the home directory; `enter` sets the variables."""

    def __init__(self, directory: Path, model: Path, hub: FakeHub) -> None:
        self.path, self.home = directory / "work", directory / "home"
        self.path.mkdir()
        self.home.mkdir()
        self._model = model
        self._hub = hub
        self._message = "Tell me of the sea."

    def enter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Set the environment variables until the test ends."""
        programs = self.path.parent / "bin"
        _write_program(programs / "mlxchat", f'exec "{sys.executable}" -m mlxchat "$@"')
        for directory in (Path(sys.executable).parent, programs):
            monkeypatch.setenv("PATH", str(directory), prepend=os.pathsep)
        for kind in ("CONFIG", "CACHE", "DATA", "STATE"):
            monkeypatch.delenv(f"XDG_{kind}_HOME", raising=False)
        for name, value in {
            "HOME": str(self.home),
            "PYTHONPATH": str(ROOT),
            "EDITOR": "true",
            "MLXCHAT_MODEL": str(self._model),
            "MLXCHAT_CHAT_MAX_TOKENS": str(MAX_TOKENS),
            "MLXCHAT_GENERATE_MAX_TOKENS": str(MAX_TOKENS),
            "MLXCHAT_BATCH_MAX_TOKENS": str(MAX_TOKENS),
            "MLXCHAT_GENERATE_STATS": "true",
            "HF_HOME": str(self.home / "huggingface"),
            "HF_ENDPOINT": self._hub.endpoint,
            # Otherwise the library asks the hub once a day for a list of coding agents.
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }.items():
            monkeypatch.setenv(name, value)

    def furnish(self, commands: Sequence[Command]) -> None:
        """Create everything that the commands expect."""
        prompt = "[prompts.commit]\nprompt = 'Write a commit message:'\n"
        config = f"aliases.smollm2 = '{self._model}'\n{prompt}"
        self._make(str(paths.config_file()), config.encode())
        for command in commands:
            self._make_documents(command.words)
            self._make_models(command.words)
            self._make_adapters(command.words)
        named = {word for command in commands for word in command.words}
        if "git" in named:
            self._make_repository()
        if "NAME" in named:
            self._prepare("mlxchat models pull NAME")
        if named & {"-c", "--continue"}:
            self._prepare("echo Hello | mlxchat")
        searched = [each.words[3] for each in commands if each.words[1:3] == ["session", "search"]]
        self._message = " ".join(["Tell me of the", *searched, "sea."])

    def run(self, text: str) -> Done:
        for name, value in PLACEHOLDERS.items():
            text = re.sub(rf"(?<=\s){name}(?!\S)", value, text)
        return docs_shell.run(text, self.path, self._message)

    def _make_documents(self, words: Sequence[str]) -> None:
        for word in FORMS.keys() & set(words):
            self._make(word, FORMS[word])
        for word in _documents(words):
            if word in FORMS:
                continue
            if (ROOT / word).is_file():
                self._make(word, (ROOT / word).read_bytes())
                shutil.copymode(ROOT / word, self.path / word)
            else:
                text = f"This is {word}, and what it says is about boats. " * DOCUMENT_BYTES
                self._make(word.replace("*", "one"), text[:DOCUMENT_BYTES].encode())

    def _make(self, name: str, content: bytes) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def _make_models(self, words: Sequence[str]) -> None:
        for before, word in zip(["", *words], words, strict=False):
            if word.endswith(".gguf"):
                tiny_gguf("llama").write(self.path / word)
            elif before in ("-m", "--model") and word.startswith("./"):
                shutil.copytree(self._model, self.path / word, dirs_exist_ok=True)
        files = {path.name: path.read_bytes() for path in self._model.iterdir()}
        ids = [MODEL_ON_THE_HUB, *HUB_ALIASES.values(), *filter(is_hub_id, words)]
        self._hub.repos |= {id_: FakeRepo(files) for id_ in ids}

    def _make_adapters(self, words: Sequence[str]) -> None:
        for name in (word for before, word in pairwise(words) if before == "--adapter"):
            directory = self.path / name
            train(load(str(self._model)).network, directory, "lora")
            if is_hub_id(name):
                files = {path.name: path.read_bytes() for path in directory.iterdir()}
                self._hub.repos[name] = FakeRepo(files)
                shutil.rmtree(directory)

    def _make_repository(self) -> None:
        """Create a repository with an uncommitted change."""
        commit = "git -c user.name=me -c user.email=me@example.org commit --quiet --message poem"
        self._make("poem", b"One line.\n")
        self._prepare(f"git init --quiet && git add poem && {commit}")
        self._make("poem", b"One line.\nAnd another.\n")

    def _prepare(self, text: str) -> None:
        done = self.run(text)
        assert done.status == 0, f"could not be prepared: {text}\n{done.stderr}"


def _documents(words: Sequence[str]) -> Iterator[str]:
    """The files that a command reads, and the scripts of this repository that it runs."""
    exports = list(words[1:3]) == ["session", "export"]
    for before, word in zip(["", *words], words, strict=False):
        is_ours = "/" in word and not word.startswith("/") and (ROOT / word).is_file()
        is_read = DOCUMENT.fullmatch(word) and before not in WRITTEN and not exports
        if is_ours or is_read:
            yield word


def _write_program(path: Path, script: str) -> None:
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
