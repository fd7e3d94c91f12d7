"""`mlxchat batch`, killed at random moments and run again until it is finished."""

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

ROWS = 60


def write_rows(path: Path) -> None:
    """Rows with prompts of several lengths, one of them malformed."""
    rows = [json.dumps({"id": n, "prompt": f"Row {n}. " * (1 + n % 7)}) for n in range(ROWS)]
    path.write_text("\n".join([*rows[:20], "malformed", *rows[20:]]))


def arguments(model: Path, rows: Path, out: Path) -> list[str]:
    return [
        *("batch", str(rows), "-o", str(out), "-m", str(model)),
        *("--rows", "8", "-n", "20", "--temp", "1", "--seed", "3"),
    ]


def run_to_its_end(batch: list[str]) -> float:
    """Run without a kill, in this process; returns seconds."""
    began_s = time.monotonic()
    done = run_in_process(*batch)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("mlxchat: 1 row failed; row 21: invalid JSON"), done.stderr
    return time.monotonic() - began_s


def kill_run(batch: list[str], out: Path, seconds: float, *, early: bool) -> bool:
    """Run and kill it after `seconds`, which count from its first line unless `early`; returns
    whether it was killed before its end."""
    before = size_of(out)
    process = subprocess.Popen(
        [sys.executable, "-m", "mlxchat", *batch],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not early and process.poll() is None and size_of(out) <= before:
        time.sleep(0.002)
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()
    return process.wait() == -signal.SIGKILL


def size_of(out: Path) -> int:
    return out.stat().st_size if out.exists() else 0


def whole_lines(out: Path) -> bytes:
    data = out.read_bytes() if out.exists() else b""
    return data[: data.rfind(b"\n") + 1]


def texts_in(out: Path) -> dict[int, str]:
    """The texts by id, each of which must be there once, and the malformed row once."""
    found = [json.loads(line) for line in out.read_text().splitlines()]
    texts = {each["id"]: each["text"] for each in found if "error" not in each}
    assert len(found) == len(texts) + 1
    assert set(texts) == set(range(ROWS))
    return texts


def check_kills(model: Path, place: Path, kills: int, seed: int) -> None:
    """Kill as many runs; begin another output whenever one is finished."""
    rows, expected = place / "in.jsonl", place / "expected.jsonl"
    write_rows(rows)
    run_s = run_to_its_end(arguments(model, rows, expected))
    texts = texts_in(expected)
    drawn = random.Random(seed)
    outputs, killed = 0, 0
    while killed < kills:
        outputs += 1
        out = place / f"out-{outputs}.jsonl"
        batch = arguments(model, rows, out)
        before, is_over = b"", False
        while killed < kills and not is_over:
            early = drawn.random() < 0.2
            is_over = not kill_run(batch, out, drawn.uniform(0, run_s / 3), early=early)
            killed += not is_over
            now = whole_lines(out)
            assert now.startswith(before), f"kill {killed}: a finished line was lost or changed"
            before = now
        run_to_its_end(batch)
        assert texts_in(out) == texts
        assert out.read_bytes().startswith(before)


def test_five_kills_lose_no_row_and_double_none(tiny_model: Path, tmp_path: Path) -> None:
    check_kills(tiny_model, tmp_path, kills=5, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_a_hundred_kills_lose_no_row_and_double_none(tiny_model: Path, tmp_path: Path) -> None:
    check_kills(tiny_model, tmp_path, kills=100, seed=0)
