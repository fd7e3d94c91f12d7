"""Generates for a long time with checkpoints, to see whether anything grows or slows down.

    python -m scripts.bench.soak [--tokens 200000] [-m MODEL]

Uses a tiny model with random weights, which takes a millisecond a token, so that the code around
the model is measured. Prints a line for each tenth, then a verdict.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from scripts.bench.common import parser, show
from scripts.tiny_model import write_tiny_model

WINDOW = 512


def main() -> None:
    options_of = parser(__doc__)
    options_of.set_defaults(model=None)
    options_of.add_argument("--tokens", type=int, default=200_000)
    options = options_of.parse_args()
    tokens, every = (4_000, 100) if options.quick else (options.tokens, 2_000)
    with tempfile.TemporaryDirectory() as directory:
        model = options.model or str(write_tiny_model(Path(directory) / "model"))
        report(measure(Path(directory) / "night", model, tokens, every), tokens)


def measure(directory: Path, model: str, tokens: int, every: int) -> list[dict[str, float]]:
    """Run it, and sample the process from outside each time a checkpoint is written."""
    command = [
        *(sys.executable, "-m", "mlxchat", "generate", "--raw", "--ignore-eos", "--temp", "1"),
        *("--seed", "1", "-m", model, "-n", str(tokens)),
        *("--max-kv-size", str(WINDOW), "--checkpoint", str(directory)),
        *("--checkpoint-every", str(every), "Once upon a time"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
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
    """The number of tokens generated when the state was saved; 0 while the prompt is read."""
    with state.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    facts = json.loads(header["__metadata__"]["facts"])["facts"]
    point = facts["resume_point"]
    return 0 if point is None else point["generated"]


def report(samples: list[dict[str, float]], tokens: int) -> None:
    rates: list[float] = []
    for i in range(10):
        part = [s for s in samples if i * tokens / 10 <= s["tokens"] <= (i + 1) * tokens / 10]
        first, last = part[0], part[-1]
        count = last["tokens"] - first["tokens"]
        rates.append(count / (last["cpu_s"] - first["cpu_s"]))
        show(
            bench="soak",
            tokens=last["tokens"],
            tokens_per_s=count / (last["time_s"] - first["time_s"]),
            tokens_per_cpu_s=rates[-1],
            process_bytes=last["rss"],
            open_files=last["files"],
        )
    # The first tenth fills all kinds of caches.
    settled = [s for s in samples if s["tokens"] > tokens / 10]
    slope = np.polyfit([s["tokens"] for s in settled], [s["rss"] for s in settled], 1)[0]
    show(
        bench="soak",
        least_process_bytes=min(s["rss"] for s in settled),
        most_process_bytes=max(s["rss"] for s in settled),
        bytes_per_token=slope,
        open_files=sorted({s["files"] for s in settled}),
        speed_of_last_tenth_to_first=rates[-1] / rates[0],
    )


if __name__ == "__main__":
    main()
