"""llguidance: its limits, its options, and its messages in one line. Imported when first needed.

Source: https://github.com/guidance-ai/llguidance, whose masks take tens of microseconds.
"""

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

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
MAX_GRAMMAR_SIZE = 500_000

_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")


@lru_cache(maxsize=1)
def limits() -> "LLParserLimits":
    from llguidance import LLParserLimits

    return LLParserLimits(
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

    return LLMatcher(tokenizer, grammar, log_level=0, limits=limits())


def problem(grammar: str) -> str | None:
    """Why a grammar is invalid, or matches nothing, in one line; None if it is valid."""
    matcher = new_matcher(_byte_tokenizer(), grammar)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return failure(matcher)


def failure(matcher: "LLMatcher") -> str | None:
    """Why the matcher is in an error state, in one line; None if it is not."""
    if not matcher.is_error():
        return None
    reason = matcher.stop_reason()
    if reason in _REASONS:
        return _REASONS[reason]
    return in_one_line(matcher.get_error())


_REASONS = {
    "NoExtension": "nothing matches it",
    "NoExtensionBias": "nothing matches it",
    "ParserTooComplex": "too complex to enforce",
    "LexerTooComplex": "too complex to enforce",
}


def in_one_line(message: str) -> str:
    """llguidance's message without its pictures of the grammar, with the place in words."""
    message = message.strip()
    if message.startswith("panic:") or not message:
        return "too large or too complex to enforce"
    place = _PLACE.match(message)
    lines = message[place.end() if place else 0 :].splitlines()
    details = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    words = lines[0].removesuffix(" regex parse error:").replace(" (in regex)", "")
    text = " ".join(f"{words.rstrip(':')}{': ' if details else ''}{' '.join(details)}".split())
    text = text if len(text) <= 300 else f"{text[:297]}..."
    return f"line {place[1]}, column {place[2]}: {text}" if place else text


@lru_cache(maxsize=1)
def _byte_tokenizer() -> "LLTokenizer":
    from llguidance import LLTokenizer

    return LLTokenizer("byte")
