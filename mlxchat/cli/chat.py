"""`mlxchat chat`, and `mlxchat` alone: a conversation, or the answer to one question."""

from typing import Annotated, Any

import typer

from mlxchat.cli.options import Template, build, given_names, setup_of, with_options
from mlxchat.cli.usage_errors import check_question
from mlxchat.errors import UsageError
from mlxchat.options import flag, options_of, refuse_pairs
from mlxchat.request import Answer, ChatOptions
from mlxchat.request.commands import COMMANDS, ChatShown
from mlxchat.settings import GenerationSettings

# Whether the arguments do not name `chat`.
IMPLIED = f"{__name__}.implied"

EPILOG = """\
Examples:
  mlxchat
  mlxchat "Why is the sky blue?"
  mlxchat -c "And why is it red in the evening?"
  git diff | mlxchat -p commit
  mlxchat chat --session holidays -f plan.md -s "Answer in one sentence."

In a chat, /help lists the commands, Ctrl-C stops a reply, Ctrl-D exits.

Input from a pipe:
  With a QUESTION, the input is a document, placed before it. Without one,
  each line is a turn, as text or as JSON with "role" (user or system) and
  "content"; "schema", "regex", "choice" or "grammar" constrain its answer.

Chats are saved as sessions: `mlxchat session list`.
"""


@with_options(COMMANDS["chat"])
def chat(
    context: typer.Context,
    question: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUESTION", help="Ask this and exit; - reads it from stdin"),
    ] = None,
    template: Template = None,
    **values: Any,
) -> None:
    """Chat with a model, or ask it one question."""
    asks = question is not None or template is not None
    if question is not None:
        subject = values["files"] or values["latest"] or values["session"]
        _check(question, context, has_subject=bool(subject) or template is not None)
    # Imported only now, after parsing: it imports MLX.
    from mlxchat.terminal.run_chat import run

    generation = build(GenerationSettings, values, logprobs=0 if values["events"] else None)
    chosen = given_names(context) - {"question", "template"}
    setup = setup_of(values)
    options = build(ChatOptions, values, setup=setup, generation=generation, chosen=chosen)
    shown = build(ChatShown, values)
    if not asks and (given := [name for name in options_of(Answer) if name in chosen]):
        raise UsageError(f"{flag(given[0])} needs a QUESTION")
    answer = build(Answer, values) if asks else Answer()
    refuse_pairs(shown, answer)
    raise typer.Exit(run(options, shown, question[0] if question else None, answer, template))


def _check(words: list[str], context: typer.Context, *, has_subject: bool) -> None:
    """Raises UsageError."""
    if not words[0].strip():
        raise UsageError("the question is empty")
    if IMPLIED in context.meta:
        from mlxchat.text.documents import piped_stdin

        has_subject = has_subject or piped_stdin() is not None
        check_question(words, context.find_root().command, has_subject=has_subject)
    if len(words) > 1:
        before = "-- " * (words[0][:1] == "-")
        raise UsageError(f'quote the question: mlxchat chat {before}"{" ".join(words)}"')
