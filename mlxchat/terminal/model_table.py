"""Prints models: a table of them, or the facts about one."""

from collections.abc import Sequence
from dataclasses import asdict

from mlxchat.models.describe import ModelFacts
from mlxchat.terminal import visible
from mlxchat.terminal.output import Messages
from mlxchat.terminal.table import write, write_json_lines, write_table
from mlxchat.units import format_bytes

COLUMNS = ("NAME", "SIZE", "MEMORY", "FITS", "HERE", "PARAMETERS", "QUANTIZATION")
NUMBERS = ("SIZE", "MEMORY", "PARAMETERS")


def write_models(models: Sequence[ModelFacts], *, as_json: bool) -> None:
    if as_json:
        write_json_lines(map(asdict, models))
        return
    write_table(COLUMNS, [_row(each) for each in models], NUMBERS, cut=())
    for each in models:
        if each.problem is not None:
            Messages().note(f"{each.name}: {each.problem}")


def write_model(facts: ModelFacts, *, as_json: bool) -> None:
    """What is known about a model, and how to get one that is not on this disk."""
    if as_json:
        write_json_lines([asdict(facts)])
        return
    _, size, memory, fits, here, parameters, quantization = _row(facts)
    if facts.directory is None and facts.here != "yes":
        here += f": `mlxchat models pull {facts.hub_id}` downloads it"
    rows = {
        "name": facts.name,
        "repository": facts.hub_id if facts.hub_id != facts.name else None,
        "type": facts.model_type,
        "parameters": parameters,
        "size": size,
        "quantization": quantization,
        "context": f"{facts.context_length:,} tokens" if facts.context_length else None,
        "KV per token": _bytes(facts.kv_bytes_per_token),
        "lookup": facts.lookup,
        "fits here": f"{fits}, needs {memory}",
        "directory" if facts.directory else "here": facts.directory or here,
    }
    known = {label: value for label, value in rows.items() if value}
    width = max(map(len, known))
    write("".join(f"{label:{width}}  {visible(value)}\n" for label, value in known.items()))


def _row(facts: ModelFacts) -> list[str]:
    return [
        facts.name,
        format_bytes(facts.size_bytes),
        _bytes(facts.memory_needed_bytes),
        {True: "yes", False: "no", None: "?"}[facts.fits],
        facts.here,
        _count(facts.parameters or 0),
        facts.quantization or "",
    ]


def _bytes(number: int | None) -> str:
    return "" if number is None else format_bytes(number)


def _count(number: int) -> str:
    """As model names spell it: 135M, 1.2B."""
    value, unit = (number / 1e9, "B") if number >= 1e9 else (number / 1e6, "M")
    return f"{value:.{0 if value >= 100 else 1}f}{unit}" if number else ""
