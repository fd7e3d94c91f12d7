"""Draws the charts of the README and the manual from the JSON lines of the benchmarks.

python -m scripts.bench.stream kjv.txt >> figures.jsonl
python -m scripts.bench.memory -m tiny >> figures.jsonl
mlxchat bench prefill --json figures.jsonl
python -m scripts.bench.plot figures.jsonl scripts/charts
"""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

# By label.
Lines = dict[str, list[tuple[float, float]]]


def main() -> None:
    if len(sys.argv) != 3 or not Path(sys.argv[1]).is_file():
        sys.exit("usage: python -m scripts.bench.plot FILE_OF_FIGURES DIR")
    file, directory = map(Path, sys.argv[1:])
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows = [row | row.get("figures", {}) for row in rows]

    def line(x: str, y: str, unit: float = 1, **having: Any) -> list[tuple[float, float]]:
        having_y = [row for row in rows if y in row and having.items() <= row.items()]
        return [
            (row[x], (row[y]["median"] if isinstance(row[y], dict) else row[y]) / unit)
            for row in having_y
        ]

    def stream(keys: dict[str, str]) -> Lines:
        return {label: line("from_token", key) for label, key in keys.items()}

    def steps(key: str, unit: float = 1) -> Lines:
        return {
            f"{n:,} tokens": line("step_size", key, unit, prompt_tokens=n, side="mlxchat")
            for n in (512, 4_232)
        }

    labels = {"active": "active_bytes", "cached by MLX": "cache_bytes", "process": "process_bytes"}
    sizes = {label: line("tokens", key, 1e6, bench="memory") for label, key in labels.items()}
    rotating = stream({"mlxchat": "perplexity", "mlx-lm rotating": "mlx_lm_perplexity"})
    gold = stream({"mlxchat": "same_tokens_perplexity", "recomputed": "recomputed_perplexity"})
    charts = (
        ("stream", "A long text", "from token", "perplexity", rotating),
        ("stream-recomputed", "Same tokens, recomputed", "from token", "perplexity", gold),
        ("memory", "A long generation", "tokens generated", "MB", sizes),
        ("prefill-speed", "Reading a prompt", "tokens per step", "tok/s", steps("tokens_per_s")),
        ("prefill-memory", "Peak memory", "tokens per step", "MB", steps("peak_memory_bytes", 1e6)),
    )
    known = [chart for chart in charts if any(chart[-1].values())]
    if not known:
        sys.exit(f"{file} has no figures of a chart: those of --quick have other sizes")
    for name, title, x, y, lines in known:
        draw(directory / f"{name}.svg", title, x, y, lines)


def draw(path: Path, title: str, x: str, y: str, lines: Lines) -> None:
    figure = Figure(figsize=(8.0, 4.8), layout="constrained")
    axes = figure.subplots()
    for label, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker=".", label=label)
    # Start at zero, so as not to exaggerate differences.
    axes.set(title=title, xlabel=x, ylabel=y, ylim=(0, None))
    axes.grid(axis="y", alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    # A fixed salt makes the file reproducible.
    with rc_context({"svg.hashsalt": "mlxchat"}):
        figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
