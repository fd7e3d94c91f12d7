"""llguidance: its limits, its options, and its messages in one line. Imported when first needed.

Source: https://github.com/guidance-ai/llguidance, whose masks take tens of microseconds.
"""

import json
import re
import threading
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# Separators as models write JSON. They leave nothing to choose, so most punctuation is forced, and
# no whitespace can repeat without end. Strings have no \u: a name could be spelled in two ways.
JSON_OPTIONS: dict[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": 'nrbtf\\"',
}

# A state of the lexer takes 1 to 2 KB. llguidance's own other limits bound the time of one mask to
# some 20 ms, and of compiling a grammar to some 100 ms.
MAX_LEXER_STATES = 50_000
MAX_ITEMS_IN_ROW = 10_000  # an object of 2,000 optional properties

# Address space: the 30,000 levels of the largest schema touch less.
STACK_BYTES = 512 << 20

# An answer forced to be longer than this is infinite, or none that a model is needed for.
MAX_FORCED_BYTES = 20_000

# Those of texts that llguidance knows.
FORMATS = "date-time time date duration email hostname ipv4 ipv6 uuid uri"


@lru_cache(maxsize=1)
def byte_tokenizer() -> "LLTokenizer":
    """A vocabulary of bytes, for checks without a model."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def json_grammar(schema: dict[str, Any]) -> str:
    """The grammar of a schema; what it cannot enforce is only warned of."""
    return _grammar({"json_schema": {**schema, "x-guidance": JSON_OPTIONS | {"lenient": True}}})


def lark_grammar(text: str) -> str:
    return _grammar({"lark_grammar": text})


def _grammar(grammar: dict[str, Any]) -> str:
    return json.dumps({"grammars": [grammar]}, ensure_ascii=False)


def new_matcher(tokenizer: "LLTokenizer", grammar: str) -> "LLMatcher":
    """The matcher, maybe in an error state already. Made in a thread with a large stack: llguidance
    recurses over nested schemas and chains of references, and 500 of these overflow 8 MB."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        max_items_in_row=MAX_ITEMS_IN_ROW, max_lexer_states=MAX_LEXER_STATES, verbose_errors=False
    )
    made: list[LLMatcher] = []
    before = threading.stack_size(STACK_BYTES)
    try:
        thread = threading.Thread(
            target=lambda: made.append(LLMatcher(tokenizer, grammar, log_level=0, limits=limits))
        )
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    return made[0]


def examined(grammar: str) -> tuple[str | None, list[str]]:
    """Why a grammar is invalid or matches nothing, else None; and what it does not enforce."""
    matcher = new_matcher(byte_tokenizer(), grammar)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if not matcher.is_error() and len(matcher.compute_ff_bytes()) > MAX_FORCED_BYTES:
        return f"leaves no choice for more than {MAX_FORCED_BYTES:,} bytes", []
    found = failure(matcher)
    return found, matcher.get_grammar_warnings() if found is None else []


def matches_others(pattern: str, names: Iterable[str]) -> bool:
    """Whether a pattern of property names matches others than these."""
    forbidden = {"properties": dict.fromkeys(names, False), "additionalProperties": False}
    wanted = {"type": "object", "minProperties": 1, "patternProperties": {pattern: True}}
    matcher = new_matcher(byte_tokenizer(), json_grammar(forbidden | wanted))
    # If it is invalid, the schema will not compile either.
    return matcher.is_error() or matcher.try_consume_tokens(list(b'{"')) == 2


def may_match_together(patterns: Iterable[str]) -> bool:
    """Whether some name may match several of these patterns, which llguidance cannot enforce."""
    schema = {"type": "object", "patternProperties": dict.fromkeys(patterns, True)}
    matcher = new_matcher(byte_tokenizer(), json_grammar(schema))
    return matcher.is_error() and "disjoint" in matcher.get_error()


def has_format(text: str, name: str) -> bool:
    """Whether a text has this one of the `FORMATS`."""
    matcher = new_matcher(byte_tokenizer(), json_grammar({"type": "string", "format": name}))
    data = list(json.dumps(text, ensure_ascii=False).encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


def failure(matcher: "LLMatcher") -> str | None:
    """Why the matcher is in an error state, in one line; None if it is not."""
    return _in_one_line(matcher.get_error()) if matcher.is_error() else None


TOO_COMPLEX = "too large or too complex to enforce"

# What llguidance's messages contain, and what they mean.
_MEANINGS = {
    "NoExtension": "nothing matches it",
    "Resource '(?:json-schema:///)?(.*)' is not present": r"refers to '\1': put it into its $defs",
    "Regex is empty": "nothing matches pattern, format and length together",
    "Unable to determine if regex is empty": "pattern, format and length are together "
    + TOO_COMPLEX,
    "Current row has|Too many items|too many expressions|fuel exhausted": TOO_COMPLEX,
    "too large|stack level exceeded|nested parentheses|panic:": TOO_COMPLEX,
}


def _in_one_line(message: str) -> str:
    """llguidance's message without its pictures of the grammar, with the place in words."""
    message = message.strip() or TOO_COMPLEX
    for part, meaning in _MEANINGS.items():
        if found := re.search(part, message):
            return found.expand(meaning)
    message = message.replace("Unsatisfiable schema: ", "unsatisfiable: ")
    place = re.match(r"(?:at )?(\d+)\((\d+)\): ", message)
    lines = message[place.end() if place else 0 :].splitlines()
    details = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    words = lines[0].removesuffix(" regex parse error:").replace(" (in regex)", "")
    text = " ".join(f"{words.rstrip(':')}{': ' if details else ''}{' '.join(details)}".split())
    text = text if len(text) <= 300 else f"{text[:297]}..."
    return f"line {place[1]}, column {place[2]}: {text}" if place else text
