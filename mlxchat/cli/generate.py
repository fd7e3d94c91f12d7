"""`mlxchat generate`: reads a pipe, writes a pipe."""

from typing import Annotated, Any

import typer

from mlxchat.cli.options import COMMANDS, Shown, build, given_names, with_options
from mlxchat.cli.version import VersionOption
from mlxchat.errors import UsageError
from mlxchat.options import Group, options_of
from mlxchat.wording import Field

EPILOG = """\
Examples:
  cat report.txt | mlxchat generate "Summarize this in three sentences."
  mlxchat generate -f a.md -f b.md -n 300 "What do these two disagree on?"
  mlxchat generate --block a.md --block b.md "Which of the two is newer?"
  mlxchat generate --raw --ignore-eos --max-kv-size 512 "Once upon a time"
  mlxchat generate --ignore-eos --checkpoint night --until 07:00 "A saga."
  mlxchat generate --resume night

Environment and files:
  Every option but PROMPT can be configured: --max-tokens as the variable
  MLXCHAT_GENERATE_MAX_TOKENS, or by `mlxchat config set generate.max-tokens`.
  `mlxchat config show generate` shows what is in effect.

Exit status: 0 done, 1 failed, 2 usage error, 3 ended by --on-loop stop,
130, 143 and 129 ended by Ctrl-C, SIGTERM and SIGHUP, 141 output closed.
"""


@with_options(COMMANDS["generate"])
def generate(
    context: typer.Context,
    prompt: Annotated[
        str | None, typer.Argument(help="Instruction; it goes after all documents.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Resume from a checkpoint, with all the options that the run began with.",
            show_default="none",
            rich_help_panel=Group.OVERNIGHT,
        ),
    ] = None,
    version: VersionOption = False,
    **values: Any,
) -> None:
    """Generate text after a prompt, documents, or both: reads a pipe, writes a pipe."""
    # Here, after the parsing: what follows imports MLX.
    from mlxchat.cli.run import resume_run, run
    from mlxchat.cli.setup import setup_of
    from mlxchat.request import Overnight, Request

    if resume is not None:
        shown, changes = _given_anew(context)
        raise typer.Exit(resume_run(resume, shown, **changes))
    if values["raw"]:
        # What is configured is meant for the chat template.
        given = given_names(context)
        values |= dict.fromkeys({"system", "think", "template_args"} - given)
    request = build(
        Request,
        values,
        setup=setup_of(values),
        prompt=prompt,
        overnight=build(Overnight, values),
        kept={"quiet": values["quiet"], "stats": values["stats"]},
    )
    raise typer.Exit(run(request, build(Shown, values)))


def _given_anew(context: typer.Context) -> tuple[dict[str, Any], Any]:
    """The options beside --resume: what is shown, and what changes of the run. Raises UsageError
    for what its text depends on."""
    from mlxchat.app.begin import Changes

    options = COMMANDS["generate"]
    shown: dict[str, Any] = {}
    changes: dict[str, Any] = {}
    for name in given_names(context) - {"resume"}:
        if name in options_of(Shown):
            shown[name] = context.params[name]
        elif name in Changes.__annotations__:
            changes[name] = options[name].value_of(context.params[name])
        else:
            wrong = Field(name) if name in options else "the prompt"
            raise UsageError("--resume continues with the run's own options: leave ", wrong, " out")
    return shown, changes
