"""JSON from elsewhere, read so that no two readers understand it differently."""

import json
import math
from collections.abc import Callable
from typing import Any


def parse_strictly(text: str, parse_float: Callable[[str], float] | None = None) -> Any:
    """The value. Raises ValueError, also for NaN, Infinity and names given twice; RecursionError if
    it is nested too deeply."""
    return json.loads(
        text, object_pairs_hook=_without_repeats, parse_float=parse_float, parse_constant=finite
    )


def finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"name {repeated!r:.60} is given twice")
    return found
