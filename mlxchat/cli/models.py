"""`mlxchat models`: what is on this disk, bringing models here, taking them away, the default."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlxchat.cli.completion import complete_model, complete_model_here
from mlxchat.cli.group import Group
from mlxchat.cli.listing import Json, write, write_json_lines, write_table

if TYPE_CHECKING:
    from mlxchat.models.describe import ModelFacts
    from mlxchat.models.inventory import Entry
    from mlxchat.models.locate import Located

models_app = typer.Typer(
    cls=Group,
    help="List, fetch, remove and inspect models; set the default one.",
    no_args_is_help=True,
    epilog="""\
Examples:
  mlxchat models pull qwen3-4b
  mlxchat models list

Environment:
  HF_HOME            where models of the hub are kept
  HF_TOKEN           access to gated and private models; or `hf auth login`
  HF_ENDPOINT        another hub
  HF_HUB_OFFLINE     if set, the network is never used
""",
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Hub id, alias, .gguf file, directory.",
        autocompletion=complete_model,
    ),
]
NameHere = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Hub id, alias, .gguf file, or as `models list` calls it.",
        autocompletion=complete_model_here,
    ),
]
COLUMNS = ("NAME", "SIZE", "PARAMETERS", "QUANTIZATION", "CONTEXT", "KV/TOKEN", "FITS")
NUMBERS = ("SIZE", "PARAMETERS", "CONTEXT", "KV/TOKEN")


@models_app.command("list", epilog="Example: mlxchat models list --json")
def list_models(as_json: Json = False) -> None:
    """List the models on this disk: from the hub, converted from GGUF, embedded.

    When piped: one line each, tab-separated, in the order of the table's columns.
    """
    from mlxchat.models import inventory

    entries = inventory.list_models()
    if as_json:
        write_json_lines([_entry_as_json(entry) for entry in entries])
    else:
        _write_table(entries)


@models_app.command(epilog="Example: mlxchat models pull mlx-community/Llama-3.2-1B-Instruct-4bit")
def pull(name: Name) -> None:
    """Download a model, finish or update it, or convert a .gguf file; writes its directory.

    Files that are complete already are kept.
    """
    from mlxchat.errors import UsageError
    from mlxchat.models import hub
    from mlxchat.models.resolve import resolve_model
    from mlxchat.terminal.messages import Messages

    notify = Messages().note
    located = _locate(name)
    if located.kind in ("directory", "imported"):
        raise UsageError(f"{located.name} is on this disk: there is nothing to fetch")
    if located.path is None:
        directory = hub.download(located.name, show_progress=True, notify=notify)
    else:
        directory = resolve_model(
            name, offline=True, ask=None, notify=notify, show_progress=True
        ).directory
    write(f"{directory}\n")


@models_app.command(epilog="Example: mlxchat models rm --yes mlx-community/Qwen3-8B-4bit")
def rm(
    name: NameHere,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
) -> None:
    """Remove a model from the hub's cache, or what a .gguf file was converted into.

    Never removes a directory or a file that is your own.
    """
    from mlxchat.models import inventory
    from mlxchat.terminal.messages import Messages
    from mlxchat.units import format_bytes

    located = _locate(name)
    size = format_bytes(inventory.removable_bytes(located))
    if yes or _agrees(f"Remove {located.name}, {size}?"):
        inventory.remove(located)
        Messages().note(f"removed {located.name}, {size}")


@models_app.command(epilog="Example: mlxchat models info smollm2")
def info(name: Name, as_json: Json = False) -> None:
    """Show a model's size, quantization, context, memory a token, and whether it fits here.

    Looks at this disk only; a .gguf file is converted if it was not yet.
    """
    from mlxchat.models.describe import describe
    from mlxchat.models.resolve import resolve_model
    from mlxchat.terminal.messages import Messages

    resolved = resolve_model(
        name, offline=True, ask=None, notify=Messages().note, show_progress=False
    )
    facts = describe(resolved.name, resolved.directory)
    if as_json:
        write_json_lines([asdict(facts) | {"directory": str(resolved.directory)}])
    else:
        _write_facts([*_facts_as_rows(facts), ("directory", str(resolved.directory))])


@models_app.command(epilog="Example: mlxchat models default qwen3-4b")
def default(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Model to use from now on.", autocompletion=complete_model
        ),
    ] = None,
    unset: Annotated[
        bool, typer.Option("--unset", help="Take the default away.", show_default=False)
    ] = False,
) -> None:
    """Show the default model of the configuration file, or set it.

    -m and the variable MLXCHAT_MODEL come before it.
    """
    from mlxchat.config.edit import set_default_model
    from mlxchat.config.file import read_user_config
    from mlxchat.errors import UsageError
    from mlxchat.models.locate import lasting_name
    from mlxchat.terminal.messages import Messages

    if unset and name is not None:
        raise UsageError("--unset takes no NAME")
    if unset:
        set_default_model(None)
    elif name is not None:
        set_default_model(lasting_name(name, read_user_config().aliases))
    elif (model := read_user_config().model) is not None:
        write(f"{model}\n")
    else:
        Messages().warn("no default model is set: `mlxchat models default NAME` sets one")


def _locate(name: str) -> "Located":
    from mlxchat.config.file import read_user_config
    from mlxchat.models.locate import locate

    return locate(name, read_user_config().aliases)


def _agrees(question: str) -> bool:
    from mlxchat.errors import UsageError
    from mlxchat.terminal import visible
    from mlxchat.terminal.ask import terminal_question

    if terminal_question() is None:
        raise UsageError("there is nobody to ask: confirm with --yes")
    return typer.confirm(visible(question), err=True)


def _write_table(entries: Sequence["Entry"]) -> None:
    from mlxchat.terminal.messages import Messages
    from mlxchat.wording import Message

    write_table(COLUMNS, [_entry_as_row(entry) for entry in entries], NUMBERS)
    if not entries:
        Messages().note("no models here yet: `mlxchat models pull NAME` fetches one")
    for entry in entries:
        if entry.problem is not None:
            Messages().note(Message(f"{entry.name}: ", entry.problem))


def _write_facts(rows: Sequence[tuple[str, str]]) -> None:
    from mlxchat.terminal import visible

    width = max(len(label) for label, _ in rows)
    write("".join(f"{label:{width}}  {visible(value)}\n" for label, value in rows))


def _entry_as_row(entry: "Entry") -> list[str]:
    from mlxchat.units import format_bytes

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


def _entry_as_json(entry: "Entry") -> dict[str, Any]:
    from mlxchat.terminal.spelling import as_flags

    facts = asdict(entry.facts) if entry.facts is not None else {"name": entry.name}
    problem = None if entry.problem is None else as_flags(entry.problem)
    return facts | {"size_bytes": entry.size_bytes, "problem": problem}


def _facts_as_rows(facts: "ModelFacts") -> list[tuple[str, str]]:
    from mlxchat.units import format_bytes

    context = f"{facts.context_length:,} tokens" if facts.context_length else "unknown"
    fits = "yes" if facts.fits else "no"
    return [
        ("name", facts.name),
        ("type", facts.model_type),
        ("parameters", _count(facts.parameters)),
        ("size", format_bytes(facts.size_bytes)),
        ("quantization", facts.quantization),
        ("context", context),
        ("KV a token", format_bytes(facts.kv_bytes_per_token)),
        ("fits here", f"{fits}, needs {format_bytes(facts.memory_needed_bytes)}"),
    ]


def _count(number: int) -> str:
    """135M, 1.2B: as model names have it."""
    for size, unit in ((1e9, "B"), (1e6, "M")):
        if number >= size:
            value = number / size
            return f"{value:.0f}{unit}" if value >= 100 else f"{value:.1f}{unit}"
    return str(number)
