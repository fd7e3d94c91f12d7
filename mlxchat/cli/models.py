"""`mlxchat models`: list, download, remove and describe models; set the default one."""

from typing import TYPE_CHECKING, Annotated

import typer

from mlxchat.cli.group import App
from mlxchat.cli.options import Json, Yes, agrees, complete_model
from mlxchat.terminal.table import write

if TYPE_CHECKING:
    from mlxchat.models.describe import ModelFacts
    from mlxchat.models.locate import Located

models_app = App(
    help="List, download, remove and inspect models.",
    epilog="""\
Examples:
  mlxchat models list --all
  mlxchat models pull qwen3-4b

Environment:
  HF_HOME            where downloaded models are kept
  HF_TOKEN           access to gated and private models; or `hf auth login`
  HF_ENDPOINT        another hub
  HF_HUB_OFFLINE     if set, the network is never used
""",
)


def _complete_name_here(incomplete: str) -> list[str]:
    from mlxchat.models.catalog import names_here

    return names_here()


Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Alias, Hub ID, .gguf file or directory",
        autocompletion=complete_model,
    ),
]
NameHere = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Alias, Hub ID, .gguf file or name in `models list`",
        autocompletion=_complete_name_here,
    ),
]


@models_app.command("list", epilog="Example: mlxchat models list --all")
def list_models(
    everything: Annotated[
        bool, typer.Option("--all", help="Include models to download, and whether they fit")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the models on this disk.

    --all adds the models of the catalogue. In a pipe, each line has the columns of the table,
    separated by tabs.
    """
    from mlxchat.models import inventory
    from mlxchat.terminal.model_table import write_models
    from mlxchat.terminal.output import Messages

    models = inventory.list_choices() if everything else inventory.list_models()
    write_models(models, as_json=as_json)
    if not models:
        Messages().note("no models yet: `mlxchat models list --all` shows what can be downloaded")


@models_app.command(epilog="Example: mlxchat models pull mlx-community/Llama-3.2-1B-Instruct-4bit")
def pull(name: Name) -> None:
    """Download or update a model, or convert a .gguf file.

    Files that are already complete are kept. The model's directory is printed.
    """
    from mlxchat.errors import UsageError
    from mlxchat.models import hub
    from mlxchat.models.resolve import resolve_model
    from mlxchat.terminal.output import Messages

    notify = Messages().note
    located = _locate(name)
    if located.kind in ("directory", "imported"):
        raise UsageError(f"{located.name} is on this disk: nothing to download")
    if located.path is None:
        directory = hub.download(located.name, show_progress=True, notify=notify)
    else:
        directory = resolve_model(
            name, offline=True, ask=None, notify=notify, show_progress=True
        ).directory
    write(f"{directory}\n")


@models_app.command(epilog="Example: mlxchat models rm mlx-community/Qwen3-8B-4bit")
def rm(name: NameHere, yes: Yes = False) -> None:
    """Delete a downloaded or converted model.

    Your own directories and files are never deleted.
    """
    from mlxchat.models import inventory
    from mlxchat.models.hub_cache import disk_bytes
    from mlxchat.units import format_bytes

    located = _locate(name)
    directory = inventory.removable_dir(located)
    size = format_bytes(disk_bytes(directory))
    what = f"the converted copy of {located.name}" if located.kind == "gguf" else located.name
    if agrees(f"Delete {what}, {size}?", yes=yes):
        inventory.remove(directory)
        write(f"deleted {what}, {size}\n")


@models_app.command(epilog="Example: mlxchat models info qwen3-4b")
def info(name: Name, as_json: Json = False) -> None:
    """Show a model's size and context, and whether it fits.

    Asks the Hub about a model that is not on this disk; downloads nothing.
    """
    from mlxchat.models.describe import describe
    from mlxchat.models.hub_cache import cached_snapshot
    from mlxchat.models.resolve import resolve_model
    from mlxchat.terminal.model_table import write_model
    from mlxchat.terminal.output import Messages

    located = _locate(name)
    notify = Messages().note
    if located.path is None and cached_snapshot(located.name) is None:
        facts = _remote_facts(located.name)
    else:
        found = resolve_model(name, offline=True, ask=None, notify=notify, show_progress=False)
        facts = describe(found.name, found.directory)
    write_model(facts, as_json=as_json)


def _remote_facts(hub_id: str) -> "ModelFacts":
    """The facts about a model on the Hub; if that does not answer, those of the catalogue."""
    from mlxchat.errors import HubError
    from mlxchat.models.describe import describe_remote
    from mlxchat.models.inventory import catalogue
    from mlxchat.terminal.output import Messages

    try:
        return describe_remote(hub_id)
    except HubError as error:
        facts = next((each for each in catalogue() if each.hub_id == hub_id), None)
        if facts is None:
            raise
        Messages().warn(str(error))
        return facts


def _locate(name: str) -> "Located":
    from mlxchat.config import read_user_config
    from mlxchat.models.locate import locate

    return locate(name, read_user_config().aliases)
