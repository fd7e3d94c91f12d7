"""Programs killed by the system: what was shown or written stays, and nobody else is harmed."""

import json
import shutil
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

from mlxchat.chat.state import Turn
from mlxchat.errors import SessionError
from mlxchat.sessions.database import names_by_use
from mlxchat.sessions.listing import listing, read_session
from mlxchat.sessions.session import Session
from tests.conftest import RunMlxchat
from tests.elsewhere import elsewhere, run_elsewhere

FIFTY = pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])
PROGRAM = [sys.executable, "-m", "mlxchat"]


# A chat


def lines(first: int, last: int) -> str:
    return "".join(f"question {n} of many\n" for n in range(first, last))


@pytest.mark.parametrize("kills", [1, FIFTY])
def test_a_killed_chat_loses_nothing_that_was_shown(
    kills: int, tiny_model: Path, run_mlxchat: RunMlxchat
) -> None:
    """In a window that evicts nothing, so that turns read again after a kill, because the snapshot
    was incomplete, give exactly the same state."""
    chat = ["chat", "--json", "-m", str(tiny_model), "-n", "15", "--temp", "1", "--seed", "1"]
    chat += ["--max-kv-size", "4000"]
    done = run_mlxchat(*chat, "--no-save", stdin=lines(0, 4 * kills))
    events = [json.loads(line) for line in done.stdout.splitlines()]
    whole = [event["text"] for event in events if event["event"] == "done"]
    chance, before = Random(kills), 0
    for _ in range(kills):
        process = subprocess.Popen(
            [*PROGRAM, *chat, "--session", "night"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(lines(before, before + 4))
        process.stdin.flush()
        printed = [process.stdout.readline() for _ in range(chance.randrange(60))]
        process.kill()
        shown = shown_replies([*printed, *process.stdout.readlines()], before)
        process.communicate()
        if "night" not in names_by_use():
            continue
        turns = read_session("night").turns
        assert [turn.user for turn in turns] == lines(0, len(turns)).splitlines()
        assert len(turns) - before >= len(shown)
        for turn, text in zip(turns[before:], shown, strict=False):
            assert turn.reply.startswith(text)
        # Replies match the run that was never killed, up to the first that was cut, perhaps before
        # any of it was shown.
        cut = [n for n, turn in enumerate(turns) if turn.finish_reason in ("", "interrupted")]
        complete = [turn.reply for turn in turns[: (cut or [None])[0]]]
        assert complete == whole[: len(complete)]
        before = len(turns)
    assert run_mlxchat(*chat, "--session", "night", stdin=lines(before, before + 2)).returncode == 0
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
def test_a_run_ended_and_killed_again_and_again_writes_the_same_text(
    kills: int,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_mlxchat: RunMlxchat,
) -> None:
    """Ended by SIGTERM, after a hangup that was to be ignored; then continued by the example
    script, which is killed as well."""
    monkeypatch.setenv("MLXCHAT", " ".join(PROGRAM))
    monkeypatch.setenv("MLXCHAT_PAUSE", "0")
    night = tmp_path / "night"
    options = ["-m", str(tiny_model), "--raw", "--ignore-eos", "--temp", "1", "--seed", "3"]
    options += ["--max-kv-size", "64", "-n", str(300 * kills), "The sea was calm."]
    checkpoint = ["--checkpoint", str(night), "--checkpoint-every", "20"]
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = subprocess.Popen([*PROGRAM, "generate", *checkpoint, *options])
    finally:
        signal.signal(signal.SIGHUP, previous)
    wait_for_bytes(night, 20)
    process.send_signal(signal.SIGHUP)
    wait_for_bytes(night, 40)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143

    script, chance = Path(__file__).parents[2] / "scripts" / "overnight.sh", Random(7)
    left, status = kills, -1
    while left >= 0:
        process = subprocess.Popen(["sh", str(script), str(night)], stderr=subprocess.DEVNULL)
        # After five of them, the script gives up.
        for _ in range(min(left, 5)):
            wait_for_bytes(night, written(night) + chance.choice([0, chance.randrange(1, 100)]))
            program_of(process).kill()
        status = process.wait()
        left -= 5
    assert status == 0
    whole = run_mlxchat("generate", "--json", *options).stdout.splitlines()[-1]
    assert (night / "output.txt").read_bytes() == json.loads(whole)["text"].encode()


def written(night: Path) -> int:
    path = night / "output.txt"
    return path.stat().st_size if path.exists() else 0


def wait_for_bytes(night: Path, size_bytes: int) -> None:
    while written(night) < size_bytes:
        time.sleep(0.002)


def program_of(script: "subprocess.Popen[bytes]") -> psutil.Process:
    while True:
        for child in psutil.Process(script.pid).children():
            with suppress(psutil.Error):
                if "mlxchat" in child.cmdline():
                    return child


# Two processes


HOLDS = """
session = Session.open("mine", create=True)
session.record(None, [Turn("hello", "yes", finish_reason="stop"), Turn("from elsewhere")])
session.show("half a reply")
print("open", flush=True)
sys.stdin.read()
"""


def test_a_session_is_open_in_one_process_at_a_time_until_that_is_killed(sessions: Path) -> None:
    with elsewhere(HOLDS) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(SessionError, match=f"'mine' is open in process {process.pid}: "):
            Session.open("mine")
        assert [info.open_in for info in listing()] == [process.pid]
        assert read_session("mine").turns[-1].reply == "half a reply"
        process.kill()
    assert [info.open_in for info in listing()] == [None]
    with Session.open("mine") as session:
        turns = session.contents.turns
        assert turns[-1].reply == "half a reply"
        session.record(None, [*turns, Turn("more")])
        # Closing a file ends all locks of a process on it: if this process had opened it once
        # more, another would have taken itself for the last one, and deleted the log.
        assert names_by_use() == ["mine"]
        assert run_elsewhere("listing()")[0] == 0
        assert (sessions / "sessions.db-wal").exists()
        session.record(None, [*turns, Turn("more"), Turn("and more")])
    assert len(read_session("mine").turns) == 4


KILLER = """
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int synced(int descriptor, long call) {
    static int syncs;
    const char *last = getenv("KILLED_AT_SYNC");
    if (last && ++syncs == atoi(last)) kill(getpid(), SIGKILL);
    return syscall(call, descriptor);
}
int fsync(int descriptor) { return synced(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return synced(descriptor, SYS_fdatasync); }
"""
CHAT = """
with Session.open(sys.argv[2], create=True) as session:
    turns = []
    for line in sys.stdin:
        turns.append(Turn(f"{len(turns)} {line}"))
        session.record(None, turns)
        turns[-1] = Turn(turns[-1].user, line, finish_reason="stop")
        session.record(None, turns)
        print("saved", flush=True)
"""


@pytest.fixture
def killer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are killed at the sync whose number is in KILLED_AT_SYNC, before it returns."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("needs Linux and a C compiler")
    source, library = tmp_path / "killer.c", tmp_path / "killer.so"
    source.write_text(KILLER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))


@pytest.mark.usefixtures("killer")
@pytest.mark.parametrize(
    "syncs", [(3,), pytest.param(range(1, 20), marks=pytest.mark.slow, id="all")]
)
def test_a_chat_killed_while_it_syncs_costs_neither_session_anything(
    sessions: Path, monkeypatch: pytest.MonkeyPatch, syncs: Sequence[int]
) -> None:
    """Afterwards, frames of the dead process follow those of the living one in SQLite's log. That
    was taken for damage, and the database was replaced while the living chat was writing to it."""
    message = "long " * 6000
    living = elsewhere(CHAT, "living")
    assert living.stdin is not None
    assert living.stdout is not None
    for said, sync in enumerate(syncs, start=1):
        monkeypatch.setenv("KILLED_AT_SYNC", str(sync))
        dying = elsewhere(CHAT, f"dying {sync}")
        reported, stderr = dying.communicate(f"{message}\n" * 4)
        living.stdin.write("short\n")
        living.stdin.flush()
        assert living.stdout.readline() == "saved\n"
        names = names_by_use()
        assert "living" in names
        saved = read_session(f"dying {sync}").turns if f"dying {sync}" in names else []
        assert [turn.reply.strip() for turn in saved][: reported.count("saved")] == [
            message.strip()
        ] * reported.count("saved")
        contents = read_session("living")
        assert [turn.user for turn in contents.turns] == [f"{n} short\n" for n in range(said)]
        assert contents.notices == ()
        if dying.returncode == 0:
            break
        assert (dying.returncode, stderr) == (-signal.SIGKILL, "")
    else:
        assert len(syncs) == 1
    assert living.communicate("") == ("", "")
    assert [path.name for path in sessions.glob("sessions.db*")] == ["sessions.db"]
