"""Expressions, choices and grammars: what each means, and which are refused."""

import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxchat.constraint.constraint import Constraint
from mlxchat.errors import UsageError
from tests.constrained import accepted, assert_works_or_is_refused


def refusal(build: Any, value: Any) -> str:
    with pytest.raises(UsageError) as caught:
        build(value)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("a+?b*?", "aab"),
        ("(?i)STRASSE", "strasse"),
        ("a.c", "a/c"),
        ("[/]", "/"),
        (r"\"\\", '"\\'),
        ("^(a|^b)$", "b"),
        ("[[:alpha:]]", "x"),
        (r"\p{Lu}", "É"),
        ("", ""),
    ],
)
def test_an_expression_matches_the_whole_answer(expression: str, text: str) -> None:
    constraint = Constraint.from_regex(expression)
    assert accepted(constraint, [text, f"{text}~", f"~{text}"]) == [text]


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("(a", "unclosed group"),
        ("a(?=b)", "look-around"),
        (r"\bword\b", "lookarounds"),
        (r"(a)\1", "backreferences"),
        (r"[^\s\S]", "nothing matches it"),
        ("a" * 200_000, "longer than 100,000 characters"),
        ("(" * 5_000 + ")" * 5_000, "too large"),
    ],
)
def test_an_expression_is_refused_in_one_line(expression: str, reason: str) -> None:
    message = refusal(Constraint.from_regex, expression)
    assert message.startswith("--regex: ")
    assert reason in message


@pytest.mark.parametrize(
    "expression",
    [
        "((a{1000}){1000}){1000}",
        "(.*a.{30}|.*b.{30}){9}",
        "(a?){5000}a{5000}",
        "|".join(f"word{number}" for number in range(10_000)),
    ],
)
def test_an_exploding_expression_takes_bounded_time(expression: str) -> None:
    began_s = time.process_time()
    with suppress(UsageError):
        accepted(Constraint.from_regex(expression), ["ab" * 200])
    assert time.process_time() - began_s < 10


@settings(deadline=None)
@given(st.text(alphabet="()[]{}^$|*+?\\dwsb.-ab,:=!<>PiUx0 \n\x1bé", max_size=15))
def test_any_text_is_an_expression_or_refused_in_one_line(text: str) -> None:
    assert_works_or_is_refused(Constraint.from_regex, text)


@settings(deadline=None)
@given(st.text(alphabet='ab:|()[]{}"/*+?~%<>@#\n\\,.0 é', max_size=20))
def test_any_text_is_a_grammar_or_refused_in_one_line(text: str) -> None:
    assert_works_or_is_refused(Constraint.from_grammar, f"start: {text}")


def test_a_choice_is_taken_literally() -> None:
    choices = ["a.c", "(b|d)", "[x]", "a", "ab", "/", "\\", '"', "日本", "a\nb", " x "]
    others = ["abc", "b", "d", "x", "", "aa", "abb", "日", "x"]
    assert accepted(Constraint.from_choices(choices), choices + others) == choices


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ([], "at least one is needed"),
        (["a", ""], "must not be empty"),
        (["a", "b", "a"], "'a' is given twice"),
        (["a", "\udcff"], "half of a surrogate pair"),
        ([str(number) for number in range(20_000)], "at most 10,000"),
        (["x" * 200_000], "at most 10,000, of 100,000 characters together"),
    ],
)
def test_choices_are_refused_in_one_line(choices: list[str], reason: str) -> None:
    message = refusal(Constraint.from_choices, choices)
    assert message.startswith("--choice: ")
    assert reason in message


def rules(count: int, name: str) -> str:
    """A grammar of rules, or of terminals, that each refer to the next."""
    chain = [f"{name}{number}: {name}{number + 1} /x/?" for number in range(count)]
    return "\n".join([f"start: {name}0", *chain, f"{name}{count}: /b/"])


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("", "no start rule found"),
        ('start: "a" b', 'line 1, column 8: unknown name: "b"'),
        ('start: a\na: "x', "line 2, column 6: lexer error"),
        ("start: /a(/", 'line 1, column 8: invalid regex "a(": unclosed group'),
        ('start: "a"\nstart: "b"', "line 2, column 8: duplicate rule"),
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
        ("x" * 2_000_000, "longer than 200,000 characters"),
        # Crashed the process, by overflowing its stack, or took minutes.
        (rules(9_000, "a"), "more than 1,000 definitions"),
    ],
)
def test_a_grammar_is_refused_in_one_line(grammar: str, reason: str) -> None:
    began_s = time.process_time()
    message = refusal(Constraint.from_grammar, grammar)
    assert message.startswith("--grammar: ")
    assert reason in message
    assert time.process_time() - began_s < 10


def test_texts_in_a_grammar_are_not_taken_for_syntax() -> None:
    grammar = """
        // <|im_end|> ~ %json
        # temperature=1
        start: "<b>" /<i>~[a-z]/ "max_tokens=1 // \\" #" "~"
    """
    text = '<b><i>~xmax_tokens=1 // " #~'
    assert accepted(Constraint.from_grammar(grammar), [text]) == [text]


def test_a_schema_in_a_grammar_has_the_same_spaces_as_any_other() -> None:
    grammar = 'start: "[" %json {"type": "object", "properties": {"a": {"type": "null"}}} "]"'
    texts = ['[{"a": null}]', '[{"a":null}]', '[{"b": null}]']
    assert accepted(Constraint.from_grammar(grammar), texts) == texts[:1]
