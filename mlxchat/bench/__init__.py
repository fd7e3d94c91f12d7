"""Start-up, prefill, decode and batch, measured; nothing is printed. `terminal/run_bench` shows it.

Each benchmark is a module of this folder with `comparisons(subject)`, a list. `compare` alternates
their sides and makes tables and lines of JSON. Quality: see `scripts/bench`. Read `prefill` first.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark, before its module is imported. `on_ranks`: it can run under MLX's launcher."""

    name: str
    measures: str
    on_ranks: bool = False


BENCHES = (
    # First, before this process holds weights: it starts processes that load their own.
    Benchmark("startup", "time to --help and to the first token"),
    Benchmark("prefill", "reading a prompt: tokens per second, peak memory"),
    Benchmark("decode", "generating: tokens per second, memory", on_ranks=True),
    Benchmark("batch", "many prompts at once: speed, memory"),
)
