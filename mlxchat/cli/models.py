"""`mlxchat models`: list, download, remove and describe models."""

import shutil
from typing import TYPE_CHECKING, Annotated

import typer

from mlxchat.cli.group import App
from mlxchat.cli.options import Json, Yes, as_typed, complete_model, confirm
from mlxchat.config import read_user_config
from mlxchat.errors import ModelError, UsageError
from mlxchat.files import reported_as
from mlxchat.terminal.output import Messages
from mlxchat.terminal.table import write
from mlxchat.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from mlxchat.models.resolve import Located

models_app = App(
    help="List, download, remove and inspect models.",
    epilog="""\
Examples:
  mlxchat models list --all
  mlxchat models pull qwen3-4b

HF_HOME and other variables: mlxchat help files
""",
)


def _complete_name_here(incomplete: str) -> list[str]:
    from mlxchat.models.catalog import names_here

    return as_typed(names_here(), incomplete)


MEANING = "Alias, Hub ID, .gguf file or directory"
Name = Annotated[str, typer.Argument(metavar="NAME", help=MEANING, autocompletion=complete_model)]
NameHere = Annotated[
    str, typer.Argument(metavar="NAME", help=MEANING, autocompletion=_complete_name_here)
]
All = Annotated[bool, typer.Option("--all", help="Include models to download, and if they fit")]


@models_app.command("list", epilog="Example: mlxchat models list --all")
def list_models(everything: All = False, as_json: Json = False) -> None:
    """List the models on this disk.

    --all adds the catalogue. In a pipe, lines have the table's columns, separated by tabs.
    """
    from mlxchat.models import describe
    from mlxchat.terminal.table import write_models

    models = describe.list_choices() if everything else describe.list_models()
    write_models(models, as_json=as_json)
    if not models:
        Messages().note("no models yet: `mlxchat models list --all` shows what can be downloaded")


@models_app.command(epilog="Example: mlxchat models pull mlx-community/Llama-3.2-1B-Instruct-4bit")
def pull(name: Name) -> None:
    """Download or update a model, or convert a .gguf file.

    Files that are already complete are kept. The model's directory is printed.
    """
    from mlxchat.models import hub

    located = _locate(name)
    if located.kind in ("directory", "imported"):
        raise UsageError(f"{located.name} is on this disk: nothing to download")
    if located.path is None:
        directory = hub.download(located.name, show_progress=True, notify=Messages().note)
    else:
        directory = _directory_here(name, show_progress=True)
    write(f"{directory}\n")


@models_app.command(epilog="Example: mlxchat models rm mlx-community/Qwen3-8B-4bit")
def rm(name: NameHere, yes: Yes = False) -> None:
    """Delete a downloaded or converted model.

    Your own directories and files are never deleted.
    """
    from mlxchat.models.describe import removable_dir
    from mlxchat.models.hub_cache import disk_bytes

    located = _locate(name)
    directory = removable_dir(located)
    size = format_bytes(disk_bytes(directory))
    what = f"the converted copy of {located.name}" if located.kind == "gguf" else located.name
    confirm(f"Delete {what}, {size}?", yes=yes)
    with reported_as(ModelError, f"remove {directory}"):
        shutil.rmtree(directory)
    write(f"deleted {what}, {size}\n")


@models_app.command(epilog="Example: mlxchat models info qwen3-4b")
def info(name: Name, as_json: Json = False) -> None:
    """Show a model's size and context, and whether it fits.

    Asks the Hub about a model that is not on this disk; downloads nothing.
    """
    from mlxchat.models.describe import describe, describe_remote
    from mlxchat.models.hub_cache import cached_snapshot
    from mlxchat.terminal.table import write_model

    located = _locate(name)
    if located.path is None and cached_snapshot(located.name) is None:
        facts = describe_remote(located.name)
        if facts.problem is not None:
            Messages().warn(facts.problem)
    else:
        facts = describe(located.name, _directory_here(name, show_progress=False))
    write_model(facts, as_json=as_json)


def _locate(name: str) -> "Located":
    from mlxchat.models.resolve import locate

    return locate(name, read_user_config().aliases)


def _directory_here(name: str, *, show_progress: bool) -> "Path":
    """The directory of a model on this disk; a .gguf file is converted first."""
    from mlxchat.models.resolve import resolve_model

    return resolve_model(
        name, offline=True, ask=None, notify=Messages().note, show_progress=show_progress
    ).directory
