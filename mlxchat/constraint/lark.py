"""Lark grammars, checked for what llguidance would ignore or what could leave the text.

llguidance enforces the grammar itself. Refused here are control tokens, options of decoding, and
bytes that are no text; JSON Schemas in `%json` are checked like any other.
"""

import json
import re
from typing import Any, NoReturn

from mlxchat.constraint.library import JSON_OPTIONS
from mlxchat.constraint.schema import Schema, SchemaError

MAX_CHARS = 200_000

# llguidance compiles rules that refer to one another by recursion, in quadratic time.
MAX_DEFINITIONS = 1_000

_TOKEN = re.compile(
    r"""
      (?P<comment> //[^\n]* | \#[^\n]* )
    | (?P<string> "(?:\\.|[^"\\\n])*" )
    | (?P<regex> /(?![/*])(?:\\.|[^/\\\n])+/[imslux]* )
    | (?P<json> %json\b )
    | (?P<directive> %llguidance\b | %regex\b )
    | (?P<definition> : )
    | (?P<special> <[^<>\n]*> )
    | (?P<option> \b(?:temperature|max_tokens|stop|stop_capture)\s*= )
    | (?P<negation> ~(?!\s*[0-9]) )
    """,
    re.VERBOSE,
)

_REASONS = {
    "special": "tokens cannot be named in a grammar, only text",
    "option": "options of decoding cannot be enforced",
    "negation": "~ could match bytes that are no text",
}


class GrammarError(ValueError):
    """What is wrong with a grammar, in one line, with line and column if known."""


def compile_lark(text: str) -> str:
    """The grammar with its JSON Schemas rewritten. Raises GrammarError."""
    if len(text) > MAX_CHARS:
        raise GrammarError(f"longer than {MAX_CHARS:,} characters")
    written: list[str] = []
    position = definitions = 0
    while (found := _TOKEN.search(text, position)) is not None:
        written.append(text[position : found.start()])
        position = found.end()
        match found.lastgroup:
            case "json":
                schema, position = _schema_at(text, position)
                schema["x-guidance"] = JSON_OPTIONS
                written.append(f"%json {json.dumps(schema)}")
            case "comment":
                pass
            case "definition":
                definitions += 1
                if definitions > MAX_DEFINITIONS:
                    _refuse(text, found.start(), f"more than {MAX_DEFINITIONS:,} definitions")
                written.append(found.group())
            case "directive":
                _refuse(text, found.start(), f"{found.group()} is not supported")
            case "regex" | "string":
                if re.search(r"\(\?[a-zA-Z]*-[a-zA-Z]*u", found.group()):
                    reason = "an expression without Unicode could match bytes, not text"
                    _refuse(text, found.start(), reason)
                written.append(found.group())
            case name:
                _refuse(text, found.start(), _REASONS[str(name)])
    return "".join([*written, text[position:]])


def _schema_at(text: str, position: int) -> tuple[dict[str, Any], int]:
    begin = position + len(text[position:]) - len(text[position:].lstrip())
    try:
        schema, end = json.JSONDecoder().raw_decode(text, begin)
        return Schema(schema).grammar, end
    except json.JSONDecodeError as error:
        _refuse(text, error.pos, f"%json: {error.msg}")
    except SchemaError as error:
        _refuse(text, begin, f"%json: {error}")
    except RecursionError:
        _refuse(text, begin, "%json: nested too deeply")


def _refuse(text: str, position: int, reason: str) -> NoReturn:
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    raise GrammarError(f"line {line}, column {column}: {reason}")
