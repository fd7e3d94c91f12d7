"""Twenty Lark grammars, each with a check of its answers that does not know the grammar."""

import ast
import csv
import io
import json
import re
import tomllib
from collections.abc import Callable
from datetime import date
from fractions import Fraction
from xml.etree import ElementTree

Check = Callable[[str], bool]


def matches(expression: str) -> Check:
    return lambda text: re.fullmatch(expression, text, re.DOTALL) is not None


def is_balanced(text: str) -> bool:
    while "()" in text or "[]" in text:
        text = text.replace("()", "").replace("[]", "")
    return not text


def is_palindrome(text: str) -> bool:
    return text == text[::-1] and set(text) <= {"a", "b"}


def is_arithmetic(text: str) -> bool:
    tree = ast.parse(text, mode="eval")
    allowed = (ast.Expression, ast.BinOp, ast.Constant, ast.Add, ast.Sub, ast.Mult)
    return all(isinstance(node, allowed) for node in ast.walk(tree))


def is_csv_of_three(text: str) -> bool:
    rows = list(csv.reader(io.StringIO(text), strict=True))
    return len(rows) >= 1 and all(len(row) == 3 for row in rows)


def is_same_count(text: str) -> bool:
    half = len(text) // 2
    return text == "a" * half + "b" * half and half > 0


def is_sum(text: str) -> bool:
    return all(0 < Fraction(part) < 1000 for part in text.split(" + "))


def has_json_between_tags(text: str) -> bool:
    value = json.loads(text.removeprefix("<call>").removesuffix("</call>"))
    return value["name"] in ("ping", "pong") and isinstance(value["count"], int)


GRAMMARS: dict[str, tuple[str, Check]] = {
    "answer": ('start: "yes" | "no"', lambda text: text in ("yes", "no")),
    "count": ("start: INT\nINT: /[1-9][0-9]{0,5}/", lambda text: 0 < int(text) < 10**6),
    "sum": ('start: NUMBER (" + " NUMBER){0,9}\nNUMBER: /[1-9][0-9]{0,2}/', is_sum),
    "arithmetic": (
        """
        start: sum
        sum: product (("+" | "-") product){0,8}
        product: factor ("*" factor){0,4}
        factor: NUMBER | "(" inner ")"
        inner: NUMBER (("+" | "-" | "*") NUMBER){0,8}
        NUMBER: /[1-9][0-9]{0,3}/
        """,
        is_arithmetic,
    ),
    "brackets": (
        'start: a{1,4}\na: "(" b* ")" | "[" b* "]"\nb: "(" c* ")" | "[" c* "]"\nc: "()" | "[]"',
        is_balanced,
    ),
    "palindrome": (
        """
        start: "a" p "a" | "b" p "b"
        p: "a" q "a" | "b" q "b" | "a"
        q: "aba" | "b" | "aa" | ""
        """,
        is_palindrome,
    ),
    "equal counts": ('start: "a" start "b" | "ab"', is_same_count),
    "csv": (
        """
        start: row{1,6}
        row: FIELD "," FIELD "," FIELD "\\n"
        FIELD: /[a-z0-9 ]{1,12}/ | /"([^"\\n]|""){0,12}"/
        """,
        is_csv_of_three,
    ),
    "json": (
        """
        start: value
        value: object | array | STRING | NUMBER | "true" | "false" | "null"
        object: "{" (pair (", " pair)*)? "}"
        pair: STRING ": " value
        array: "[" (value (", " value)*)? "]"
        STRING: /"[^"\\\\\\x00-\\x1f\\x7f]{0,10}"/
        NUMBER: /-?(0|[1-9][0-9]{0,4})(\\.[0-9]{1,3})?/
        """,
        lambda text: json.loads(text) is not ...,
    ),
    "schema inside": (
        """
        start: "<call>" call "</call>"
        call: %json {
            "type": "object",
            "properties": {
                "name": {"enum": ["ping", "pong"]},
                "count": {"type": "integer", "minimum": 0, "maximum": 9}
            },
            "required": ["name", "count"]
        }
        """,
        has_json_between_tags,
    ),
    "xml": (
        """
        start: element
        element: "<a>" inner{0,3} "</a>" | "<c/>"
        inner: "<b>" TEXT "<d/>"? "</b>" | "<c/>" | TEXT
        TEXT: /[a-z]{1,8}/
        """,
        lambda text: ElementTree.fromstring(text).tag in ("a", "c"),
    ),
    "toml": (
        """
        start: "name = " value "\\n" ("path = " value "\\n")?
        value: /"[a-z]{0,8}"/
        """,
        lambda text: "name" in tomllib.loads(text),
    ),
    "date": (
        """
        start: YEAR "-" MONTH "-" DAY
        YEAR: /20[0-9][0-9]/
        MONTH: "0" /[1-9]/ | "1" /[0-2]/
        DAY: "0" /[1-9]/ | "1" /[0-9]/ | "2" /[0-8]/
        """,
        lambda text: date.fromisoformat(text).year >= 2000,
    ),
    "sentence": (
        """
        start: subject " " verb (" " adverb)? "."
        subject: ARTICLE " " NOUN
        ARTICLE: "The" | "A"
        NOUN: "cat" | "dog" | "bird"
        verb: "sleeps" | "runs"
        adverb: "quickly" | "well"
        """,
        matches(r"(The|A) (cat|dog|bird) (sleeps|runs)( quickly| well)?\."),
    ),
    "list": (
        'start: item{2,4}\nitem: "- " TEXT "\\n"\nTEXT: /[A-Za-z][A-Za-z ]{0,20}/',
        matches(r"(- [A-Za-z][A-Za-z ]{0,20}\n){2,4}"),
    ),
    "ignored spaces": (
        'start: "[" NUMBER ("," NUMBER)* "]"\nNUMBER: /[0-9]/\n%ignore / /',
        matches(r" *\[ *\d *(, *\d *)*\] *"),
    ),
    "imported": (
        "%import common.INT\n%import common.LCASE_LETTER\nstart: LCASE_LETTER INT",
        matches(r"[a-z][0-9]+"),
    ),
    "intersection": (
        "start: WORD\nWORD: /[a-z]{3,8}/ & /(.*)e(.*)/",
        lambda text: text.isalpha() and 3 <= len(text) <= 8 and "e" in text,
    ),
    "unicode": (
        'start: "Grüße, " NAME "! " EMOJI\nNAME: /[A-ZÄÖÜ][a-zäöüß]{1,9}/\nEMOJI: "😀" | "🎉"',
        matches("Grüße, [A-ZÄÖÜ][a-zäöüß]{1,9}! (😀|🎉)"),
    ),
    "thought": (
        'start: "Thought: " LINE "\\n" "Answer: " ANSWER\nLINE: /[^\\n]{1,60}/\nANSWER: /[A-D]/',
        matches(r"Thought: [^\n]{1,60}\nAnswer: [A-D]"),
    ),
}
