"""Findings, and a guard that turns a crashing check into one."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `fix` is what to do, if anything."""

    topic: str
    verdict: Verdict
    found: str
    fix: str | None = None


Check = Callable[[], Iterable[Finding]]


def ok(topic: str, found: str) -> Finding:
    return Finding(topic, Verdict.OK, found)


def warning(topic: str, found: str, fix: str) -> Finding:
    return Finding(topic, Verdict.WARNING, found, fix)


def problem(topic: str, found: str, fix: str) -> Finding:
    return Finding(topic, Verdict.PROBLEM, found, fix)


def found_by(topic: str, check: Check) -> Iterator[Finding]:
    """The check's findings; an exception in the check becomes a finding too.

    Users run this when something is broken in an unexpected way.
    """
    try:
        yield from check()
    except Exception as error:  # noqa: BLE001
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        yield problem(topic, f"check failed: {reason}", "the installation may be incomplete")
