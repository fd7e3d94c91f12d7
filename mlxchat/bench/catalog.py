"""Which sub-benches there are. To add one: a module in this package and a line in BENCHES.

The module has three functions, those of `Bench`; what they hand on are frozen dataclasses.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from mlxchat.bench.report import Chart, Figures, Table
    from mlxchat.bench.subject import Subject


class Bench(Protocol):
    """What a module of a sub-bench has."""

    def measure(self, subject: "Subject") -> Iterator[Sequence["Figures"]]:
        """Yield all figures so far, again and again, the last time complete: whoever interrupts it
        has the ones before. Raises MlxchatError for what a user can mend."""
        ...

    def tables(self, found: Sequence[Any]) -> Sequence["Table"]:
        """What the figures, complete or not, come to in words and numbers."""
        ...

    def charts(self, found: Sequence[Any]) -> Sequence["Chart"]: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """A sub-bench by name, before its module is imported. `compares`: there is something of
    mlx-lm's to measure beside it; `reads_text`: it reads a file of real text; `on_ranks`: it can be
    run under MLX's launcher."""

    name: str
    summary: str
    compares: bool = False
    reads_text: bool = False
    on_ranks: bool = False


BENCHES = (
    # First, while this process holds no weights: its runs are processes that load their own.
    Entry("startup", "Seconds to --help, and to the first token, cold and warm.", compares=True),
    Entry(
        "prefill",
        "Tokens a second and peak memory of reading a prompt, by step size and length.",
        compares=True,
    ),
    Entry(
        "decode",
        "Tokens a second and memory as tokens are generated; the loop's own cost a token. Under "
        "mlx.launch, the time that the ranks spend on one another.",
        compares=True,
        on_ranks=True,
    ),
    Entry("chat", "Time to the first token, turn by turn, for each way to make room."),
    Entry(
        "stream",
        "Perplexity of a long text, by position, and of recomputing each window.",
        compares=True,
        reads_text=True,
    ),
    Entry("memory", "Memory over a long generation at a fixed window."),
    Entry("prefix", "What the prefix cache saves and takes on the disk.", reads_text=True),
    Entry("blocks", "What blocks save, and what they cost in quality.", reads_text=True),
)


def load(name: str) -> Bench:
    return cast(Bench, import_module(f"mlxchat.bench.{name}"))
