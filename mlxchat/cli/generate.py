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
        raise typer.Exit(resume_run(resume, build(Shown, values), **_changes(context)))
    leave_template_out(context, values)
    request = build(
        Request,
        values,
        setup=setup_of(values),
        prompt=prompt,
        template=template,
        answer=build(Answer, values),
        overnight=build(Overnight, values),
    )
    raise typer.Exit(run(request, build(Shown, values)))


def _changes(context: typer.Context) -> Any:
    """The options given with --resume that change the run. Raises UsageError for an option that the
    text depends on."""
    from mlxchat.app.checkpoints import Changes

    options = COMMANDS["generate"]
    changes: dict[str, Any] = {}
    for name in given_names(context) - {"resume", *options_of(Shown)}:
        if name not in Changes.__annotations__:
            wrong = f"--{options[name].name}" if name in options else "the prompt"
            raise UsageError(f"--resume uses the options of the run: omit {wrong}")
        changes[name] = options[name].value_of(context.params[name])
    return changes
