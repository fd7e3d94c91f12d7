"""The list of benchmarks. To add one, add a module to this package and a line to BENCHES.

The module has the three functions of `Bench`; its figures are frozen dataclasses.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from mlxchat.bench.report import Chart, Figures, Table
    from mlxchat.bench.subject import Subject


class Bench(Protocol):
    """The interface of a benchmark's module."""

    def measure(self, subject: "Subject") -> Iterator[Sequence["Figures"]]:
        """Yield all figures so far, repeatedly, and in the end all of them, so that an interrupted
        run keeps its figures. Raises MlxchatError for errors that a user can fix."""
        ...

    def tables(self, found: Sequence[Any]) -> Sequence["Table"]:
        """Summarize the figures, complete or not, in words and numbers."""
        ...

    def charts(self, found: Sequence[Any]) -> Sequence["Chart"]: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """A benchmark, before its module is imported. `compares`: it can also measure mlx-lm;
    `reads_text`: it reads a file of real text; `on_ranks`: it can run under MLX's launcher;
    `has_workloads`: it can measure some workloads only."""

    name: str
    summary: str
    compares: bool = False
    reads_text: bool = False
    on_ranks: bool = False
    has_workloads: bool = False


BENCHES = (
    # First, before this process holds weights: it starts processes that load their own.
    Entry("startup", "Measure the time to --help and to the first token.", compares=True),
    Entry(
        "prefill",
        "Measure prompt processing: tokens per second and peak memory.",
        compares=True,
    ),
    Entry(
        "decode",
        "Measure generation: tokens per second and memory.",
        compares=True,
        on_ranks=True,
        has_workloads=True,
    ),
    Entry("batch", "Measure many prompts at once: speed and memory.", compares=True),
    Entry("chat", "Measure the time to the first token of each turn."),
    Entry("recall", "Measure what a chat answers about forgotten turns."),
    Entry("documents", "Measure what is answered about documents larger than the window."),
    Entry(
        "stream",
        "Measure the perplexity of a long text by position.",
        compares=True,
        reads_text=True,
    ),
    Entry("memory", "Measure memory during a long generation."),
    Entry("prefix", "Measure the prefix cache: waiting time and disk space.", reads_text=True),
    Entry("blocks", "Measure blocks: waiting time and quality.", reads_text=True),
)


def load(name: str) -> Bench:
    return cast(Bench, import_module(f"mlxchat.bench.{name}"))
