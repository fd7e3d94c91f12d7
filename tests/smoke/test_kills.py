"""Programs killed by the system: what was shown or written stays, and nobody else is harmed."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import psutil
import pytest

from mlxchat import paths
from mlxchat.chat.state import Turn
from mlxchat.errors import SessionError
from mlxchat.sessions.database import names_by_use
from mlxchat.sessions.listing import read_session
from mlxchat.sessions.session import Session
from tests.in_process import run_in_process
from tests.test_sessions import lines

FIFTY = pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])
PROGRAM = [sys.executable, "-m", "mlxchat"]


# A chat


@pytest.mark.parametrize("kills", [1, FIFTY])
def test_a_killed_chat_loses_nothing_that_was_shown(kills: int, tiny_model: Path) -> None:
    """In a window that evicts nothing, so that turns read again give the same state."""
    chat = ["chat", "--json", "-m", str(tiny_model), "-n", "15", "--temp", "1", "--seed", "1"]
    chat += ["--max-kv-size", "4000"]
    done = run_in_process(*chat, "--no-save", stdin=lines(0, 4 * kills))
    events = [json.loads(line) for line in done.stdout.splitlines()]
    whole = [event["text"] for event in events if event["event"] == "done"]
    chance, before = Random(kills), 0
    for _ in range(kills):
        with subprocess.Popen(
            [*PROGRAM, *chat, "--session", "night"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(lines(before, before + 4))
            process.stdin.close()
            # Empty ones if it has ended.
            printed = [process.stdout.readline() for _ in range(chance.randrange(60))]
            process.kill()
            shown = shown_replies([*printed, *process.stdout.readlines()], before)
        if "night" not in names_by_use():
            continue
        turns = read_session("night").turns
        assert [turn.user for turn in turns] == lines(0, len(turns)).splitlines()
        assert len(turns) - before >= len(shown)
        for turn, text in zip(turns[before:], shown, strict=False):
            assert turn.reply.startswith(text)
        # Replies match the run that was never killed, up to the first that was cut, if shown.
        cut = [n for n, turn in enumerate(turns) if turn.finish_reason in ("", "interrupted")]
        complete = [turn.reply for turn in turns[: (cut or [None])[0]]]
        assert complete == whole[: len(complete)]
        before = len(turns)
    done = run_in_process(*chat, "--session", "night", stdin=lines(before, before + 2))
    assert done.returncode == 0
    assert len(read_session("night").turns) == before + 2


def shown_replies(printed: Sequence[str], before: int) -> list[str]:
    """The reply of each turn after those `before`, as far as its events were printed."""
    texts: dict[int, str] = {}
    for line in printed:
        if line.endswith("\n") and (event := json.loads(line))["event"] == "token":
            texts[event["turn"]] = texts.get(event["turn"], "") + event["text"]
    # A turn whose reply was empty has shown no token.
    return [texts.get(turn, "") for turn in range(before + 1, max(texts, default=0) + 1)]


# A long run


@pytest.mark.parametrize("kills", [1, FIFTY])
def test_a_run_killed_again_and_again_writes_the_same_text(
    kills: int, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example script continues it. A hangup is ignored, as under `nohup`."""
    monkeypatch.setenv("MLXCHAT", " ".join(PROGRAM))
    monkeypatch.setenv("MLXCHAT_PAUSE", "0")
    night = tmp_path / "night"
    options = ["-m", str(tiny_model), "--raw", "--ignore-eos", "--temp", "1", "--seed", "3"]
    options += ["--max-kv-size", "64", "-n", str(100 * kills), "The sea was calm."]
    script = Path(__file__).parents[2] / "scripts" / "overnight.sh"
    command = ["sh", str(script), str(night), "--checkpoint-every", "20", *options]
    chance, left, status = Random(7), kills, -1
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        while left >= 0:
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            # After five of them, the script gives up.
            for _ in range(min(left, 5)):
                program = program_of(process)
                wait_for_bytes(night, written(night) + chance.randrange(20))
                program.send_signal(signal.SIGHUP)
                wait_for_bytes(night, written(night) + chance.randrange(80))
                program.kill()
            status = process.wait()
            left -= 5
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert status == 0
    whole = run_in_process("generate", "--json", *options).stdout.splitlines()[-1]
    assert (night / "output.txt").read_bytes() == json.loads(whole)["text"].encode()


def written(night: Path) -> int:
    path = night / "output.txt"
    return path.stat().st_size if path.exists() else 0


def wait_for_bytes(night: Path, size_bytes: int) -> None:
    while written(night) < size_bytes:
        time.sleep(0.01)


def program_of(script: "subprocess.Popen[bytes]") -> psutil.Process:
    while True:
        time.sleep(0.01)
        for child in psutil.Process(script.pid).children():
            with suppress(psutil.Error):
                if "mlxchat" in child.cmdline():
                    return child


# A batch


ROWS = 30


def texts_of(out: Path) -> dict[int, str]:
    """The texts by id, each of which must be there once."""
    found = [json.loads(line) for line in out.read_text().splitlines()]
    texts = {each["id"]: each["text"] for each in found}
    assert (len(found), set(texts)) == (ROWS, set(range(ROWS)))
    return texts


def whole_lines(out: Path) -> bytes:
    data = out.read_bytes() if out.exists() else b""
    return data[: data.rfind(b"\n") + 1]


def was_killed(arguments: list[str], out: Path, seconds: float) -> bool:
    """Run and kill it some seconds after its first line, unless it has ended."""
    before = whole_lines(out)
    command = [*PROGRAM, *arguments]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and whole_lines(out) == before:
            time.sleep(0.002)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.kill()
    return process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "kills", [1, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])]
)
def test_kills_lose_no_row_and_double_none(kills: int, tiny_model: Path, tmp_path: Path) -> None:
    """Another output is begun whenever one is finished."""
    rows, whole, out = (tmp_path / name for name in ("in.jsonl", "whole.jsonl", "out.jsonl"))
    prompts = [{"id": n, "prompt": f"Row {n}. " * (1 + n % 7)} for n in range(ROWS)]
    rows.write_text("\n".join(map(json.dumps, prompts)))
    batch = ["batch", str(rows), "-m", str(tiny_model), "--rows", "8", "-n", "12"]
    batch += ["--temp", "1", "--seed", "3", "-o"]
    began_s = time.monotonic()
    assert run_in_process(*batch, str(whole)).returncode == 0
    run_s = time.monotonic() - began_s
    drawn, before = Random(kills), b""
    while kills > 0:
        kills -= (cut := was_killed([*batch, str(out)], out, drawn.uniform(0, run_s / 3)))
        assert whole_lines(out).startswith(before), "a finished line was lost or changed"
        before = whole_lines(out)
        if not cut or kills == 0:
            assert run_in_process(*batch, str(out)).returncode == 0
            assert texts_of(out) == texts_of(whole)
            assert out.read_bytes().startswith(before)
            out.unlink()
            before = b""


# Two processes


HOLDS = """
import sys
from pathlib import Path
from mlxchat import paths
from mlxchat.chat.state import Turn
from mlxchat.sessions.listing import listing
from mlxchat.sessions.session import Session

paths.sessions_dir = lambda: Path(sys.argv[1])
if len(sys.argv) > 2:
    sys.exit(len(listing()) != 2)
session = Session.open("mine", create=True)
session.record(None, [Turn("hello", "yes", finish_reason="stop"), Turn("from elsewhere")])
session.show("half a reply")
print("open", flush=True)
sys.stdin.read()
"""


def elsewhere(*arguments: str) -> "subprocess.Popen[str]":
    """Open a session in a process of its own, or only list them if there is an argument."""
    command = [sys.executable, "-c", HOLDS, str(paths.sessions_dir()), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_session_is_open_in_one_process_until_killed_which_harms_no_other(sessions: Path) -> None:
    """A dead process's frames in SQLite's log were damage: a database in use was replaced."""
    said = [Turn("long " * 6000, "yes", finish_reason="stop")]
    with Session.open("other", create=True) as other, elsewhere() as process:
        other.record(None, said)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(SessionError, match=f"'mine' is open in process {process.pid}: "):
            Session.open("mine")
        assert read_session("mine").turns[-1].reply == "half a reply"
        process.kill()
        process.wait()
        other.record(None, said * 2)
        with Session.open("mine") as session:
            turns = session.contents.turns
            assert turns[-1].reply == "half a reply"
            session.record(None, [*turns, Turn("more")])
        # Closing a file ends all locks of a process on it: if this process had opened it once
        # more, another would take itself for the last one, and delete the log.
        assert names_by_use() == ["mine", "other"]
        with elsewhere("no more") as reader:
            assert reader.wait() == 0
        assert (sessions / "sessions.db-wal").exists()
        other.record(None, said * 3)
    assert [len(read_session(name).turns) for name in ("mine", "other")] == [3, 3]
    assert read_session("other").notices == ()
    assert [path.name for path in sessions.glob("sessions.db*")] == ["sessions.db"]
