"""What a user asks an answer to be: JSON of a schema, a match, one of several texts, a grammar."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

from mlxchat.constraint.lark import GrammarError, compile_lark
from mlxchat.constraint.library import examined, json_grammar, lark_grammar
from mlxchat.constraint.schema import Schema, SchemaError
from mlxchat.errors import UsageError
from mlxchat.options import flag, in_home
from mlxchat.request.written import list_of, parse_shorthand, parse_strictly
from mlxchat.units import beginning, format_bytes, printable

Kind = Literal["schema", "regex", "choice", "grammar"]

MAX_SCHEMA_BYTES = 1 << 20
MAX_NAME_CHARS = 255  # of a file
MAX_DEPTH = 60
MAX_VALUES, MAX_REFERENCES = 60_000, 5_000
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
    check: Schema | None = field(default=None, repr=False, compare=False)
    notices: tuple[str, ...] = ()

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
        name = "schema_multi" if multi else "schema"
        try:
            given = _parse_schema(schema, may_be_file) if isinstance(schema, str) else schema
            given = list_of(given) if multi else given
            check = Schema(_plain(given))
        except SchemaError as error:
            _refuse(name, str(error))
        grammar = json_grammar(check.grammar)
        found, warnings = examined(grammar)
        if found is not None:
            _refuse(name, found)
        notices = [*check.misspelled, *_not_enforced(check, warnings)]
        return cls("schema", grammar, given, check, tuple(map(printable, notices)))

    @classmethod
    def from_regex(cls, pattern: str) -> Self:
        """A regular expression that the whole answer matches, as Rust's crate `regex` has it.
        Raises UsageError if it is invalid or cannot be enforced."""
        if len(pattern) > MAX_CHOICE_CHARS:
            _refuse("regex", f"longer than {MAX_CHOICE_CHARS:,} characters")
        from llguidance import LLMatcher

        return cls._of_text("regex", LLMatcher.grammar_from_regex(pattern or "(?:)"))

    @classmethod
    def from_choices(cls, choices: Sequence[str]) -> Self:
        """Texts of which the answer is one. Raises UsageError if one is empty or given twice."""
        if not choices:
            _refuse("choice", "at least one is needed")
        if len(choices) > MAX_CHOICES or sum(map(len, choices)) > MAX_CHOICE_CHARS:
            limits = f"at most {MAX_CHOICES:,}, of {MAX_CHOICE_CHARS:,} characters together"
            _refuse("choice", limits)
        seen: set[str] = set()
        for choice in choices:
            if not choice:
                _refuse("choice", "must not be empty")
            if choice in seen:
                _refuse("choice", f"{beginning(repr(choice), 60)} is given twice")
            seen.add(choice)
        if any("\ud800" <= char < "\ue000" for choice in choices for char in choice):
            _refuse("choice", "half of a surrogate pair is no character")
        return cls._of_text("choice", lark_grammar(f"start: /{'|'.join(map(_literal, choices))}/"))

    @classmethod
    def from_grammar(cls, text: str) -> Self:
        """A Lark grammar, in llguidance's dialect. Raises UsageError with line and column."""
        if GBNF.search(text):
            _refuse("grammar", NOT_GBNF)
        try:
            return cls._of_text("grammar", lark_grammar(compile_lark(text)))
        except GrammarError as error:
            _refuse("grammar", str(error))

    def problem(self, answer: str) -> str | None:
        """Why an answer that the grammar allows is not valid, with the place; None if it is."""
        return None if self.check is None else self.check.problem(answer)

    @classmethod
    def _of_text(cls, kind: Kind, grammar: str) -> Self:
        found, _ = examined(grammar)
        if found is not None:
            # A place in an expression would be one in the grammar that is made of it.
            _refuse(kind, found if kind == "grammar" else re.sub(r"^line 1, .*?: ", "", found))
        return cls(kind, grammar)


_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"


def _not_enforced(check: Schema, warnings: Iterable[str]) -> Iterator[str]:
    """What llguidance warns of: a line for what the answer is checked for, one for the rest."""
    checked = dict(check.left_out)
    ignored: dict[str, None] = {}
    for warning in warnings:
        what, _, names = re.sub(r" \([0-9]+ times\)$", "", warning).partition(": ")
        if what == "Unimplemented keys":
            for name in json.loads(names):
                (checked if name in check.keywords else ignored)[name] = None
        elif what == "Unknown format":
            (checked if names in check.formats else ignored)[f"format {names!r}"] = None
        else:
            checked[_MEANINGS.get(warning.split()[0], warning)] = None
    if checked:
        yield f"the schema is enforced except for {', '.join(checked)}: checked in the end"
    yield from (f"the schema's {name} has no effect" for name in ignored)


# First words of llguidance's warnings.
_MEANINGS = {"oneOf": "oneOf's exactly one", "min/maxProperties": "minProperties and maxProperties"}


def _parse_schema(text: str, may_be_file: bool) -> Any:
    stripped = text.strip()
    # As in llm, a name alone is a file's: the short form has a space or a separator.
    is_shorthand = any(separator in stripped for separator in (" ", ",", "\n"))
    if stripped.startswith(("{", "[")) or stripped in ("true", "false"):
        return _parse_json(text)
    has_path = len(text) < MAX_NAME_CHARS and "\0" not in text
    if may_be_file and has_path and (not is_shorthand or in_home(text).is_file()):
        return _parse_json(_read(in_home(text)), f"{text}: ")
    if not (is_shorthand or stripped.isidentifier()):
        raise SchemaError(f"{beginning(repr(text), 60)} is neither JSON nor a list of names")
    try:
        return parse_shorthand(text)
    except ValueError as error:
        raise SchemaError(str(error)) from error


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_SCHEMA_BYTES + 1).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SchemaError(f"{path} is not UTF-8 text") from error
    except OSError as error:
        is_name = isinstance(error, FileNotFoundError) and str(path).isidentifier()
        hint = f"; as a field, write '{path} str'" if is_name else ""
        raise SchemaError(f"cannot read {path}: {error.strerror}{hint}") from error


def _parse_json(text: str, where: str = "") -> Any:
    if len(text.encode(errors="replace")) > MAX_SCHEMA_BYTES:
        raise SchemaError(f"larger than {format_bytes(MAX_SCHEMA_BYTES)}")
    try:
        return parse_strictly(text)
    except RecursionError as error:
        raise SchemaError(_TOO_DEEP) from error
    except ValueError as error:
        raise SchemaError(f"{where}invalid JSON: {error}") from error


def _plain(schema: Any) -> Any:
    """The schema as JSON has it. Raises SchemaError if it is not JSON, or too large or deep: Python
    objects may contain themselves, or one another many times."""
    level, count = [schema], 1
    for _ in range(MAX_DEPTH):
        lists = [each for each in level if isinstance(each, list | tuple)]
        lists += [list(each.values()) for each in level if isinstance(each, Mapping)]
        level = list(islice(chain.from_iterable(lists), MAX_VALUES))
        count += len(level)
    if level:
        raise SchemaError(_TOO_DEEP)
    if count > MAX_VALUES:
        raise SchemaError(f"more than {MAX_VALUES:,} values")
    try:
        text = json.dumps(schema, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError) as error:
        raise SchemaError(f"not JSON: {error}") from error
    if text.count('"$ref"') > MAX_REFERENCES:
        raise SchemaError(f"more than {MAX_REFERENCES:,} references")
    return json.loads(text)


def _literal(text: str) -> str:
    return "".join(
        char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text
    )


def _refuse(name: str, reason: str) -> NoReturn:
    raise UsageError(f"{flag(name)}: {printable(reason)}")
