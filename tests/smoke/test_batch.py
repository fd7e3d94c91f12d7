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
    command = [sys.executable, "-m", "mlxchat", *arguments]
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
    drawn, before = random.Random(kills), b""
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
