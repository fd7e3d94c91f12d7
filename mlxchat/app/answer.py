"""The constraint on an answer, from what the user asked for, and how the answer begins."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxchat.constraint.constraint import GBNF, NOT_GBNF, Constraint
from mlxchat.engine.constrained import Constrained
from mlxchat.errors import UsageError
from mlxchat.request import Answer
from mlxchat.request.generate import Asking
from mlxchat.request.written import allows_thinking
from mlxchat.text.extract import is_settled
from mlxchat.text.tokens import Prompt, Tokenizer

MAX_GRAMMAR_BYTES = 1 << 20


def constraint_of(answer: Answer) -> Constraint | None:
    """The constraint, if any. Raises UsageError if it is invalid or its file cannot be read."""
    if answer.schema is not None:
        return Constraint.from_schema(answer.schema)
    if answer.schema_multi is not None:
        return Constraint.from_schema(answer.schema_multi, multi=True)
    if answer.regex is not None:
        return Constraint.from_regex(answer.regex)
    if answer.choice:
        return Constraint.from_choices(answer.choice)
    if answer.grammar is not None:
        return Constraint.from_grammar(_read(answer.grammar))
    return None


def constraint_in(fields: Mapping[str, Any]) -> Constraint | None:
    """The constraint in the fields of a turn or a row: "schema" is a JSON Schema, its text, or the
    short form, but no file's name, since the fields may come from a stranger; "regex" and "grammar"
    are texts, "choice" is a list of them.

    Other fields are ignored. Raises UsageError.
    """
    given = [name for name in ("schema", "regex", "choice", "grammar") if name in fields]
    if not given:
        return None
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} cannot be combined")
    (name,) = given
    match name, fields[name]:
        case "schema", str() | dict() | bool() as schema:
            return Constraint.from_schema(schema, may_be_file=False)
        case "regex", str(pattern):
            return Constraint.from_regex(pattern)
        case "grammar", str(grammar):
            return Constraint.from_grammar(grammar)
        case "choice", list(choices) if all(isinstance(each, str) for each in choices):
            return Constraint.from_choices(choices)
        case _:
            raise UsageError(f"{name} has a value of the wrong type")


def with_schema(system: str | None, constraint: Constraint) -> str:
    """The system prompt with the constraint's schema."""
    schema = json.dumps(constraint.schema, ensure_ascii=False)
    instruction = f"Answer in JSON that follows this JSON Schema:\n{schema}"
    return instruction if system is None else f"{system}\n\n{instruction}"


def begin_answer(
    request: Asking, asked: Prompt, constraint: Constraint | None, tokenizer: Tokenizer
) -> tuple[Prompt, str, dict[str, Any]]:
    """The prompt with the beginning of the answer, if the request has one; the text of that; and
    the arguments of `Reply` that read and constrain the rest."""
    prompt = tokenizer.with_beginning(asked, request.answer.prefill, newlines=constraint is None)
    reader, text = tokenizer.reader(), ""
    if not request.raw:
        reader, text = tokenizer.reader_after(prompt)
    constrained = constraint and Constrained(
        constraint,
        tokenizer,
        # It decides how the reply begins: with a thought, for example.
        None if request.raw else prompt,
        may_think=allows_thinking(request.variables()),
    )
    return prompt, text, {"reader": reader, "constrained": constrained}


def value_of(constraint: Constraint | None, answer: str) -> Any:
    """A complete answer as a JSON value, if it was constrained by a schema.

    None if Python cannot hold it: a schema that allows anything allows deep nesting, and combined
    schemas may allow 1e999.
    """
    if constraint is None or constraint.kind != "schema":
        return None
    try:
        value = json.loads(answer)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return value


def is_whole(text: str, finish_reason: str) -> bool:
    """Whether the code to extract from a text is all that the model would have written."""
    return finish_reason in ("stop", "stop_text") or is_settled(text)


def _read(path: Path) -> str:
    try:
        with path.expanduser().open("rb") as file:
            data = file.read(MAX_GRAMMAR_BYTES + 1)
        if len(data) > MAX_GRAMMAR_BYTES:
            raise UsageError(f"--grammar {path}: larger than {MAX_GRAMMAR_BYTES:,} bytes")
        return data.decode("utf-8-sig")
    except OSError as error:
        # llama.cpp's option takes the grammar itself.
        if GBNF.search(str(path)):
            raise UsageError(f"--grammar must be a file; {NOT_GBNF}") from error
        raise UsageError(f"--grammar cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--grammar {path} is not UTF-8 text") from error
