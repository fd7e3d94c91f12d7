"""Prints models: those on this disk, those of the catalogue, and the facts about one."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mlxchat.models.describe import ModelFacts
from mlxchat.models.inventory import Choice, Entry
from mlxchat.terminal import visible
from mlxchat.terminal.listing import write, write_json_lines, write_table
from mlxchat.terminal.messages import Messages
from mlxchat.units import format_bytes

COLUMNS = ("NAME", "SIZE", "PARAMETERS", "QUANTIZATION", "CONTEXT", "KV/TOKEN", "FITS")
NUMBERS = ("SIZE", "PARAMETERS", "CONTEXT", "KV/TOKEN")
CHOICE_COLUMNS = ("NAME", "SIZE", "MEMORY", "FITS", "HERE", "PARAMETERS")
CHOICE_NUMBERS = ("PARAMETERS", "SIZE", "MEMORY")


def write_entries(entries: Sequence[Entry], *, as_json: bool) -> None:
    """The models on this disk."""
    if as_json:
        write_json_lines([_entry_as_json(entry) for entry in entries])
        return
    write_table(COLUMNS, [_entry_as_row(entry) for entry in entries], NUMBERS, cut=())
    for entry in entries:
        if entry.problem is not None:
            Messages().note(f"{entry.name}: {entry.problem}")


def write_choices(choices: Sequence[Choice], *, as_json: bool) -> None:
    """The models that can be chosen, on this disk or not."""
    if as_json:
        write_json_lines(map(asdict, choices))
    else:
        rows = [_choice_as_row(each) for each in choices]
        write_table(CHOICE_COLUMNS, rows, CHOICE_NUMBERS, cut=())


def write_choice(choice: Choice, *, as_json: bool) -> None:
    if as_json:
        write_json_lines([asdict(choice)])
    else:
        _write_facts(_choice_as_rows(choice))


def write_model(facts: ModelFacts, *, directory: str | None, hint: str, as_json: bool) -> None:
    """The facts about a model in `directory`; if that is None, `hint` says how to get one."""
    if as_json:
        here = "no" if directory is None else "yes"
        write_json_lines([asdict(facts) | {"here": here, "directory": directory}])
    else:
        place = ("here", hint) if directory is None else ("directory", directory)
        _write_facts([*_facts_as_rows(facts), place])


def _write_facts(rows: Sequence[tuple[str, str]]) -> None:
    width = max(len(label) for label, _ in rows)
    write("".join(f"{label:{width}}  {visible(value)}\n" for label, value in rows))


def _entry_as_row(entry: Entry) -> list[str]:

    facts = entry.facts
    if facts is None:
        return [entry.name, format_bytes(entry.size_bytes), "", "", "", "", "?"]
    return [
        entry.name,
        format_bytes(entry.size_bytes),
        _count(facts.parameters),
        facts.quantization,
        str(facts.context_length or ""),
        format_bytes(facts.kv_bytes_per_token),
        "yes" if facts.fits else "no",
    ]


def _entry_as_json(entry: Entry) -> dict[str, Any]:

    facts = asdict(entry.facts) if entry.facts is not None else {"name": entry.name}
    problem = entry.problem
    return facts | {"size_bytes": entry.size_bytes, "problem": problem}


def _choice_as_row(choice: Choice) -> list[str]:

    needed_bytes = choice.memory_needed_bytes
    return [
        choice.name,
        format_bytes(choice.size_bytes),
        "" if needed_bytes is None else format_bytes(needed_bytes),
        {True: "yes", False: "no", None: "?"}[choice.fits],
        choice.here,
        "" if choice.parameters is None else _count(choice.parameters),
    ]


def _choice_as_rows(choice: Choice) -> list[tuple[str, str]]:
    name, size, memory, fits, here, parameters = _choice_as_row(choice)
    return [
        ("name", name),
        ("repository", choice.hub_id or ""),
        ("parameters", parameters),
        ("size", size),
        ("fits here", f"{fits}, needs {memory}"),
        ("here", here),
    ]


def _facts_as_rows(facts: ModelFacts) -> list[tuple[str, str]]:

    context = f"{facts.context_length:,} tokens" if facts.context_length else "unknown"
    fits = "yes" if facts.fits else "no"
    return [
        ("name", facts.name),
        ("type", facts.model_type),
        ("parameters", _count(facts.parameters)),
        ("size", format_bytes(facts.size_bytes)),
        ("quantization", facts.quantization),
        ("context", context),
        ("KV per token", format_bytes(facts.kv_bytes_per_token)),
        ("lookup", facts.lookup),
        ("fits here", f"{fits}, needs {format_bytes(facts.memory_needed_bytes)}"),
    ]


def _count(number: int) -> str:
    """As model names spell it: 135M, 1.2B."""
    for size, unit in ((1e9, "B"), (1e6, "M")):
        if number >= size:
            value = number / size
            return f"{value:.0f}{unit}" if value >= 100 else f"{value:.1f}{unit}"
    return str(number)
