"""Many prompts at once: their speed side by side, what a shared prefix saves, and memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlxchat.bench import batch_memory, batch_prefix, batch_speed
from mlxchat.bench.batch_memory import SampleFigures, WindowFigures
from mlxchat.bench.batch_prefix import SharedFigures
from mlxchat.bench.batch_speed import RowsFigures
from mlxchat.bench.report import Chart, Table
from mlxchat.bench.subject import Subject


@dataclass(frozen=True, slots=True)
class Amounts:
    """`tokens` for each of `rows` different prompts, in each of `rounds`."""

    rows: tuple[int, ...]
    tokens: int
    rounds: int
    shared: batch_prefix.Amounts
    memory: batch_memory.Amounts


FULL = Amounts(
    rows=(1, 8, 32),
    tokens=64,
    rounds=3,
    shared=batch_prefix.Amounts(prompts=64, shared=1_000, tokens=16, rounds=1),
    memory=batch_memory.Amounts(window=512, lengths=(128, 256, 480, 1_024, 2_048), short=10_000),
)
QUICK = Amounts(
    rows=(1, 8),
    tokens=16,
    rounds=2,
    shared=batch_prefix.Amounts(prompts=8, shared=1_000, tokens=16, rounds=1),
    memory=batch_memory.Amounts(window=64, lengths=(32, 56, 128), short=300),
)

Found = RowsFigures | SharedFigures | WindowFigures | SampleFigures


def measure(subject: Subject) -> Iterator[Sequence[Found]]:
    amounts = QUICK if subject.quick else FULL
    before: Sequence[Found] = ()
    for part in (
        batch_speed.measure(subject, amounts.rows, amounts.tokens, amounts.rounds),
        batch_prefix.measure(subject, amounts.shared),
        batch_memory.measure(subject, amounts.memory),
    ):
        found: Sequence[Found] = ()
        for found in part:
            yield [*before, *found]
        before = [*before, *found]


def tables(found: Sequence[Found]) -> Sequence[Table]:
    rows = [each for each in found if isinstance(each, RowsFigures)]
    shared = [each for each in found if isinstance(each, SharedFigures)]
    memory = [each for each in found if isinstance(each, WindowFigures | SampleFigures)]
    return [
        *batch_speed.tables(rows),
        *([batch_prefix.table(shared)] if shared else []),
        *batch_memory.tables(memory),
    ]


def charts(found: Sequence[Found]) -> Sequence[Chart]:
    rows = [each for each in found if isinstance(each, RowsFigures)]
    shared = [each for each in found if isinstance(each, SharedFigures)]
    memory = [each for each in found if isinstance(each, WindowFigures | SampleFigures)]
    return [
        *([batch_speed.chart(rows)] if rows else []),
        *([batch_prefix.chart(shared)] if shared else []),
        *batch_memory.charts(memory),
    ]
