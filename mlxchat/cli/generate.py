"""`mlxchat generate`: reads a pipe or files, writes to a pipe or a file; and `mlxchat batch`: many
prompts from a file or a pipe, and a line of JSON for each answer."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mlxchat.cli.options import Template, build, given_names, setup_of, with_options
from mlxchat.errors import UsageError
from mlxchat.options import options_of
from mlxchat.request import Answer, BatchInput, BatchRequest, Overnight, Request
from mlxchat.request.commands import COMMANDS, Shown

EPILOG = """\
Examples:
  cat report.txt | mlxchat generate "Summarize this in three sentences."
  mlxchat generate -f a.md -f b.md -n 300 "What do these two disagree on?"
  mlxchat generate --raw --ignore-eos --max-kv-size 512 "Once upon a time"
  mlxchat generate --ignore-eos --checkpoint night --until 07:00 "A saga."
  mlxchat generate --resume night
"""

BATCH_EPILOG = """\
Examples:
  mlxchat batch prompts.jsonl -o answers.jsonl
  mlxchat batch --csv mail.csv -o out.jsonl -t "Is this spam? {body}"
  mlxchat batch --files "papers/*.txt" -o out.jsonl -t "Summarize: {input}"
  cat questions.txt | mlxchat batch --lines > answers.jsonl

Input:
  JSON Lines: {"id": …, "prompt": … or "messages": …, "temp": …, …}, or the
  batch form of OpenAI. See `mlxchat help batch`.

Continuing:
  Run the same command again: it does only the rows that have no answer yet.
"""


@with_options(COMMANDS["generate"])
def generate(
    context: typer.Context,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT", help="Instruction, placed after the documents; - is stdin"
        ),
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="DIR", help="Resume a run from its checkpoint")
    ] = None,
    template: Template = None,
    **values: Any,
) -> None:
    """Generate text from a prompt, documents, or both."""
    # Imported only now, after parsing: it imports MLX.
    from mlxchat.terminal.run_generate import resume_run, run

    if resume is not None:
        raise typer.Exit(resume_run(resume, build(Shown, values), **_changes(context)))
    if prompt is not None and not prompt.strip():
        raise UsageError("the prompt is empty")
    has_question = not (values["raw"] or template or prompt in (None, "-"))
    if not (has_question or values["overflow"] == "stop" or "overflow" in given_names(context)):
        values["overflow"] = None
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
    """The options given with --resume that change the run. Raises UsageError for any others."""
    from mlxchat.app.begin import Changes

    options, changes = COMMANDS["generate"], dict[str, Any]()
    given = given_names(context) - {"resume", *options_of(Shown)}
    for name in sorted(given, key=options.__contains__):
        if name not in Changes.__annotations__:
            wrong = f"--{options[name].name}" if name in options else "the prompt"
            raise UsageError(f"--resume uses the options of the run: omit {wrong}")
        changes[name] = options[name].value_of(context.params[name])
    return changes


@with_options(COMMANDS["batch"])
def batch(
    context: typer.Context,
    path: Annotated[
        str | None, typer.Argument(metavar="INPUT", help="File of rows; - or nothing is stdin")
    ] = None,
    **values: Any,
) -> None:
    """Answer many prompts, several at a time."""
    from mlxchat.terminal.run_batch import run
    from mlxchat.text.documents import STDIN

    if path == "":
        raise UsageError("INPUT must not be empty")
    if path is not None and "pattern" not in given_names(context):
        values["pattern"] = None
    request = build(
        BatchRequest,
        values,
        setup=setup_of(values),
        input=build(BatchInput, values, path=None if path in (None, STDIN) else Path(path)),
        answer=build(Answer, values),
    )
    raise typer.Exit(run(request, build(Shown, values)))
