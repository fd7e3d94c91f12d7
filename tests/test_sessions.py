"""Saved chats, through the program, whatever happens to its process."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mlxchat import paths
from mlxchat.chat.state import Turn
from mlxchat.errors import SessionError
from mlxchat.sessions.database import names_by_use
from mlxchat.sessions.listing import read_session
from mlxchat.sessions.records import Saved
from mlxchat.sessions.session import Session
from tests.conftest import RunMlxchat
from tests.terminal_chat import CTRL_D
from tests.terminal_chat import Chat as TerminalChat

WINDOW = ["--max-kv-size", "200"]


def lines(first: int, last: int) -> str:
    return "".join(f"question {n} of many\n" for n in range(first, last))


@pytest.fixture
def chat(tiny_model: Path, run_mlxchat: RunMlxchat) -> Any:
    """Run a chat with these lines; returns its events and stderr."""

    def run(text: str, *options: str) -> tuple[list[dict[str, Any]], str]:
        model = [] if {"-c", "--session"} & set(options) else ["-m", str(tiny_model), *WINDOW]
        done = run_mlxchat(
            *("chat", "--temp", "0", "-n", "20", "--json", *model, *options), stdin=text
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    return run


def replies(events: list[dict[str, Any]]) -> list[str]:
    return [event["text"] for event in events if event["event"] == "done"]


def test_a_resumed_session_continues_as_if_it_had_never_ended(chat: Any) -> None:
    """The window has wrapped several times, and still only the new turn is prefilled."""
    whole, _ = chat(lines(0, 12), "--no-save", "--no-prefix-cache")
    assert [path for path in Path(os.environ["HOME"]).rglob("*") if path.is_file()] == []
    first, _ = chat(lines(0, 7), "--seed", "1")
    second, stderr = chat(lines(7, 12), "-c", "--seed", "1")
    assert stderr == ""
    assert replies(first) + replies(second) == replies(whole)
    done = [event for event in whole if event["event"] == "done"]
    resumed = [event for event in second if event["event"] == "done"]
    for before, after in zip(done[7:], resumed, strict=True):
        assert after["cached_tokens"] == before["cached_tokens"]
    (name,) = names_by_use()
    saved = read_session(name)
    assert [turn.user for turn in saved.turns] == lines(0, 12).splitlines()
    assert [turn.reply for turn in saved.turns] == replies(whole)


def test_if_the_snapshot_is_damaged_the_transcript_is_read(chat: Any) -> None:
    chat(lines(0, 3))
    (path,) = paths.sessions_dir().glob("*.safetensors")
    data = bytearray(path.read_bytes())
    data[-9] ^= 4
    path.write_bytes(data)
    events, stderr = chat(lines(3, 4), "-c")
    assert "wrong checksum: your next message reads the transcript again" in stderr
    assert next(e for e in events if e["event"] == "done")["cached_tokens"] == 0


def begin(model: Path, *options: str) -> "subprocess.Popen[str]":
    """A chat whose lines can be sent one by one."""
    command = [sys.executable, "-m", "mlxchat", "chat", "-n", "60", "--temp", "1", "--seed", "1"]
    return subprocess.Popen(
        [*command, "--json", "-m", str(model), *WINDOW, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def shown_before_kill(
    model: Path, text: str, delay_s: float, *options: str, before: int
) -> list[str]:
    """What a chat had shown, a text for each turn, when it was killed after `delay_s`; `before` is
    how many turns its session had."""
    process = begin(model, *options)
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.flush()
    time.sleep(delay_s)
    process.kill()
    stdout, _ = process.communicate()
    texts: dict[int, str] = {}
    for line in stdout.splitlines(keepends=True):
        if line.endswith("\n") and (event := json.loads(line))["event"] == "token":
            texts[event["turn"]] = texts.get(event["turn"], "") + event["text"]
    # A turn whose reply was empty has shown no token.
    return [texts.get(turn, "") for turn in range(before + 1, max(texts, default=0) + 1)]


def check_nothing_shown_is_lost(
    saved: Saved, before: int, shown: list[str], whole: list[str]
) -> None:
    assert [turn.user for turn in saved.turns] == lines(0, len(saved.turns)).splitlines()
    assert len(saved.turns) - before >= len(shown)
    for turn, text in zip(saved.turns[before:], shown, strict=False):
        assert turn.reply.startswith(text)
    # Replies match the run that was never killed, up to the first that was cut, perhaps before
    # any of it was shown.
    cut = next(
        (n for n, t in enumerate(saved.turns) if t.finish_reason in ("", "interrupted")), None
    )
    complete = [turn.reply for turn in saved.turns[:cut]]
    assert complete == whole[: len(complete)]


def kill_a_chat(model: Path, times: int, seed: int) -> None:
    """In a window that evicts nothing, so that turns read again after a kill, because the snapshot
    was incomplete, give exactly the same state."""
    window = ["--max-kv-size", "4000"]
    process = begin(model, "--no-save", *window)
    stdout, _ = process.communicate(lines(0, 4 * times))
    events = [json.loads(line) for line in stdout.splitlines()]
    whole = replies(events)
    chance = random.Random(seed)
    before = 0
    for _ in range(times):
        shown = shown_before_kill(
            model,
            lines(before, before + 4),
            chance.uniform(0.8, 2.5),
            *("--session", "night", *window),
            before=before,
        )
        if "night" not in names_by_use():
            continue
        saved = read_session("night")
        check_nothing_shown_is_lost(saved, before, shown, whole)
        before = len(saved.turns)
    process = begin(model, "--session", "night", *window)
    process.communicate(lines(before, before + 2))
    assert process.returncode == 0
    assert len(read_session("night").turns) == before + 2


def test_a_killed_chat_loses_nothing_that_was_shown(tiny_model: Path) -> None:
    kill_a_chat(tiny_model, 2, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_chat_killed_fifty_times_loses_nothing_that_was_shown(
    tiny_model: Path,
) -> None:
    kill_a_chat(tiny_model, 50, seed=2)


@contextmanager
def read_only() -> Iterator[None]:
    """The directory of sessions cannot be written, not by root either."""

    def open_(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        is_ours = paths.sessions_dir() in Path(os.fsdecode(path)).parents
        if is_ours and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *rest, **more)

    real = os.open
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", open_)
        patch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
        yield


@pytest.mark.parametrize("options", [("--session", "old"), ("-c",), ("--session", "new")])
def test_on_a_read_only_disk_a_session_is_read_and_continues_unsaved(
    chat: Any,
    run_mlxchat: RunMlxchat,
    tiny_model: Path,
    options: tuple[str, ...],
) -> None:
    """It was refused, because its lock could not be created."""
    chat(lines(0, 2), "-m", str(tiny_model), "--session", "old")
    before = {path: path.read_bytes() for path in paths.sessions_dir().iterdir()}
    model = ("-m", str(tiny_model), "-n", "5", "--json", "--temp", "0")
    with read_only():
        done = run_mlxchat("chat", *model, *options, stdin=lines(2, 5))
    assert done.returncode == 1
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["turn"] for each in events if each["event"] == "done"] == (
        [1, 2, 3] if "new" in options else [3, 4, 5]
    )
    warning = "cannot save this session: Read-only file system: the chat continues unsaved"
    assert done.stderr == f"mlxchat: {warning}\n"
    assert {path: path.read_bytes() for path in paths.sessions_dir().iterdir()} == before


def test_a_session_that_could_not_be_locked_is_not_written_over_another_ones_turns(
    chat: Any, tiny_model: Path
) -> None:
    """The disk may become writable while the chat is open."""
    chat(lines(0, 1), "-m", str(tiny_model), "--session", "old")
    with read_only():
        first, second = Session.open("old"), Session.open("old")
    first.record(None, [*first.contents.turns, Turn("first")])
    with pytest.raises(SessionError, match="open in process"):
        second.record(None, [Turn("second")])
    first.close()
    second.record(None, [Turn("second")])
    assert second.outage is not None
    assert [turn.user for turn in read_session("old").turns][1:] == ["first"]
    second.close()


def test_a_chat_that_was_not_saved_says_so_when_it_ends(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, ordinary_terminal: None
) -> None:
    """It said "saved; resume with", and its turns were gone."""
    monkeypatch.setenv("XDG_DATA_HOME", "/dev/null/data")
    chat = TerminalChat(str(tiny_model), "-n", "1")
    chat.says("hello")
    chat.send(CTRL_D)
    assert chat.ends() == 1
    assert "\nnot saved: " in chat.text()
    assert "resume with" not in chat.text()


def test_a_full_disk_is_reported_and_keeps_what_was_saved(tiny_model: Path) -> None:
    """Files may have 1,000 blocks of 512 bytes."""
    command = [sys.executable, "-m", "mlxchat", "chat", "-m", str(tiny_model), "-n", "40"]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 1000; exec "$@"', "sh", *command, "--session", "full", *WINDOW],
        input=lines(0, 20),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.count("the chat continues unsaved") == 1
    saved = read_session("full")
    assert 0 < len(saved.turns) < 20
    assert [turn.user for turn in saved.turns] == lines(0, len(saved.turns)).splitlines()


def test_the_session_commands(chat: Any, tmp_path: Path, run_mlxchat: RunMlxchat) -> None:
    def session(*arguments: str) -> str:
        done = run_mlxchat("session", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    first, _ = chat("tell me about whales\n")
    name = first[0]["session"]
    assert session("list").split("\t")[:3:2] == [name, "1"]
    assert json.loads(session("list", "--json"))["name"] == name
    assert session("show", name).startswith("> tell me about whales\n")
    assert session("search", "WHALES") == f"{name}\t1\tuser\ttell me about whales\n"
    assert run_mlxchat("session", "search", "no such word").returncode == 1
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
    assert run_mlxchat("session", "show", "whales").returncode == 1
    assert session("list") == ""


@pytest.mark.usefixtures("ordinary_terminal")
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_closing_the_terminal_loses_nothing(number: int, tiny_model: Path) -> None:
    chat = TerminalChat(str(tiny_model), "-n", "8", "--session", "closed")
    chat.says("remember me")
    if number == signal.SIGHUP:
        assert chat.vanishes() == 129
    else:
        chat.child.kill(number)
        chat.ends()
    saved = read_session("closed")
    assert [turn.user for turn in saved.turns] == ["remember me"]
    assert saved.turns[0].finish_reason
    snapshots = list(paths.sessions_dir().glob("*.safetensors"))
    assert len(snapshots) == (number != signal.SIGKILL)
