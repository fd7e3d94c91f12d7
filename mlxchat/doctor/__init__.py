"""Examines what mlxchat needs of this machine. Nothing is printed, changed or made here.

Whatever is broken, the rest is examined as well.
"""

from collections.abc import Iterator
from functools import partial

from mlxchat.doctor import disk, hub, machine, terminal
from mlxchat.doctor.finding import Check, Finding, Verdict, found_by, ok, problem, warning

__all__ = ["Check", "Finding", "Verdict", "examine", "ok", "problem", "warning"]


def examine(
    *, configuration: Check, prefix_cache_bytes: int, offline: bool = False
) -> Iterator[Finding]:
    """All findings, as they are made. `configuration` examines that, whose options it takes a
    command line to know; with `offline` the hub is not asked."""
    checks: dict[str, Check] = {
        "versions": machine.versions,
        "device": machine.device,
        "memory": machine.memory,
        "BLAS": machine.blas,
        "configuration": configuration,
        "model": hub.model,
        "hub cache": disk.hub_cache,
        "converted models": disk.converted_models,
        "prefix cache": partial(disk.prefix_cache, prefix_cache_bytes),
        "sessions": disk.sessions,
        "terminal": terminal.terminal,
        "hub token": hub.token,
    }
    if not offline:
        checks["hub"] = hub.access
    for topic, check in checks.items():
        yield from found_by(topic, check)
