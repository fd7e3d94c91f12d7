"""Generate for a long time with checkpoints, and measure whether anything grows or slows down.

    python -m scripts.soak [--tokens 200000] [--window 512] [--every 2000] [-m MODEL]

Without a model, uses a tiny one with random weights, which takes a millisecond a token, so that the
code around the model is measured. Prints a line for each tenth, then a verdict.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from scripts.tiny_model import write_tiny_model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--every", type=int, default=2_000)
    parser.add_argument("-m", "--model")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        model = options.model or str(write_tiny_model(Path(directory) / "model"))
        samples = measure(Path(directory) / "night", model, options)
    report(samples, options.tokens)


def measure(directory: Path, model: str, options: Any) -> list[dict[str, float]]:
    """Run it, and sample the process from outside each time a checkpoint is written."""
    command = [
        *(sys.executable, "-m", "mlxchat", "generate", "--raw", "--ignore-eos", "--temp", "1"),
        *("--seed", "1", "-m", model, "-n", str(options.tokens)),
        *("--max-kv-size", str(options.window), "--checkpoint", str(directory)),
        *("--checkpoint-every", str(options.every), "Once upon a time"),
    ]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    watched = psutil.Process(process.pid)
    samples: list[dict[str, float]] = []
    seen = 0.0
    while process.poll() is None:
        state = directory / "state.safetensors"
        changed = state.stat().st_mtime if state.exists() else 0.0
        if changed > seen:
            seen = changed
            samples += look(watched, generated(state))
        time.sleep(0.02)
    if process.returncode != 0:
        raise SystemExit(process.returncode)
    return samples


def look(process: psutil.Process, tokens: int) -> list[dict[str, float]]:
    try:
        return [
            {
                "tokens": tokens,
                "time_s": time.monotonic(),
                "cpu_s": sum(process.cpu_times()[:2]),
                "rss": process.memory_info().rss,
                "files": process.num_fds(),
            }
        ]
    except psutil.Error:
        return []


def generated(state: Path) -> int:
    """The number of tokens generated when the state was saved."""
    with state.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    facts = json.loads(header["__metadata__"]["facts"])["facts"]
    return facts["resume_point"]["generated"]


def report(samples: list[dict[str, float]], tokens: int) -> None:
    tenths = [
        [s for s in samples if i * tokens / 10 <= s["tokens"] <= (i + 1) * tokens / 10]
        for i in range(10)
    ]
    print("tokens      tok/s  tok per CPU second  resident MB  open files")
    rates: list[float] = []
    for part in tenths:
        first, last = part[0], part[-1]
        count = last["tokens"] - first["tokens"]
        rate = count / (last["time_s"] - first["time_s"])
        rates.append(count / (last["cpu_s"] - first["cpu_s"]))
        rss, files = last["rss"] / 1e6, last["files"]
        print(f"{last['tokens']:8,}  {rate:7.1f}  {rates[-1]:18.1f}  {rss:11.2f}  {files:10.0f}")
    # The first tenth fills all kinds of caches.
    settled = [s for s in samples if s["tokens"] > tokens / 10]
    slope = np.polyfit([s["tokens"] for s in settled], [s["rss"] for s in settled], 1)[0]
    print(
        f"memory slope {slope:.3f} bytes per token; open files {settled[0]['files']:.0f} to "
        f"{settled[-1]['files']:.0f}; speed of the last tenth {rates[-1] / rates[0]:.3f} times "
        "the first's, by CPU time"
    )


if __name__ == "__main__":
    main()
