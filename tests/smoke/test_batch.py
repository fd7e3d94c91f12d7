"""A batch that is killed at random moments and run again until it is finished."""

import json
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.in_process import run_in_process

ROWS = 30


def batch(model: Path, rows: Path, out: Path) -> list[str]:
    return [
        *("batch", str(rows), "-o", str(out), "-m", str(model)),
        *("--rows", "8", "-n", "12", "--temp", "1", "--seed", "3"),
    ]


def run_to_its_end(arguments: list[str], out: Path) -> dict[int, str]:
    """Run in this process; returns the texts by id, each of which must be there once, and the
    malformed row once."""
    done = run_in_process(*arguments)
    assert done.stderr.startswith("mlxchat: 1 row failed; row 21: invalid JSON"), done.stderr
    found = [json.loads(line) for line in out.read_text().splitlines()]
    texts = {each["id"]: each["text"] for each in found if "error" not in each}
    assert len(found) == len(texts) + 1
    assert set(texts) == set(range(ROWS))
    return texts


def whole_lines(out: Path) -> bytes:
    data = out.read_bytes() if out.exists() else b""
    return data[: data.rfind(b"\n") + 1]


def kill_run(arguments: list[str], out: Path, seconds: float, *, early: bool) -> bool:
    """Run and kill it after `seconds`, which count from its first line unless `early`; returns
    whether it was killed before its end."""
    before = whole_lines(out)
    process = subprocess.Popen(
        [sys.executable, "-m", "mlxchat", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not early and process.poll() is None and whole_lines(out) == before:
        time.sleep(0.002)
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()
    return process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    "kills",
    [2, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])],
)
def test_kills_lose_no_row_and_double_none(kills: int, tiny_model: Path, tmp_path: Path) -> None:
    """Another output is begun whenever one is finished."""
    lines = [json.dumps({"id": n, "prompt": f"Row {n}. " * (1 + n % 7)}) for n in range(ROWS)]
    rows, expected = tmp_path / "in.jsonl", tmp_path / "expected.jsonl"
    rows.write_text("\n".join([*lines[:20], "malformed", *lines[20:]]))
    began_s = time.monotonic()
    texts = run_to_its_end(batch(tiny_model, rows, expected), expected)
    run_s = time.monotonic() - began_s
    drawn = random.Random(kills)
    out, before = tmp_path / "out.jsonl", b""
    arguments = batch(tiny_model, rows, out)
    while kills > 0:
        early = drawn.random() < 0.2
        was_killed = kill_run(arguments, out, drawn.uniform(0, run_s / 3), early=early)
        kills -= was_killed
        assert whole_lines(out).startswith(before), "a finished line was lost or changed"
        before = whole_lines(out)
        if not was_killed or kills == 0:
            assert run_to_its_end(arguments, out) == texts
            assert out.read_bytes().startswith(before)
            out.unlink()
            before = b""
