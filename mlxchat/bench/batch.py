"""Many prompts at once: their speed side by side, what a shared prefix saves, and memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlxchat.bench import batch_memory, batch_prefix, batch_speed
from mlxchat.bench.report import Figures, one_after_another
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

TITLES = batch_speed.TITLES | batch_prefix.TITLES | batch_memory.TITLES


def measure(subject: Subject) -> Iterator[Sequence[Figures]]:
    amounts = QUICK if subject.quick else FULL
    return one_after_another(
        (
            batch_speed.measure(subject, amounts.rows, amounts.tokens, amounts.rounds),
            batch_prefix.measure(subject, amounts.shared),
            batch_memory.measure(subject, amounts.memory),
        )
    )
