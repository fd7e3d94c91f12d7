"""`mlxchat batch`: many prompts from a file or a pipe, and a line of JSON for each answer."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mlxchat.cli.options import build, leave_template_out, setup_of, with_options
from mlxchat.request.commands import COMMANDS, Shown

EPILOG = """\
Examples:
  mlxchat batch prompts.jsonl -o answers.jsonl
  mlxchat batch --csv mail.csv -o out.jsonl -t "Is this spam? {text}"
  mlxchat batch --files "papers/*.txt" -o out.jsonl -t "Summarize: {text}"
  cat questions.txt | mlxchat batch --lines > answers.jsonl

Input:
  JSON Lines: {"id": …, "prompt": … or "messages": …, "temp": …, …}, or the
  batch form of OpenAI. See `mlxchat help batch`.

Continuing:
  Run the same command again: it does only the rows that have no answer yet.
"""


@with_options(COMMANDS["batch"])
def batch(
    context: typer.Context,
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="INPUT", help="File of rows; - or nothing is stdin", show_default=False
        ),
    ] = None,
    **values: Any,
) -> None:
    """Answer many prompts, several at a time."""
    # Imported only now, after parsing: these import MLX.
    from mlxchat.request import Answer, BatchInput, BatchRequest
    from mlxchat.terminal.run_batch import run
    from mlxchat.text.documents import STDIN

    leave_template_out(context, values)
    source = Path(path) if path not in (None, STDIN) else None
    request = build(
        BatchRequest,
        values,
        setup=setup_of(values),
        input=build(BatchInput, values, path=source),
        answer=build(Answer, values),
    )
    raise typer.Exit(run(request, build(Shown, values)))
