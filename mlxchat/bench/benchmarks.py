"""The list of benchmarks: each a module of this package with what `Bench` has, and a line in
BENCHES."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from mlxchat.bench.report import Figures
    from mlxchat.bench.subject import Subject


class Bench(Protocol):
    """The interface of a benchmark's module. `TITLES` has one for each kind of figures."""

    TITLES: Mapping[str, str]

    def measure(self, subject: "Subject") -> Iterator[Sequence["Figures"]]:
        """Yield all figures so far, repeatedly, and in the end all of them, so that an interrupted
        run keeps its figures. Raises MlxchatError for errors that a user can fix."""
        ...


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark, before its module is imported. `on_ranks`: it can run under MLX's launcher;
    `has_workloads`: it can measure some workloads only."""

    name: str
    summary: str
    on_ranks: bool = False
    has_workloads: bool = False


BENCHES = (
    # First, before this process holds weights: it starts processes that load their own.
    Benchmark("startup", "Measure the time to --help and to the first token."),
    Benchmark("prefill", "Measure prompt processing: tokens per second and peak memory."),
    Benchmark(
        "decode",
        "Measure generation: tokens per second and memory.",
        on_ranks=True,
        has_workloads=True,
    ),
    Benchmark("batch", "Measure many prompts at once: speed and memory."),
)


def load(name: str) -> Bench:
    return cast(Bench, import_module(f"mlxchat.bench.{name}"))
