"""llguidance: its limits, its options, and its messages in one line. Imported when first needed.

Source: https://github.com/guidance-ai/llguidance, whose masks take tens of microseconds.
"""

import json
import re
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

# Separators as models write JSON. They leave nothing to choose, so most punctuation is forced, and
# no whitespace can repeat without end. Strings have no \u: a name could be spelled in two ways.
JSON_OPTIONS: dict[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": 'nrbtf\\"',
}

# A state of the lexer takes 1 to 2 KB. Fuel and items bound the time of one mask to some 20 ms, and
# of compiling a grammar to some 100 ms; they are llguidance's own defaults.
MAX_LEXER_STATES = 50_000
INITIAL_LEXER_FUEL = 1_000_000
STEP_LEXER_FUEL = 200_000
STEP_MAX_ITEMS = 50_000
MAX_ITEMS_IN_ROW = 10_000  # an object of 2,000 optional properties
MAX_GRAMMAR_SIZE = 500_000

# Address space, of which a schema of 10,000 levels touches less than half.
STACK_BYTES = 128 << 20

T = TypeVar("T")

_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")


@lru_cache(maxsize=1)
def limits() -> "LLParserLimits":
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=MAX_ITEMS_IN_ROW,
        initial_lexer_fuel=INITIAL_LEXER_FUEL,
        step_lexer_fuel=STEP_LEXER_FUEL,
        step_max_items=STEP_MAX_ITEMS,
        max_lexer_states=MAX_LEXER_STATES,
        max_grammar_size=MAX_GRAMMAR_SIZE,
        verbose_errors=False,
    )


def json_grammar(schema: dict[str, Any]) -> str:
    return _grammar({"json_schema": {**schema, "x-guidance": JSON_OPTIONS}})


def lark_grammar(text: str) -> str:
    return _grammar({"lark_grammar": text})


def _grammar(grammar: dict[str, Any]) -> str:
    return json.dumps({"grammars": [grammar]}, ensure_ascii=False)


def new_matcher(tokenizer: "LLTokenizer", grammar: str) -> "LLMatcher":
    """The matcher, which may already be in an error state."""
    from llguidance import LLMatcher

    return _with_stack(lambda: LLMatcher(tokenizer, grammar, log_level=0, limits=limits()))


def _with_stack(build: Callable[[], T]) -> T:
    """Call `build` in a thread with a large stack: llguidance compiles nested schemas and chains
    of references by recursion, and 500 references overflow 8 MB."""
    results: list[T] = []
    before = threading.stack_size(STACK_BYTES)
    try:
        thread = threading.Thread(target=lambda: results.append(build()))
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    return results[0]


def problem(grammar: str) -> str | None:
    """Why a grammar is invalid, or matches nothing, in one line; None if it is valid."""
    matcher = new_matcher(byte_tokenizer(), grammar)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if not matcher.is_error() and len(matcher.compute_ff_bytes()) > MAX_FORCED_BYTES:
        return f"leaves no choice for more than {MAX_FORCED_BYTES:,} bytes"
    return failure(matcher)


# An answer forced to be longer than this is infinite, or none that a model is needed for.
MAX_FORCED_BYTES = 20_000


def failure(matcher: "LLMatcher") -> str | None:
    """Why the matcher is in an error state, in one line; None if it is not."""
    if not matcher.is_error():
        return None
    return in_one_line(matcher.get_error())


TOO_COMPLEX = "too large or too complex to enforce"

# What llguidance's messages contain, and what they mean.
_MEANINGS = {
    "NoExtension": "nothing matches it",
    "Regex is empty": "nothing matches pattern, format and length together",
    "Unable to determine if regex is empty": (
        "pattern, format and length together are too complex to enforce"
    ),
    "min/maxProperties only supported": (
        "minProperties and maxProperties can be enforced only if all properties are required"
    ),
    "Current row has": TOO_COMPLEX,
    "Too many items": TOO_COMPLEX,
    "too many expressions": TOO_COMPLEX,
    "fuel exhausted": TOO_COMPLEX,
    "too large": TOO_COMPLEX,
    "stack level exceeded": TOO_COMPLEX,
    "nested parentheses": TOO_COMPLEX,
    "panic:": TOO_COMPLEX,
}


def in_one_line(message: str) -> str:
    """llguidance's message without its pictures of the grammar, with the place in words."""
    message = message.strip() or TOO_COMPLEX
    for part, meaning in _MEANINGS.items():
        if part in message:
            return meaning
    message = message.replace("Unsatisfiable schema: ", "unsatisfiable: ")
    place = _PLACE.match(message)
    lines = message[place.end() if place else 0 :].splitlines()
    details = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    words = lines[0].removesuffix(" regex parse error:").replace(" (in regex)", "")
    text = " ".join(f"{words.rstrip(':')}{': ' if details else ''}{' '.join(details)}".split())
    text = text if len(text) <= 300 else f"{text[:297]}..."
    return f"line {place[1]}, column {place[2]}: {text}" if place else text


@lru_cache(maxsize=1)
def byte_tokenizer() -> "LLTokenizer":
    """A vocabulary of bytes, for checks without a model."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte")
