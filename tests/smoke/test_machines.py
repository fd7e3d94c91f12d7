"""The program on several ranks over loopback: it writes what one process writes, and all exit
together.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxchat.sessions.session import Session
from scripts.families import write_family
from tests.conftest import RunMlxchat
from tests.launched import Process, launched, ring, together

# With plain attention, with experts, with sinks and sliding windows, with latent attention.
FAMILIES = ("llama", "qwen3_moe", "gpt_oss", "deepseek_v3")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of tiny models."""
    directory = tmp_path_factory.mktemp("distributed")
    for family in FAMILIES:
        write_family(directory / family, family)
    return directory


def generate(model: Path, *options: str) -> list[str]:
    """Samples, and rotates its window."""
    command = ["generate", "-m", str(model), "--raw", "--ignore-eos", "--json", "--logprobs", "2"]
    command += ["--temp", "1", "--seed", "3", "-n", "16", "--max-kv-size", "24"]
    return [*command, *options, "Once upon a time"]


def events_of(text: str) -> tuple[list[dict[str, Any]], list[float]]:
    """The events without the figures that differ in every run, and the log-probabilities."""
    events = [json.loads(line) for line in text.splitlines()]
    logprobs = [event.pop("logprob") for event in events if "logprob" in event]
    differing = ("stats", "top")
    same = [
        {k: v for k, v in each.items() if k not in differing and not k.endswith(("_s", "_bytes"))}
        for each in events
    ]
    return same, logprobs


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("ranks", "name", "options"),
    [
        (2, "qwen3_moe", []),
        *(pytest.param(2, name, [], marks=SLOW) for name in ("llama", "gpt_oss", "deepseek_v3")),
        pytest.param(2, "deepseek_v3", ["--pipeline"], marks=SLOW),
        pytest.param(4, "qwen3_moe", ["--pipeline"], marks=SLOW),
    ],
)
def test_ranks_write_what_one_process_writes(
    ranks: int,
    name: str,
    options: list[str],
    models: Path,
    tmp_path: Path,
    *,
    run_mlxchat: RunMlxchat,
) -> None:
    done = together(tmp_path, *generate(models / name, *options), ranks=ranks)
    assert (done.returncode, done.stderr) == (0, "")
    events, logprobs = events_of(done.stdout)
    wanted_events, wanted = events_of(run_mlxchat(*generate(models / name)).stdout)
    assert events == wanted_events
    assert len(logprobs) > 9
    assert logprobs == pytest.approx(wanted, abs=1e-4)


@pytest.mark.slow
def test_only_rank_0_reports_an_error(models: Path, tmp_path: Path) -> None:
    done = together(tmp_path, *generate(models / "llama", "-f", "nowhere.txt"))
    error = "mlxchat: error: cannot read nowhere.txt: No such file or directory\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", error)


def endless(models: Path) -> list[str]:
    command = [sys.executable, "-m", "mlxchat", "generate", "-m", str(models / "llama"), "--raw"]
    return [*command, "--ignore-eos", "-n", "-1", "--max-kv-size", "24", "--temp", "0", "Hello"]


def test_a_signal_to_all_ranks_ends_them_cleanly(models: Path, tmp_path: Path) -> None:
    with ring(2, endless(models), tmp_path) as processes:
        processes[0].writes(20)
        for process in reversed(processes):
            process.popen.send_signal(signal.SIGINT)
        assert [process.ends() for process in processes] == [130, 0]
        assert [process.err for process in processes] == ["", ""]


@pytest.mark.slow
def test_ranks_exit_if_only_their_launcher_is_killed(models: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    with launched(2, *endless(models)[3:], "-o", str(text)) as process:
        wait_until(lambda: text.exists() and text.stat().st_size > 20)
        process.popen.kill()
        wait_until(lambda: not living(process.popen.pid))


def living(group: int) -> list[str]:
    """The running processes in a group, without zombies."""
    listed = subprocess.check_output(["ps", "-A", "-o", "pgid=,stat="], text=True)
    fields = [line.split() for line in listed.splitlines()]
    return [state for number, state in fields if number == str(group) and state[0] != "Z"]


def ends_with_a_line(process: Process, line: str) -> None:
    """MLX 0.32.2 sometimes crashes if a sum fails while later operations are being launched: one
    time in twenty on its CPU backend. All that counts then is that the process ends."""
    status = process.ends(120)
    if status == -signal.SIGSEGV:
        assert "mlxchat" not in process.err
        return
    # Without MLX's own lines, whose ends may come late.
    own = "".join(re.findall(r"mlxchat: .*\n", process.err))
    assert (status, own) == (1, line)


def chat(models: Path, *options: str) -> list[str]:
    model = ["-m", str(models / "llama")]
    return [
        *("chat", *model, "--json", "--temp", "0", "-n", "20", "--max-kv-size", "220", *options)
    ]


def reply(events: str) -> str:
    parsed = [json.loads(line) for line in events.splitlines()]
    return "".join(event["text"] for event in parsed if event["event"] == "token")


def cached_tokens(events: str) -> int:
    done = json.loads(events.splitlines()[-1])
    return done["stats"]["cached_tokens"] if "stats" in done else done["cached_tokens"]


@pytest.mark.slow
def test_a_session_resumes_from_each_ranks_own_shard(
    models: Path, tmp_path: Path, run_mlxchat: RunMlxchat, temporary_home: Path
) -> None:
    def say(name: str, text: str) -> tuple[str, str, int]:
        """What a new process answers, what it reports, and how many tokens it found."""
        done = together(tmp_path, *chat(models, "--session", name), stdin=text)
        assert done.returncode == 0
        return reply(done.stdout), done.stderr, cached_tokens(done.stdout)

    first, second = "Tell me of the sea.", "And of the land? " * 5
    for text in (first, second):
        alone = run_mlxchat(*chat(models, "--session", "alone"), stdin=f"{text}\n")
    known = cached_tokens(alone.stdout)
    assert known > 0
    say("far", first)
    assert say("far", second) == (reply(alone.stdout), "", known)
    # A single process has the whole transcript but no shards.
    last = run_mlxchat(*chat(models, "--session", "far"), stdin="Well?\n")
    assert "was made with a different number of ranks" in last.stderr
    assert cached_tokens(last.stdout) == 0
    # Without rank 1's shard the snapshot cannot be restored.
    say("near", first)
    for part in temporary_home.rglob("rank1-*.safetensors"):
        part.unlink()
    text, reported, _ = say("near", second)
    assert text == reply(alone.stdout)
    assert "rank 1 does not have its shard of the snapshot" in reported


def test_if_a_rank_is_killed_the_other_exits_and_the_session_has_the_text_shown(
    models: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "mlxchat", *chat(models, "--session", "cut", "-n", "-1")]
    with ring(2, command, tmp_path) as processes:
        processes[0].reads("Never stop.")
        processes[0].writes(1_000)
        processes[1].popen.kill()
        ends_with_a_line(processes[0], "mlxchat: error: rank 1 is gone: all ranks exit\n")
        shown = reply(processes[0].out)
    with Session.open("cut") as session:
        (turn,) = session.contents.turns
    assert turn.user == "Never stop."
    assert shown
    assert turn.reply.startswith(shown)


@pytest.mark.slow
def test_a_closed_stdout_ends_the_turn_on_all_ranks_with_its_cache_saved(
    models: Path, tmp_path: Path, temporary_home: Path
) -> None:
    command = [sys.executable, "-m", "mlxchat", *chat(models, "--session", "shut", "-n", "-1")]
    with ring(2, command, tmp_path) as processes:
        processes[0].reads("Never stop.")
        processes[0].writes(1_000)
        stdout = processes[0].popen.stdout
        assert stdout is not None
        os.dup2(os.open(os.devnull, os.O_RDONLY), stdout.fileno())
        assert [process.ends() for process in processes] == [141, 0]
        assert [process.err for process in processes] == ["", ""]
    with Session.open("shut") as session:
        assert session.snapshot_path is not None
        assert session.snapshot_path.exists()
    assert len(list(temporary_home.rglob("rank1-*.safetensors"))) == 1


@pytest.mark.slow
def test_a_run_resumes_from_each_ranks_own_shard_of_the_checkpoint(
    models: Path, tmp_path: Path, run_mlxchat: RunMlxchat
) -> None:
    """A run killed and resumed writes the same bytes as an undisturbed one of one process."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    night = generate(models / "llama", "-n", "90", "--checkpoint-every", "20", "--checkpoint")
    night = [each for each in night if each not in ("--json", "--logprobs", "2")]
    words = night.pop()
    assert run_mlxchat(*night, str(whole), words).returncode == 0
    command = [sys.executable, "-m", "mlxchat", *night, str(cut), words]
    with ring(2, command, tmp_path) as processes:
        wait_until((cut / "state.safetensors").exists)
        processes[0].popen.kill()
        ends_with_a_line(processes[1], "mlxchat: error: rank 0 is gone: all ranks exit\n")
    resume = ["generate", "--resume", str(cut)]
    alone = run_mlxchat(*resume)
    assert alone.returncode == 1
    assert "was made with a different number of ranks" in alone.stderr
    resumed = together(tmp_path, *resume)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert (cut / "output.txt").read_bytes() == (whole / "output.txt").read_bytes()


@pytest.mark.slow
def test_a_prefix_is_reused_if_all_ranks_have_it(
    models: Path, tmp_path: Path, run_mlxchat: RunMlxchat, temporary_home: Path
) -> None:
    document = tmp_path / "document.txt"
    document.write_text("".join(f"Rule {n}: salt the {n * 7} onions.\n" for n in range(40)))
    common = ["generate", "-m", str(models / "llama"), "--raw", "--json", "--ignore-eos"]
    common += ["-n", "20", "-f", str(document), "--max-kv-size", "4096"]
    tokens = document.stat().st_size // 128 * 128

    def known(question: str) -> int:
        """How many tokens all ranks had; the answer is that of one process."""
        done = together(tmp_path, *common, question)
        assert (done.returncode, done.stderr) == (0, "")
        alone = run_mlxchat(*common, "--no-prefix-cache", question)
        assert reply(done.stdout) == reply(alone.stdout)
        return cached_tokens(done.stdout)

    assert (known("Why?"), known("Who?")) == (0, tokens)
    pages = [*temporary_home.rglob("prefixes/**/*.safetensors")]
    assert len(pages) == 2 * (tokens // 128)
    pages[0].unlink()
    assert known("When?") < tokens
    # The missing pages have been read and stored again.
    assert known("Where?") == tokens


def wait_until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
