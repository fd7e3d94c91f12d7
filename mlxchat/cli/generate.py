"""`mlxchat generate`: reads a pipe or files, writes to a pipe or a file."""

from typing import Annotated, Any

import typer

from mlxchat.cli.configured import Template
from mlxchat.cli.options import (
    build,
    given_names,
    leave_template_out,
    setup_of,
    with_options,
)
from mlxchat.errors import UsageError
from mlxchat.options import options_of
from mlxchat.request.commands import COMMANDS, Shown

EPILOG = """\
Examples:
  cat report.txt | mlxchat generate "Summarize this in three sentences."
  mlxchat generate -f a.md -f b.md -n 300 "What do these two disagree on?"
  mlxchat generate --raw --ignore-eos --max-kv-size 512 "Once upon a time"
  mlxchat generate --ignore-eos --checkpoint night --until 07:00 "A saga."
  mlxchat generate --resume night
  git diff | mlxchat generate -p commit
"""


@with_options(COMMANDS["generate"])
def generate(
    context: typer.Context,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            help="Instruction, placed after the documents; - is stdin",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Resume a run from its checkpoint",
            show_default=False,
        ),
    ] = None,
    template: Template = None,
    **values: Any,
) -> None:
    """Generate text from a prompt, documents, or both."""
    # Imported only now, after parsing: these import MLX.
    from mlxchat.request import Answer, Overnight, Request
    from mlxchat.terminal.run_generate import resume_run, run

    if resume is not None:
        shown, changes = _given_again(context)
        raise typer.Exit(resume_run(resume, shown, **changes))
    leave_template_out(context, values)
    request = build(
        Request,
        values,
        setup=setup_of(values),
        prompt=prompt,
        template=template,
        answer=build(Answer, values),
        overnight=build(Overnight, values),
        kept={"quiet": values["quiet"], "stats": values["stats"]},
    )
    raise typer.Exit(run(request, build(Shown, values)))


def _given_again(context: typer.Context) -> tuple[dict[str, Any], Any]:
    """The options given with --resume: those of Shown, and those that change the run. Raises
    UsageError for an option that the text depends on."""
    from mlxchat.app.checkpoints import Changes

    options = COMMANDS["generate"]
    shown: dict[str, Any] = {}
    changes: dict[str, Any] = {}
    for name in given_names(context) - {"resume"}:
        if name in options_of(Shown):
            shown[name] = context.params[name]
        elif name in Changes.__annotations__:
            changes[name] = options[name].value_of(context.params[name])
        else:
            wrong = f"--{options[name].name}" if name in options else "the prompt"
            raise UsageError(f"--resume uses the options of the run: omit {wrong}")
    return shown, changes
