"""Regular expressions, rewritten for llguidance so that whatever it accepts, Python accepts too.

The dialects differ silently: `\\D` and `.` include different characters, `a*+` and `[[:alpha:]]`
have different meanings, and lazy repetition ends early. So Python parses an expression, and its
syntax tree is written in terms on which both agree. Classes that differ get the narrower meaning.
"""

import importlib
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

# Python's own parser; it has no public name.
_parser: Any = importlib.import_module("re._parser")
_MAXREPEAT = _parser.MAXREPEAT

MAX_CHARS = 100_000

# What Python, ECMAScript and Rust all count as a digit, a word character or a space; and what any
# of them does. A class uses the first, the complement of a class the second.
_NARROW = {
    "digit": "[0-9]",
    "word": "[0-9A-Za-z_]",
    "space": r"[ \t\n\r\f\v]",
    "not_digit": r"[^\p{Nd}\p{Cn}]",
    "not_word": r"[^\w\p{N}\p{Cn}]",
    "not_space": r"[^\s\x1c-\x1f\x{feff}]",
}
_WIDE = {
    "digit": r"[\p{Nd}\p{Cn}]",
    "word": r"[\w\p{N}\p{Cn}]",
    "space": r"[\s\x1c-\x1f\x{feff}]",
    "not_digit": "[^0-9]",
    "not_word": "[^0-9A-Za-z_]",
    "not_space": r"[^ \t\n\r\f\v]",
}
_ANY_BUT_LINE_ENDS = r"[^\n\r\x{2028}\x{2029}]"
_ANYTHING = "(?s:.*)"

_STARTS = ("AT_BEGINNING", "AT_BEGINNING_STRING")
_ENDS = ("AT_END", "AT_END_STRING")
_UNENFORCEABLE = {
    "ASSERT": "lookahead and lookbehind",
    "ASSERT_NOT": "lookahead and lookbehind",
    "GROUPREF": "references to groups",
    "GROUPREF_EXISTS": "references to groups",
    "ATOMIC_GROUP": "atomic groups",
    "POSSESSIVE_REPEAT": "possessive repetition",
    "AT_BOUNDARY": "word boundaries",
    "AT_NON_BOUNDARY": "word boundaries",
}


class ExpressionError(ValueError):
    """Why an expression is invalid or cannot be enforced, in one line."""


def fullmatch_expression(pattern: str) -> str:
    """The expression for llguidance that matches whole texts, as `re.fullmatch` does.

    Raises ExpressionError.
    """
    return _rewritten(pattern, around="")


def search_expression(pattern: str) -> str:
    """The expression for llguidance that matches texts in which the pattern occurs, as
    `re.search` and JSON Schema find it. Raises ExpressionError."""
    return _rewritten(pattern, around=_ANYTHING)


def literal_expression(text: str) -> str:
    return "".join(map(_literal, map(ord, text)))


def _rewritten(pattern: str, around: str) -> str:
    if len(pattern) > MAX_CHARS:
        raise ExpressionError(f"longer than {MAX_CHARS:,} characters")
    # ECMAScript's and Rust's names of groups.
    pattern = re.sub(r"(?<!\\)\(\?<(?=[A-Za-z_])", "(?P<", pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern)
            parsed = _parser.parse(pattern)
        flags = parsed.state.flags
        writer = _Writer(bool(flags & re.I), bool(flags & re.S))
        return writer.edges(parsed, around, around)
    except re.error as error:
        raise ExpressionError(str(error)) from error
    except Warning as error:
        raise ExpressionError(f"ambiguous: {str(error)[:1].lower()}{str(error)[1:]}") from error
    except (RecursionError, OverflowError, MemoryError) as error:
        raise ExpressionError("nested too deeply or too large") from error


@dataclass(frozen=True)
class _Writer:
    """Writes nodes of Python's syntax tree.

    `before` and `after` are what may surround the match in the text: None for a node that is not at
    that edge of the expression, the only places where anchors are possible.
    """

    ignores_case: bool
    dot_all: bool

    def edges(self, nodes: Sequence[Any], before: str | None, after: str | None) -> str:
        """Write a sequence, with what surrounds it unless it is anchored."""
        items = list(nodes)
        while before is not None and items and _is_at(items[0], _STARTS):
            items, before = items[1:], ""
        while after is not None and items and _is_at(items[-1], _ENDS):
            items, after = items[:-1], ""
        # A group at an edge may contain anchors, so it writes the surroundings itself.
        inner_before = before if items and _is_group(items[0]) else None
        inner_after = after if items and _is_group(items[-1]) else None
        last = len(items) - 1
        written = [
            self.node(
                item,
                inner_before if number == 0 else None,
                inner_after if number == last else None,
            )
            for number, item in enumerate(items)
        ]
        outer_before = (before or "") if inner_before is None else ""
        outer_after = (after or "") if inner_after is None else ""
        return outer_before + "".join(written) + outer_after

    def node(self, node: Any, before: str | None = None, after: str | None = None) -> str:
        kind, value = str(node[0]), node[1]
        match kind:
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                return self._one_character(kind, value)
            case "BRANCH":
                branches = [self.edges(branch, before, after) for branch in value[1]]
                return f"(?:{'|'.join(branches)})"
            case "SUBPATTERN":
                _, added, removed, inner = value
                return f"(?:{self._with_flags(added, removed).edges(inner, before, after)})"
            case "MAX_REPEAT" | "MIN_REPEAT":
                # Which repetition is preferred does not change what matches.
                low, high, inner = value
                return f"(?:{self.edges(inner, None, None)}){_counts(low, high)}"
            case "AT" if str(value) in (*_STARTS, *_ENDS):
                sign = "^" if str(value) in _STARTS else "$"
                raise ExpressionError(f"{sign} inside an expression cannot be enforced")
            case _:
                name = str(value) if kind == "AT" else kind
                what = _UNENFORCEABLE.get(name, name.lower())
                raise ExpressionError(f"{what} cannot be enforced")

    def _one_character(self, kind: str, value: Any) -> str:
        match kind:
            case "LITERAL":
                return self._character(value)
            case "NOT_LITERAL":
                return self._set([("NEGATE", None), ("LITERAL", value)])
            case "ANY":
                return "(?s:.)" if self.dot_all else _ANY_BUT_LINE_ENDS
            case _:
                return self._set(value)

    def _with_flags(self, added: int, removed: int) -> "_Writer":
        return replace(
            self,
            ignores_case=(self.ignores_case or bool(added & re.I)) and not removed & re.I,
            dot_all=(self.dot_all or bool(added & re.S)) and not removed & re.S,
        )

    def _character(self, code: int) -> str:
        both = _both_cases(code) if self.ignores_case else [code]
        written = "".join(map(_literal, both))
        return written if len(both) == 1 else f"[{written}]"

    def _set(self, items: Sequence[Any]) -> str:
        negated = bool(items) and str(items[0][0]) == "NEGATE"
        names = _WIDE if negated else _NARROW
        written: list[str] = []
        for kind, value in items[1:] if negated else items:
            match str(kind):
                case "LITERAL":
                    both = _both_cases(value) if self.ignores_case else [value]
                    written += map(_literal, both)
                case "RANGE":
                    written.append(f"{_literal(value[0])}-{_literal(value[1])}")
                    if self.ignores_case and not negated:
                        written += _other_case(*value)
                case "CATEGORY":
                    written.append(names[str(value).removeprefix("CATEGORY_").lower()])
                case other:
                    raise ExpressionError(f"{other.lower()} cannot be enforced")
        if not written:
            return r"[^\x{0}-\x{10ffff}]"
        if negated and self.ignores_case:
            return f"(?i:[^{''.join(written)}])"
        return f"[{'^' if negated else ''}{''.join(written)}]"


def _is_at(node: Any, places: tuple[str, ...]) -> bool:
    return str(node[0]) == "AT" and str(node[1]) in places


def _is_group(node: Any) -> bool:
    return str(node[0]) in ("SUBPATTERN", "BRANCH")


def _counts(low: int, high: Any) -> str:
    return f"{{{low},{'' if high is _MAXREPEAT or high == _MAXREPEAT else high}}}"


def _literal(code: int) -> str:
    if 0xD800 <= code < 0xE000:
        raise ExpressionError("half of a surrogate pair is no character")
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:x}}}"


def _both_cases(code: int) -> list[int]:
    other = chr(code).swapcase()
    different = len(other) == 1 and ord(other) != code and other.swapcase() == chr(code)
    return [code, ord(other)] if different else [code]


def _other_case(low: int, high: int) -> list[str]:
    """The ASCII letters of a range in the other case."""
    letters = [code for code in range(low, min(high, 0x7F) + 1) if chr(code).isalpha()]
    return [_literal(ord(chr(code).swapcase())) for code in letters]
