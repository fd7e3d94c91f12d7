"""What a user asks an answer to be: JSON of a schema, a match, one of several texts, a grammar."""

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

from mlxchat.constraint.expression import (
    ExpressionError,
    fullmatch_expression,
    literal_expression,
)
from mlxchat.constraint.json_path import spell
from mlxchat.constraint.lark import GrammarError, compile_lark
from mlxchat.constraint.library import JSON_OPTIONS, json_grammar, lark_grammar, problem
from mlxchat.constraint.schema import Compiled, compile_schema
from mlxchat.constraint.schema_error import SchemaError
from mlxchat.constraint.shorthand import ShorthandError, list_of, parse_shorthand
from mlxchat.errors import UsageError
from mlxchat.units import format_bytes
from mlxchat.wording import Field

Kind = Literal["schema", "regex", "choice", "grammar"]

MAX_SCHEMA_BYTES = 1 << 20
MAX_DEPTH = 60
MAX_VALUES = 200_000
SEARCH_S = 1.0  # for the place of a problem
MAX_CHOICES = 10_000
MAX_CHOICE_CHARS = 100_000  # of all choices together

# A rule in llama.cpp's format.
GBNF = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
NOT_GBNF = "GBNF is not supported, only Lark's format"


@dataclass(frozen=True)
class Constraint:
    """A valid constraint, with its grammar for llguidance; `schema` is the JSON Schema as it was
    given, for prompts and for checking answers, and None for other kinds."""

    kind: Kind
    grammar: str
    schema: Any = None

    @classmethod
    def from_schema(
        cls,
        schema: str | Mapping[str, Any] | bool,
        multi: bool = False,
        *,
        may_be_file: bool = True,
    ) -> Self:
        """A JSON Schema: parsed, as JSON text, the path of a file, or in llm's short form.

        With `multi`, the answer is an object with a list of such values as `items`. Raises
        UsageError naming the keyword and its place if the schema is invalid or cannot be enforced.
        """
        given = _parse_schema(schema, may_be_file) if isinstance(schema, str) else schema
        given = list_of(given) if multi else given
        try:
            _check_size(given)
            compiled = compile_schema(given)
        except SchemaError as error:
            _refuse("schema", str(error))
        grammar = json_grammar(compiled.schema)
        found = problem(grammar)
        if found is not None:
            _refuse("schema", _with_place(found, compiled))
        return cls("schema", grammar, given)

    @classmethod
    def from_regex(cls, pattern: str) -> Self:
        """A regular expression that the whole answer matches, as in Python's `re.fullmatch`.

        Raises UsageError if it is invalid or cannot be enforced.
        """
        try:
            expression = fullmatch_expression(pattern)
        except ExpressionError as error:
            _refuse("regex", f"{_shortened(pattern)}: {error}")
        return cls._of_text("regex", lark_grammar(f"start: /{expression or '(?:)'}/"))

    @classmethod
    def from_choices(cls, choices: Sequence[str]) -> Self:
        """Texts of which the answer is one. Raises UsageError if one is empty or given twice."""
        if not choices:
            _refuse("choice", "at least one is needed")
        if len(choices) > MAX_CHOICES or sum(map(len, choices)) > MAX_CHOICE_CHARS:
            _refuse(
                "choice", f"at most {MAX_CHOICES:,}, of {MAX_CHOICE_CHARS:,} characters together"
            )
        seen: set[str] = set()
        for choice in choices:
            if not choice:
                _refuse("choice", "must not be empty")
            if choice in seen:
                _refuse("choice", f"{_shortened(choice)} is given twice")
            seen.add(choice)
        try:
            expression = "|".join(map(literal_expression, choices))
        except ExpressionError as error:
            _refuse("choice", str(error))
        return cls._of_text("choice", lark_grammar(f"start: /(?:{expression})/"))

    @classmethod
    def from_grammar(cls, text: str) -> Self:
        """A Lark grammar, in llguidance's dialect. Raises UsageError with line and column."""
        if GBNF.search(text):
            _refuse("grammar", NOT_GBNF)
        try:
            grammar = lark_grammar(compile_lark(text, JSON_OPTIONS))
        except GrammarError as error:
            _refuse("grammar", str(error))
        return cls._of_text("grammar", grammar)

    @classmethod
    def _of_text(cls, kind: Kind, grammar: str) -> Self:
        found = problem(grammar)
        if found is not None:
            _refuse(kind, found)
        return cls(kind, grammar)


_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"


def _with_place(found: str, compiled: Compiled) -> str:
    """The problem of the innermost part that explains it, if that is found in reasonable time."""
    ends_s = time.monotonic() + SEARCH_S
    for place, part in compiled.parts:
        if time.monotonic() > ends_s:
            break
        reason = problem(json_grammar(part))
        if reason is not None and (reason == found or found.endswith("is unsatisfiable")):
            return f"{spell(place)}: {reason}"
    return found


def _parse_schema(text: str, may_be_file: bool) -> Any:
    stripped = text.strip()
    if stripped.startswith(("{", "[")) or stripped in ("true", "false"):
        return _parse_json(text)
    path = Path(text)
    if may_be_file and (not _is_shorthand(stripped) or _is_file(path)):
        return _parse_json(_read(path))
    if not _is_shorthand(stripped):
        _refuse("schema", f"{_shortened(text)} is neither JSON nor a list of names")
    try:
        return parse_shorthand(text)
    except ShorthandError as error:
        _refuse("schema", str(error))


def _is_shorthand(text: str) -> bool:
    """As in llm, a name alone is a file's: the short form has a space or a separator."""
    return any(separator in text for separator in (" ", ",", "\n"))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long for a name, or with a null character
        return False


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SCHEMA_BYTES + 1)
        if len(data) > MAX_SCHEMA_BYTES:
            _refuse("schema", f"{path} is larger than {format_bytes(MAX_SCHEMA_BYTES)}")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        _refuse("schema", f"{path} is not UTF-8 text", cause=error)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        _refuse("schema", f"cannot read {path}: {reason}", cause=error)


def _parse_json(text: str) -> Any:
    if len(text) > MAX_SCHEMA_BYTES:
        _refuse("schema", f"larger than {format_bytes(MAX_SCHEMA_BYTES)}")
    try:
        return json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        _refuse("schema", f"invalid JSON: {error.msg} at line {error.lineno}, column {error.colno}")
    except RecursionError:
        _refuse("schema", _TOO_DEEP)
    except ValueError as error:
        _refuse("schema", f"invalid JSON: {error}")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"name {_shortened(repeated)} is given twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _check_size(schema: Any) -> None:
    """Raise SchemaError if the schema is nested too deeply, is too large, or is not JSON.

    Python objects may contain themselves, or one another many times.
    """
    level, count = [schema], 1
    for _ in range(MAX_DEPTH):
        level = list(islice(chain.from_iterable(map(_inner, level)), MAX_VALUES))
        count += len(level)
        if count > MAX_VALUES:
            raise SchemaError(f"more than {MAX_VALUES:,} values")
        if not level:
            break
    else:
        raise SchemaError(_TOO_DEEP)
    try:
        json.dumps(schema, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise SchemaError(f"not JSON: {error}") from error


def _inner(value: Any) -> Sequence[Any]:
    match value:
        case Mapping():
            return list(value.values())
        case list() | tuple():
            return value
        case _:
            return ()


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def _refuse(kind: Kind, reason: str, cause: Exception | None = None) -> NoReturn:
    raise UsageError(Field(kind), f": {_printable(reason)}") from cause


def _printable(text: str) -> str:
    """The text in one line: messages quote what users and files contain."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
