"""`mlxchat prompts`: list, show and edit the prompts of the configuration."""

from typing import Annotated

import typer

from mlxchat.cli.completion import complete_prompt
from mlxchat.cli.config import edit as edit_config
from mlxchat.cli.group import App
from mlxchat.cli.options import Json
from mlxchat.config.file import TEXT, read_user_config
from mlxchat.terminal.table import write, write_json_lines, write_table

prompts_app = App(
    help="List, show and edit prompts of your own.",
    no_args_is_help=True,
    epilog="""\
Examples:
  mlxchat prompts edit
  mlxchat prompts list
  git diff | mlxchat -p commit
""",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Prompt", autocompletion=complete_prompt)]


@prompts_app.command("list", epilog="Example: mlxchat prompts list --json")
def list_prompts(as_json: Json = False) -> None:
    """List the prompts that are configured here.

    In a pipe, each line has the columns of the table, separated by tabs.
    """
    found = dict(sorted(read_user_config().prompts.items()))
    if as_json:
        write_json_lines({"name": name, **values} for name, values in found.items())
        return
    rows = [(name, " ".join(str(each.get(TEXT, "")).split())) for name, each in found.items()]
    write_table(("NAME", "PROMPT"), rows, cut=("PROMPT",))


@prompts_app.command(epilog="Example: mlxchat prompts show commit")
def show(name: Name) -> None:
    """Print a prompt and its options."""
    import tomlkit

    prompt = read_user_config().prompt(name)
    write(tomlkit.dumps({"prompts": {name: {key: each.value for key, each in prompt.items()}}}))


@prompts_app.command(epilog="Example: EDITOR=nano mlxchat prompts edit")
def edit(context: typer.Context) -> None:
    """Edit the configuration file, which has the prompts.

    Opens $VISUAL or $EDITOR. A prompt NAME is a table [prompts.NAME] with the key
    prompt, in which {input} is the place of the input, and any options of
    `mlxchat generate`.
    """
    edit_config(context)
