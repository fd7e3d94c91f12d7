"""The program on several ranks over loopback writes what one process does, and all end together."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from mlxchat.sessions.session import Session
from scripts.families import write_family
from tests.in_process import run_in_process
from tests.test_signals import wait_until

PROGRAM = [sys.executable, "-m", "mlxchat"]
SLOW = pytest.mark.slow


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        return [stack.enter_context(each).getsockname()[1] for each in servers]


class Rank:
    """One process of several, whose output goes to files."""

    def __init__(self, rank: int, arguments: Sequence[str], directory: Path) -> None:
        self.out, self.err = directory / f"out-{rank}", directory / f"err-{rank}"
        settings = {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(directory / "hosts.json")}
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.popen = subprocess.Popen(
                [*PROGRAM, *arguments],
                # A pipe that never ends, like the launcher's.
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env=os.environ | settings,
            )

    def writes(self, size: int) -> None:
        """Wait until it has written `size` bytes."""
        wait_until(lambda: self.out.stat().st_size >= size)

    def ends(self) -> tuple[int, str, str]:
        """Wait for its end; return its exit status, stdout and stderr."""
        return self.popen.wait(250), self.out.read_text(), self.err.read_text()

    def reads(self, line: str, *, is_last: bool = False) -> None:
        """Send it a line of input."""
        stdin = self.popen.stdin
        assert stdin is not None
        stdin.write(f"{line}\n".encode())
        stdin.flush()
        if is_last:
            stdin.close()


@contextmanager
def ring(ranks: int, arguments: Sequence[str], directory: Path) -> Iterator[list[Rank]]:
    """Run `mlxchat ARGUMENTS` on `ranks` ranks as the launcher would; none outlives its test."""
    hosts = [[f"127.0.0.1:{port}"] for port in free_ports(ranks)]
    (directory / "hosts.json").write_text(json.dumps(hosts))
    started: list[Rank] = []
    try:
        for rank in range(ranks):
            started.append(Rank(rank, arguments, directory))
        yield started
    finally:
        for rank in started:
            with rank.popen:
                rank.popen.kill()


def together(
    directory: Path, *arguments: str, ranks: int = 2, stdin: str | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run on all ranks to its end; only rank 0 is heard. `stdin` is a line, and then its end."""
    with ring(ranks, arguments, directory) as (first, *others):
        if stdin is not None:
            first.reads(stdin, is_last=True)
        ended = first.ends()
        assert {each.ends() for each in others} == {(0, "", "")}, ended
        return subprocess.CompletedProcess(arguments, *ended)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of tiny models."""
    directory = tmp_path_factory.mktemp("distributed")
    write_family(directory / "llama", "llama")
    return directory


def generate(model: Path, *options: str) -> list[str]:
    """Samples, and rotates its window."""
    command = ["generate", "-m", str(model), "--raw", "--ignore-eos", "--temp", "1", "--seed", "3"]
    return [*command, "-n", "16", "--max-kv-size", "24", *options, "Once upon a time"]


def chat(models: Path, *options: str) -> list[str]:
    command = ["chat", "-m", str(models / "llama"), "--json", "--temp", "0", "-n", "20"]
    return [*command, "--max-kv-size", "220", *options]


def tokens_of(events: str) -> list[dict[str, Any]]:
    return [each for each in map(json.loads, events.splitlines()) if each["event"] == "token"]


def reply(events: str) -> str:
    return "".join(token["text"] for token in tokens_of(events))


def cached_tokens(events: str) -> int:
    done = json.loads(events.splitlines()[-1])
    return done["stats"]["cached_tokens"] if "stats" in done else done["cached_tokens"]


@pytest.mark.parametrize(
    ("ranks", "name", "options"),
    [
        (2, "llama", []),
        *(pytest.param(2, n, [], marks=SLOW) for n in ("qwen3_moe", "gpt_oss", "deepseek_v3")),
        pytest.param(2, "deepseek_v3", ["--pipeline"], marks=SLOW),
        pytest.param(4, "qwen3_moe", ["--pipeline"], marks=SLOW),
    ],
)
def test_ranks_write_what_one_process_writes(
    ranks: int, name: str, options: list[str], models: Path, tmp_path: Path
) -> None:
    if not (models / name).exists():
        write_family(models / name, name)
    command = generate(models / name, "--json", "--logprobs", "2")
    done = together(tmp_path, *command, *options, ranks=ranks)
    assert (done.returncode, done.stderr) == (0, "")
    found, expected = tokens_of(done.stdout), tokens_of(run_in_process(*command).stdout)
    assert len(found) > 9
    assert reply(done.stdout) == "".join(token["text"] for token in expected)
    logprobs = [[token["logprob"] for token in each] for each in (found, expected)]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)


def test_a_signal_to_all_ranks_ends_them_cleanly(models: Path, tmp_path: Path) -> None:
    with ring(2, generate(models / "llama", "-n", "-1"), tmp_path) as ranks:
        ranks[0].writes(20)
        for rank in reversed(ranks):
            rank.popen.send_signal(signal.SIGINT)
        (status, _, error), other = (rank.ends() for rank in ranks)
        assert (status, error, other) == (130, "", (0, "", ""))


@SLOW
def test_ranks_exit_if_only_their_launcher_is_killed(models: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    launcher = [str(Path(sys.executable).with_name("mlx.launch")), "-n", "2", "--backend", "ring"]
    launcher += ["--starting-port", str(free_ports(1)[0]), "--"]
    run = generate(models / "llama", "-n", "-1", "-o", str(text))
    with psutil.Popen([*launcher, *PROGRAM, *run]) as process:
        wait_until(lambda: text.exists() and text.stat().st_size > 20)
        ranks = process.children(recursive=True)
        process.kill()
    assert len(ranks) >= 2
    _, alive = psutil.wait_procs(ranks, 60)
    for rank in alive:
        rank.kill()
    assert not alive


def ends_with_a_line(rank: Rank, line: str) -> None:
    """MLX 0.32.2 sometimes crashes if a sum fails while later operations are being launched: one
    time in twenty on its CPU backend. All that counts then is that the process ends."""
    status, _, error = rank.ends()
    # Without MLX's own lines.
    own = "".join(re.findall(r"mlxchat: .*\n", error))
    assert (status, own) in ((1, line), (-signal.SIGSEGV, ""))


@SLOW
def test_a_session_resumes_from_all_shards(models: Path, tmp_path: Path, temp_home: Path) -> None:
    def say(name: str, text: str) -> tuple[str, str, int]:
        """What a new process answers, what it reports, and how many tokens it found."""
        done = together(tmp_path, *chat(models, "--session", name), stdin=text)
        assert done.returncode == 0
        return reply(done.stdout), done.stderr, cached_tokens(done.stdout)

    first, second = "Tell me of the sea.", "And of the land? " * 5
    for text in (first, second):
        alone = run_in_process(*chat(models, "--session", "alone"), stdin=f"{text}\n")
    known = cached_tokens(alone.stdout)
    assert known > 0
    say("far", first)
    assert say("far", second) == (reply(alone.stdout), "", known)
    # A single process has the whole transcript but no shards.
    last = run_in_process(*chat(models, "--session", "far"), stdin="Well?\n")
    assert "with a different number of ranks" in last.stderr
    assert cached_tokens(last.stdout) == 0
    # Without rank 1's shard the snapshot cannot be restored.
    say("near", first)
    for part in temp_home.rglob("rank1-*.safetensors"):
        part.unlink()
    text, reported, _ = say("near", second)
    assert text == reply(alone.stdout)
    assert "rank 1 does not have its shard of the snapshot" in reported


def test_if_a_rank_is_killed_the_other_exits_and_the_session_has_the_text_shown(
    models: Path, tmp_path: Path
) -> None:
    with ring(2, chat(models, "--session", "cut", "-n", "-1"), tmp_path) as ranks:
        ranks[0].reads("Never stop.")
        ranks[0].writes(1_000)
        ranks[1].popen.kill()
        ends_with_a_line(ranks[0], "mlxchat: error: rank 1 is gone: all ranks exit\n")
        shown = reply(ranks[0].out.read_text())
    with Session.open("cut") as session:
        (turn,) = session.contents.turns
    assert turn.user == "Never stop."
    assert shown
    assert turn.reply.startswith(shown)


@SLOW
def test_a_run_resumes_from_each_ranks_shard_of_a_checkpoint(models: Path, tmp_path: Path) -> None:
    """A run killed and resumed writes the same bytes as an undisturbed one of one process."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    night = ("-n", "90", "--checkpoint-every", "20", "--checkpoint")
    assert run_in_process(*generate(models / "llama", *night, str(whole))).returncode == 0
    with ring(2, generate(models / "llama", *night, str(cut)), tmp_path) as ranks:
        wait_until((cut / "state.safetensors").exists)
        ranks[0].popen.kill()
        ends_with_a_line(ranks[1], "mlxchat: error: rank 0 is gone: all ranks exit\n")
    resume = ["generate", "--resume", str(cut)]
    alone = run_in_process(*resume)
    assert alone.returncode == 1
    assert "with a different number of ranks" in alone.stderr
    resumed = together(tmp_path, *resume)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert (cut / "output.txt").read_bytes() == (whole / "output.txt").read_bytes()


@SLOW
def test_a_prefix_is_reused_if_all_have_it(models: Path, tmp_path: Path, temp_home: Path) -> None:
    document = tmp_path / "document.txt"
    document.write_text("".join(f"Rule {n}: salt the {n * 7} onions.\n" for n in range(40)))
    common = [*generate(models / "llama", "-f", str(document), "--json")[:-1], "--temp", "0"]
    common += ["--max-kv-size", "4096"]
    tokens = document.stat().st_size // 128 * 128

    def known(question: str) -> int:
        """How many tokens all ranks had; the answer is that of one process."""
        done = together(tmp_path, *common, question)
        assert (done.returncode, done.stderr) == (0, "")
        alone = run_in_process(*common, "--no-prefix-cache", question)
        assert reply(done.stdout) == reply(alone.stdout)
        return cached_tokens(done.stdout)

    assert (known("Why?"), known("Who?")) == (0, tokens)
    pages = [*temp_home.rglob("prefixes/**/*.safetensors")]
    assert len(pages) == 2 * (tokens // 128)
    pages[0].unlink()
    # The missing pages are read and stored again.
    assert known("When?") < known("Where?") == tokens
