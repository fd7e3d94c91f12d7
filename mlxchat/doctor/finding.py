"""What an examination finds, and that no check can end it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `mend` says what to do, if anything. Both texts may be `Message`s."""

    topic: str
    verdict: Verdict
    found: str
    mend: str | None = None


Check = Callable[[], Iterable[Finding]]


def ok(topic: str, found: str) -> Finding:
    return Finding(topic, Verdict.OK, found)


def warning(topic: str, found: str, mend: str) -> Finding:
    return Finding(topic, Verdict.WARNING, found, mend)


def problem(topic: str, found: str, mend: str) -> Finding:
    return Finding(topic, Verdict.PROBLEM, found, mend)


def found_by(topic: str, check: Check) -> Iterator[Finding]:
    """What the check finds; a check that breaks down is a finding as well.

    Users run this because something is broken, in a way that was not foreseen.
    """
    try:
        yield from check()
    except Exception as error:  # noqa: BLE001
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        yield problem(topic, f"it cannot be read: {reason}", "see whether it is installed whole")
