"""Expressions, choices, grammars and the forms of schemas: what each means, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxchat.constraint.constraint import Constraint
from mlxchat.errors import UsageError
from tests.constrained import accepted, assert_works_or_is_refused, refusal

GRAMMAR = """
    // <|im_end|> ~ %json
    # temperature=1
    start: "<b>" /<i>~[a-z]/ "max_tokens=1 // \\" #" "~"
"""
SCHEMA = 'start: "[" %json {"type": "object", "properties": {"a": {"type": "null"}}} "]"'
CHOSEN = ["a.c", "(b|d)", "[x]", "a", "ab", "/", "\\", '"', "日本", "a\nb", " x "]


@pytest.mark.parametrize(
    ("build", "value", "allowed", "excluded"),
    [
        # An expression matches the whole answer.
        (Constraint.from_regex, "a+?b*?", ["aab", "a"], ["aab~", "~a"]),
        (Constraint.from_regex, "^(a|^b)$", ["b"], ["b~"]),
        (Constraint.from_regex, "[/]", ["/"], ["//"]),
        (Constraint.from_regex, "", [""], ["~"]),
        # A choice is taken literally, and texts in a grammar are not taken for syntax.
        (Constraint.from_choices, CHOSEN, CHOSEN, ["abc", "b", "d", "x", "", "aa", "abb", "日"]),
        (Constraint.from_grammar, GRAMMAR, ['<b><i>~xmax_tokens=1 // " #~'], ["<b>"]),
        # A schema in a grammar has the same spaces as any other.
        (Constraint.from_grammar, SCHEMA, ['[{"a": null}]'], ['[{"a":null}]', '[{"b": null}]']),
    ],
    ids=str,
)
def test_a_constraint_allows_what_it_says_and_nothing_else(
    build: Callable[[Any], Constraint], value: Any, allowed: list[str], excluded: list[str]
) -> None:
    assert accepted(build(value), allowed + excluded) == allowed


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "expression", ["((a{1000}){1000}){1000}", "(.*a.{30}|.*b.{30}){9}", "(a?){5000}a{5000}"]
)
def test_an_exploding_expression_ends_in_bounded_time(expression: str) -> None:
    assert_works_or_is_refused(Constraint.from_regex, expression)


TEXTS = '()[]{}^$|*+?\\dwsb.-ab,:=!<>PiUx0/"~%@# \n\x1bé'


@given(st.text(TEXTS, max_size=20))
def test_any_text_is_an_expression_and_a_grammar_or_refused_in_one_line(text: str) -> None:
    assert_works_or_is_refused(Constraint.from_regex, text)
    assert_works_or_is_refused(Constraint.from_grammar, f"start: {text}")


def rules(count: int, name: str) -> str:
    """A grammar of rules, or of terminals, that each refer to the next."""
    chain = [f"{name}{number}: {name}{number + 1} /x/?" for number in range(count)]
    return "\n".join([f"start: {name}0", *chain, f"{name}{count}: /b/"])


EXPRESSIONS: list[tuple[Any, str]] = [
    ("a(?=b)", "look-around"),
    (r"(a)\1", "backreferences"),
    (r"[^\s\S]", "nothing matches it"),
    ("a" * 200_000, "longer than 100,000 characters"),
]
CHOICES: list[tuple[Any, str]] = [
    ([], "at least one is needed"),
    (["a", ""], "must not be empty"),
    (["a", "b", "a"], "'a' is given twice"),
    (["a", "\udcff"], "half of a surrogate pair"),
    ([str(number) for number in range(20_000)], "at most 10,000"),
]
GRAMMARS: list[tuple[Any, str]] = [
    ("start: /a(/", 'line 1, column 8: invalid regex "a(": unclosed group'),
    ('start: "a"\n  | <|im_end|>', "line 2, column 5: tokens cannot be named"),
    ("start: A\nA: ~/x/", "line 2, column 4: ~ could match bytes"),
    ('start[temperature=0.5]: "a"', "line 1, column 7: options of decoding"),
    ("%llguidance {}\nstart: /a/", "line 1, column 1: %llguidance is not supported"),
    ("start: /(?-u:\\xff)/", "line 1, column 8: an expression without Unicode"),
    ('start: %json {"not": {}}', "Unimplemented keys"),
    ("start: %json " + "[" * 100_000, "%json: nested too deeply"),
    ('start: "a" start', "leaves no choice for more than 20,000 bytes"),
    ("start: " + "(" * 90_000 + '"a"' + ")" * 90_000, "too deeply nested"),
    ('# llama.cpp\n root ::= "yes"', "GBNF is not supported, only Lark's format"),
    # Crashed the process, by overflowing its stack, or took minutes.
    (rules(9_000, "a"), "more than 1,000 definitions"),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("build", "flag", "refused"),
    [
        (Constraint.from_regex, "--regex", EXPRESSIONS),
        (Constraint.from_choices, "--choice", CHOICES),
        (Constraint.from_grammar, "--grammar", GRAMMARS),
    ],
    ids=["regex", "choice", "grammar"],
)
def test_what_cannot_be_enforced_is_refused_in_one_line(
    build: Callable[[Any], Constraint], flag: str, refused: list[tuple[Any, str]]
) -> None:
    for value, reason in refused:
        message = refusal(build, value)
        assert message.startswith(f"{flag}: ")
        assert reason in message


# A schema in a file, or in short


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"type":', "invalid JSON: Expecting value: line 1 column 9"),
        ('{"a": 1, "a": 2}', "name 'a' is given twice"),
        ('{"minimum": NaN}', "NaN is not a finite number"),
        ("person", "cannot read person: No such file or directory; as a field, write 'person str'"),
        ("name, age year", "'age year': after the name comes a type"),
        ('age int: x, name: "x, y"', """'y"': after the name comes a type"""),
        ("utf-16", "not UTF-8"),
        ("large", "larger than"),
        (".", "cannot read"),
    ],
)
def test_a_text_or_a_file_that_is_no_schema_is_refused(
    text: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("utf-16").write_bytes(b"\xff\xfe{}")
    Path("large").write_bytes(b" " * 2_000_000)
    assert reason in refusal(Constraint.from_schema, text)


def test_a_schema_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a schema, with a comma.json"
    path.write_text('\ufeff{"type": "integer"}', encoding="utf-8")
    assert accepted(Constraint.from_schema(str(path)), ["7"]) == ["7"]


def test_the_short_form_is_that_of_llm() -> None:
    short = Constraint.from_schema("name, age int, score float, ok bool, bio: one sentence")
    properties = {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "score": {"type": "number"},
        "ok": {"type": "boolean"},
        "bio": {"type": "string", "description": "one sentence"},
    }
    assert short.schema == {"type": "object", "properties": properties, "required": [*properties]}
    lines = Constraint.from_schema("name: the person's name, in full,\nage int,\n")
    assert list(lines.schema["properties"]) == ["name", "age"]


def test_multi_asks_for_a_list_of_items() -> None:
    constraint = Constraint.from_schema("name, age int", multi=True)
    with pytest.raises(UsageError, match=r"^--schema-multi: larger than"):
        Constraint.from_schema("[" * 2_000_000, multi=True)
    valid = ['{"items": []}', '{"items": [{"name": "x", "age": 1}]}']
    assert accepted(constraint, [*valid, '{"items": [{"name": "x"}]}', "{}"]) == valid
