"""Saved chats, through the program: resumed, on a disk that cannot be written, and by command."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from mlxchat import paths
from mlxchat.sessions.listing import read_session
from tests.in_process import run_in_process
from tests.terminal import CTRL_D, PROMPT, on_terminal

WINDOW = ["--max-kv-size", "200"]


def lines(first: int, last: int) -> str:
    return "".join(f"question {n} of many\n" for n in range(first, last))


@pytest.fixture
def chat(tiny_model: Path) -> Any:
    """Run a chat with these lines; returns its events and stderr."""

    def run(text: str, *options: str) -> tuple[list[dict[str, Any]], str]:
        model = [] if "--session" in options else ["-m", str(tiny_model), *WINDOW]
        asked = "--temp", "0", "-n", "20", "--json", *model, *options
        done = run_in_process("chat", *asked, stdin=text)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    return run


@pytest.mark.parametrize("options", [("-c",), ("--session", "new")])
def test_on_a_read_only_disk_a_session_is_read_and_continues_unsaved(
    chat: Any, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    """It was refused, because its lock could not be created."""

    def open_(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        is_ours = paths.sessions_dir() in Path(os.fsdecode(path)).parents
        if is_ours and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *rest, **more)

    real = os.open
    chat(lines(0, 2), "-m", str(tiny_model), "--session", "old")
    before = {path: path.read_bytes() for path in paths.sessions_dir().iterdir()}
    model = ("-m", str(tiny_model), "-n", "5", "--json", "--temp", "0")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_)
        # Not by root either.
        patch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
        done = run_in_process("chat", *model, *options, stdin=lines(2, 5))
    assert done.returncode == 1
    events = [json.loads(line) for line in done.stdout.splitlines()]
    turns = [1, 2, 3] if "new" in options else [3, 4, 5]
    assert [each["turn"] for each in events if each["event"] == "done"] == turns
    warning = f"cannot save this session in {paths.sessions_dir()}: Read-only file system: the chat"
    # The session that it continues has one exchange more than what it could lock.
    assert done.stderr.startswith(f"mlxchat: {warning} continues unsaved\nmlxchat: not saved")
    assert {path: path.read_bytes() for path in paths.sessions_dir().iterdir()} == before


@pytest.mark.usefixtures("ordinary_terminal")
def test_a_chat_that_was_not_saved_says_so_when_it_ends(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said "saved; resume with", and its turns were gone."""
    monkeypatch.setenv("XDG_DATA_HOME", "/dev/null/data")
    steps = [(PROMPT, "hello\r"), (PROMPT, CTRL_D)]
    status, terminal = on_terminal("-m", str(tiny_model), "-n", "1", steps=steps)
    assert status == 1
    assert terminal.text().endswith("\nnot saved: File exists")
    assert "resume with" not in terminal.written


def test_the_session_commands(chat: Any, tmp_path: Path, ordinary_terminal: None) -> None:
    def session(*arguments: str) -> str:
        done = run_in_process("session", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    first, _ = chat("tell me about whales\n")
    name = first[0]["session"]
    assert session("list").split("\t")[:3:2] == [name, "1"]
    assert json.loads(session("list", "--json"))["name"] == name
    assert session("show", name).startswith("> tell me about whales\n")
    assert session("search", "WHALES") == f"{name}\t1\tuser\ttell me about whales\n"
    searched = [run_in_process("session", "search", each) for each in ("no such word", " ")]
    assert [each.returncode for each in searched] == [1, 2]
    _, terminal = on_terminal("session", "search", "whale", steps=[])
    assert "user\n  tell me about whales" in terminal.text()
    verdict = session("verify", name)
    assert "checksum right" in verdict
    assert "same first choice at" in verdict
    session("rename", name, "whales")
    exported = tmp_path / "whales.jsonl"
    exported.write_text(session("show", "whales", "--json"))
    assert session("import", str(exported), "--name", "back") == "imported 1 turn as back\n"
    assert read_session("back").turns[0].reply == read_session("whales").turns[0].reply
    assert session("path") == f"{paths.sessions_dir() / 'sessions.db'}\n"
    session("rm", "--yes", "back", "whales")
    assert run_in_process("session", "show", "whales").returncode == 1
    assert session("list") == ""
