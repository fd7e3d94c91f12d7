"""Examines everything mlxchat needs from this machine. Prints nothing, changes nothing.

One broken thing does not keep the rest from being examined.
"""

from collections.abc import Iterator
from functools import partial

from mlxchat.doctor import disk, hub, machine, terminal
from mlxchat.doctor.finding import Check, Finding, Verdict, found_by, ok, problem, warning

__all__ = ["Check", "Finding", "Verdict", "examine", "ok", "problem", "warning"]


def examine(
    *, configuration: Check, prefix_cache_bytes: int, offline: bool = False
) -> Iterator[Finding]:
    """All findings, as they are made. `configuration` is a check passed in by the command line,
    which knows the options. If `offline`, the Hub is not contacted."""
    checks: dict[str, Check] = {
        "versions": machine.versions,
        "device": machine.device,
        "memory": machine.memory,
        "BLAS": machine.blas,
        "prefill": machine.prefill,
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
