"""`mlxchat generate` as a subprocess: streams, exit statuses, signals, events."""

import fcntl
import json
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest

from mlxchat.app.events import EventWriter
from mlxchat.engine.sampling import Token
from mlxchat.text.tokens import Tokenizer
from scripts.tiny_model import byte_tokenizer
from tests.conftest import RunMlxchat
from tests.json_events import events_of

GENERATE = [sys.executable, "-m", "mlxchat", "generate"]


def one_line(stderr: str) -> bool:
    return stderr.count("\n") == 1 and stderr.endswith("\n")


def test_events_follow_the_schema_in_the_manual(run_mlxchat: RunMlxchat, tiny_model: Path) -> None:
    done = run_mlxchat(
        *("generate", "-m", str(tiny_model), "--json", "--logprobs", "3", "-n", "20"),
        *("--temp", "1", "--seed", "4", "--ignore-eos", "Hello"),
    )
    lines = events_of(done.stdout)
    assert [line["event"] for line in lines] == ["start", *["token"] * (len(lines) - 2), "done"]
    tokens = lines[1:-1]
    assert "".join(token["text"] for token in tokens) == lines[-1]["text"]
    assert sum(token["id"] is not None for token in tokens) == 20
    assert all(len(token["top"]) == 3 for token in tokens if token["id"] is not None)
    assert lines[-1]["finish_reason"] == "length"
    assert lines[-1]["generated_tokens"] == 20
    assert lines[-1]["seed"] == 4


def test_a_random_seed_is_reported_and_can_be_reused(
    run_mlxchat: RunMlxchat, tiny_model: Path
) -> None:
    arguments = ["generate", "-m", str(tiny_model), "--json", "-n", "20", "--temp", "1", "Hello"]
    first = events_of(run_mlxchat(*arguments).stdout)[-1]
    again = events_of(run_mlxchat(*arguments, "--seed", str(first["seed"])).stdout)[-1]
    assert first["text"] == again["text"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "nothing to read"),
        (["--max-kv-size", "4", "x"], "--keep"),
        (["--logprobs", "3", "x"], "--logprobs needs --json"),
        (["--raw", "-s", "system", "x"], "which --raw bypasses"),
        (["--unheard-of", "x"], "--unheard-of"),
    ],
)
def test_invalid_options_are_a_usage_error_in_one_line(
    run_mlxchat: RunMlxchat, tiny_model: Path, arguments: list[str], complaint: str
) -> None:
    done = run_mlxchat("generate", "-m", str(tiny_model), *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert complaint in done.stderr
    assert one_line(done.stderr)


def test_invalid_utf8_is_reported_with_its_position_unless_quiet(
    run_mlxchat: RunMlxchat, tiny_model: Path
) -> None:
    arguments = ["generate", "-m", str(tiny_model), "-n", "2"]
    done = run_mlxchat(*arguments, stdin=b"caf\xe9")
    assert done.returncode == 0
    assert "byte 3" in done.stderr
    assert run_mlxchat(*arguments, "-q", stdin=b"caf\xe9").stderr == ""


def start(tiny_model: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*GENERATE, "-m", str(tiny_model), "--ignore-eos", *arguments],
        # A buffer would keep lines that were written before `communicate` is called from it.
        bufsize=0,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_keeps_the_text(
    tiny_model: Path, number: signal.Signals, status: int
) -> None:
    process = start(tiny_model, "--json", "--stats", "Hello")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(20)]
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=100)
    assert process.returncode == status
    every = [json.loads(line) for line in [*lines, *stdout.splitlines()]]
    assert every[-1]["event"] == "done"
    assert every[-1]["finish_reason"] == "interrupted"
    assert every[-1]["text"] == "".join(e["text"] for e in every if e["event"] == "token")
    assert stderr.decode().startswith("prompt ")
    assert b"Traceback" not in stderr


def wait_until_full(pipe: Any) -> None:
    """Wait until the pipe is full and its writer waits for a reader."""
    waiting, before = -1, -2
    while waiting != before or waiting == 0:
        time.sleep(0.7)
        before = waiting
        (waiting,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))


def test_a_second_signal_ends_it_immediately_even_without_a_reader(tiny_model: Path) -> None:
    """At exit, the interpreter used to wait to flush output that nobody would read."""
    with start(tiny_model, "--json", "Hello") as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            wait_until_full(process.stdout)
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=100) == 130
        finally:
            process.kill()


def test_a_closed_pipe_ends_it_silently(tiny_model: Path) -> None:
    process = start(tiny_model, "--temp", "1", "Hello")
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(timeout=100) == 141
        assert process.stderr.read() == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_full_disk_is_one_clear_line(tiny_model: Path, arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*GENERATE, "-m", str(tiny_model), "-n", "20", *arguments, "Hello"],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 1
    assert one_line(done.stderr.decode())
    assert b"No space left on device" in done.stderr


@pytest.mark.parametrize("closed", ["<&-", "<&- 2>&-"])
def test_other_streams_may_be_closed(closed: str, tiny_model: Path) -> None:
    command = " ".join([*GENERATE, "-m", str(tiny_model), "-n", "2", "Hello", closed])
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout


def imported_modules(*calls: list[str]) -> set[str]:
    """The modules imported by a process that ran the program with each of these arguments."""
    code = (
        "import json, sys\n"
        "from contextlib import suppress\n"
        "from mlxchat import cli\n"
        "leave, cli._exit = cli._exit, sys.exit\n"
        "for sys.argv[1:] in json.loads(sys.argv[1]):\n"
        "    with suppress(SystemExit): cli.main()\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)\n"
        "leave(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(calls)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines())


def test_help_imports_nothing_heavy() -> None:
    heavy = {"mlx.core", "mlx_lm.models", "transformers", "numpy", "huggingface_hub", "jinja2"}
    commands: list[list[str]] = [[], ["generate"], ["models"], ["bench"], ["bench", "prefill"]]
    modules = imported_modules(*([*each, "--help"] for each in [*commands, ["config", "set"]]))
    assert "mlxchat.cli" in modules
    assert not (heavy | {"pydantic", "llguidance"}) & modules


@pytest.mark.parametrize(
    "model", ["tiny_model", pytest.param("embedded_model", marks=pytest.mark.model)]
)
def test_generating_imports_neither_transformers_nor_the_hub(
    model: str, request: pytest.FixtureRequest
) -> None:
    directory = str(request.getfixturevalue(model))
    modules = imported_modules(["generate", "-m", directory, "-n", "1", "Hello"])
    assert "mlx_lm.models.llama" in modules
    heavy = {"transformers", "mlx_lm.utils", "huggingface_hub", "gguf", "rich.progress"}
    assert not heavy & modules


def test_version_reports_the_packages_and_the_device(run_mlxchat: RunMlxchat) -> None:
    for arguments in (["--version"], ["-V"]):
        done = run_mlxchat(*arguments)
        assert done.returncode == 0
        for word in ("mlxchat", "mlx-lm", "backend", "device", "BLAS"):
            assert word in done.stdout


def test_it_runs_without_a_writable_home(
    run_mlxchat: RunMlxchat, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "/proc/nowhere")
    done = run_mlxchat("generate", "-m", str(tiny_model), "-n", "2", "Hello")
    assert (done.returncode, done.stderr) == (0, "")


# Events


# Everything `str.splitlines` splits at.
SEPARATORS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def test_no_text_can_break_the_line_of_an_event() -> None:
    """A reply with U+0085 became two lines for a reader that splits as Python does."""
    events = EventWriter(Tokenizer(byte_tokenizer()))
    line = events.token(Token(1, f"a{SEPARATORS}é"))
    assert len(line.splitlines()) == 1
    assert json.loads(line)["text"] == f"a{SEPARATORS}é"
