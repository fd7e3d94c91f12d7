"""What becomes of JSON Schemas as people write them, and of schemas made to harm."""

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxchat.constraint import library
from mlxchat.constraint.constraint import Constraint
from mlxchat.errors import UsageError
from tests.constrained import accepted, assert_works_or_is_refused, refusal

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"

PERSON = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NAMES = {"^(a|b)$": {"maximum": 9}}
CENTS = {"type": "number", "multipleOf": 0.01}
# It may look like a schema.
DATA = {"type": "number", "exclusiveMinimum": 0, "properties": {"a": True}, "$ref": "#/x"}
NINE, TEN, FINE = "0.500000001", "0.5000000012", "0.00000000012"

# What may be written, and what may not.
ANSWERS: list[tuple[Any, list[str], list[str]]] = [
    # Whitespace is one space after separators.
    (
        {},
        ['{"a": [1, 2]}', NINE],
        ['{"a":1}', '{ "a": 1}', "[1,  2]", "[1,2]", " 1", "1 ", "[\n1]", TEN, FINE],
    ),
    # A small model added properties until its answer was cut off.
    (PERSON, ['{"a": 1}'], ['{"a": 1, "b": 1}']),
    # A name is written in one way, so that none is there twice.
    (
        PERSON | {"additionalProperties": True},
        ['{"a": 1, "b": "x"}'],
        ['{"a": 1, "\\u0061": "x"}', '{"a": 1, "a": 2}'],
    ),
    # Numbers are read alike everywhere, and come to an end unless the schema needs finer ones.
    ({"type": "integer"}, [str(2**53 - 1), "-7"], [str(2**53), "1.0", "1e2", "01", "+1"]),
    ({"type": "number"}, ["-0.5", "1.0", NINE], ["1e3", "1E3", "1e-3", ".5", "1.", TEN, FINE]),
    ({"type": "number", "minimum": 0, "exclusiveMaximum": 1e-9}, [FINE], [NINE, TEN]),
    ({"allOf": [{"type": "number"}, {"minimum": 0.00000000011}]}, [NINE, TEN, FINE], []),
    # The limits of 64 bits, as generators of schemas write them.
    ({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, ["0"], ["-1"]),
    # 0.07 is no multiple of 0.01 among floats.
    (CENTS, ["0.07", "8730.64"], ["0.075"]),
    ({"type": "string", "maxLength": 1}, ['"😀"'], ['"ab"']),
    ({"const": DATA}, [json.dumps(DATA)], ["{}"]),
    # Patterns that Python cannot compile are left to the grammar, those of listed names to these.
    (
        {"type": "object", "patternProperties": {r"^\p{Lu}$": {"pattern": r"^\p{L}+$"}}},
        ['{"A": "b"}', '{"a": "1"}'],
        ['{"A": "1"}'],
    ),
    (PERSON | {"patternProperties": NAMES}, ['{"a": 9}'], ['{"a": 10}', '{"b": 10}']),
    ({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "null"}}}, ["null"], ["1"]),
    ({"$schema": DRAFT_7, "items": [True], "additionalItems": False}, ["[1]"], ["[1, 2]"]),
    # Two schemas of three on GitHub name draft 4; its excluded bounds are flags.
    ({"$schema": DRAFT_4, "minimum": 0, "exclusiveMinimum": True, **CENTS}, ["0.5"], ["0"]),
    ({"$schema": DRAFT_4.replace("http:", "https:"), "id": "#a", "type": "null"}, ["null"], ["0"]),
]


@pytest.mark.parametrize(("schema", "allowed", "excluded"), ANSWERS, ids=str)
def test_a_valid_value_has_one_form(schema: Any, allowed: list[str], excluded: list[str]) -> None:
    constraint = Constraint.from_schema(schema)
    assert accepted(constraint, allowed + excluded) == allowed
    assert {constraint.problem(text) for text in allowed} == {None}


@pytest.mark.parametrize(
    ("schema", "invalid", "problem"),
    [
        (
            {"properties": {"a b": {"items": {"not": {"const": 1}}}}},
            '{"a b": [0, 1]}',
            "$['a b'][1]: 1 should not be valid",
        ),
        ({"not": {"required": ["a"]}}, '{"b": 1, "b": 2}', "invalid JSON: "),
        ({"type": "string", "format": "date-time"}, '"2023-02-29T00:00:00Z"', "$: "),
        ({"$schema": DRAFT_4, "type": "string", "format": "date"}, '"2023-02-29"', "$: "),
        ({"not": {"format": "uri"}}, '"https://example.com/"', "$: "),
        ({"multipleOf": 0.01, "$defs": {"a": {"$ref": "#"}}}, "0.075", "$: "),
        ({}, "[" * 5_000 + "]" * 5_000, "nested too deeply to be checked"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_a_problem_of_an_answer_names_its_place(schema: Any, invalid: str, problem: str) -> None:
    assert (Constraint.from_schema(schema).problem(invalid) or "").startswith(problem)


def test_patterns_of_listed_names_leave_a_way_out() -> None:
    """After the last property a separator was allowed, and nothing could follow it."""
    closed = {"patternProperties": {"^a$": {}}, "additionalProperties": False}
    constraint = Constraint.from_schema(PERSON | closed)
    matcher = library.new_matcher(library.byte_tokenizer(), constraint.grammar)
    text = '{"a": 1'
    assert matcher.try_consume_tokens(list(f"{text}, ".encode())) == len(text)


@pytest.mark.parametrize(
    ("schema", "notice"),
    [
        (
            {"type": "object", "properties": {"tpye": {"tpye": "null"}}, "readonly": True},
            "'tpye' has no effect: did you mean 'type'?",
        ),
        ({"type": "string", "format": "color"}, "the schema's format 'color' has no effect"),
        ({"name": "string"}, "the schema has no keyword that limits the answer: any JSON is one"),
        (
            {"not": {"const": 1}, "uniqueItems": True, "oneOf": [{"type": "number"}, {}]},
            "the schema is enforced except for not, uniqueItems, oneOf's exactly one: checked in "
            "the end",
        ),
        (
            {"type": "object", "patternProperties": {"^a": {"type": "null"}, "b$": {"minimum": 1}}},
            "the schema is enforced except for patternProperties 'b$': checked in the end",
        ),
    ],
)
def test_what_has_no_effect_or_only_in_the_end_is_a_notice(schema: Any, notice: str) -> None:
    assert Constraint.from_schema(schema).notices == (notice,)


# Schemas of any keywords, within one another, and values that they are tried on.
FRAGMENTS: list[dict[str, Any]] = [
    *({"type": each} for each in ("integer", "number", "string", "array", "object", "null")),
    {"type": ["string", "null", "array"]},
    {"minimum": 2, "exclusiveMaximum": 7.5},
    # An excluded whole number was allowed if the other bound was less than 1 away.
    {"exclusiveMinimum": 0, "maximum": 0.5},
    {"exclusiveMaximum": -2, "minimum": -2.5},
    {"multipleOf": 0.5},
    {"minLength": 2, "maxLength": 3},
    {"pattern": "a$"},
    {"format": "date"},
    {"enum": [1, 3.5, "aa", None, [2], {"a": 2}]},
    {"const": 3},
    {"maxItems": 1},
    {"uniqueItems": True},
    {"required": ["a"]},
    {"additionalProperties": False},
    {"minProperties": 1, "maxProperties": 1},
    {"minProperties": 2},
    {"dependentRequired": {"a": ["b"]}},
    {"$ref": "#/$defs/d"},
]


def with_inner(schema: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas that have others within them."""
    both = st.lists(schema, min_size=2, max_size=2)
    merged = both.map(lambda pair: pair[0] | pair[1])
    lists = [st.fixed_dictionaries({key: both}) for key in ("allOf", "anyOf", "oneOf")]
    maps = [
        st.fixed_dictionaries({key: st.dictionaries(st.sampled_from(names), schema, min_size=1)})
        for key, names in (("properties", "abc"), ("patternProperties", ["^a", "b$", "."]))
    ]
    others = [st.fixed_dictionaries({x: schema}) for x in ("items", "additionalProperties", "not")]
    return st.one_of(merged, *lists, *maps, *others, both.map(lambda x: {"prefixItems": x}))


SCHEMAS = st.recursive(st.sampled_from(FRAGMENTS), with_inner, max_leaves=6)
VALUES: list[Any] = json.loads(
    """[
    null, true, 0, 0.5, 1, 2, 3, 3.5, 7, 7.5, -2, -2.5, "", "a", "aa", "ba", "aaaa", "é",
    "2024-02-29", [], [1], [2], ["a"], ["a", 1], [1, 1], [1, 2], [null], [[]], {}, {"a": 1},
    {"a": 2}, {"a": "x"}, {"b": "x"}, {"b": 1}, {"a": 2, "b": "x"}, {"a": 2, "c": 1}, {"ab": 1},
    {"ab": 3}, {"c": {}}, {"a": {"a": 2}}, {"a": [2]}, {"b": {"a": 1, "b": 2}}, [{"a": 3}]
    ]"""
)
TEXTS = [json.dumps(value, ensure_ascii=False) for value in VALUES]
DEFINITIONS = {"$defs": {"d": {"properties": {"a": {"maximum": 2}}, "maximum": 3}}}


@given(st.lists(SCHEMAS, min_size=3, max_size=3))
def test_what_is_delivered_is_valid_and_what_is_not_enforced_is_named(schemas: list[Any]) -> None:
    """Keywords act on each other: nothing delivered under several of them may be invalid, and what
    the grammar lets through and the check rejects, a notice has announced."""
    for schema in schemas:
        draft = jsonschema.Draft202012Validator
        check = draft(schema | DEFINITIONS, format_checker=draft.FORMAT_CHECKER)
        try:
            constraint = Constraint.from_schema(schema | DEFINITIONS)
        except UsageError:
            continue
        for text in accepted(constraint, TEXTS):
            is_valid = check.is_valid(json.loads(text))
            assert (constraint.problem(text) is None) == is_valid, (schema, text)
            assert is_valid or constraint.notices, (schema, text)


def test_nearly_all_that_is_valid_may_be_written() -> None:
    written = possible = 0
    for schema in FRAGMENTS:
        possible += sum(map(jsonschema.Draft202012Validator(schema | DEFINITIONS).is_valid, VALUES))
        written += len(accepted(Constraint.from_schema(schema | DEFINITIONS), TEXTS))
    assert written > 0.8 * possible


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "integer", "minimum": 5, "maximum": 3}, "unsatisfiable: minimum (5) is greater"),
        ({"$ref": "#"}, ""),
        ({"$ref": "https://example.com/x.json"}, "x.json': put it into"),
        ({"not": {"$ref": "#/$defs/x"}}, "#/not: refers to '#/$defs/x', which does not exist"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "unsupported draft"),
        ({"$schema": DRAFT_4, "minimum": 5, "exclusiveMinimum": 5}, "$.exclusiveMinimum: 5 is"),
        ({"pattern": "("}, "regex"),
        ({"pattern": "(?=a)"}, "look-around"),
        ({"patternProperties": {r"a\b": {}}}, "lookarounds"),
        ({"const": "\ud800"}, "not JSON"),
        ({"$schema": DRAFT_4, "$defs": {"x": {"minLength": "3"}}}, "minLength: '3' is not of type"),
    ],
)
def test_a_schema_is_refused_in_one_line(schema: Any, reason: str) -> None:
    assert reason in refusal(Constraint.from_schema, schema)


def chain(length: int, link: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Definitions of which each refers to the next."""
    links = {f"d{n}": link({"$ref": f"#/$defs/d{n + 1}"}) for n in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": links | {f"d{length}": {"type": "string"}}}


def in_object(schema: dict[str, Any], names: str = "a") -> dict[str, Any]:
    return {"type": "object", "properties": dict.fromkeys(names, schema), "required": [*names]}


HOSTILE: dict[str, Any] = {
    # These crashed the process, by overflowing its stack.
    "a long chain": chain(20_000, in_object),
    "a deep array": "[" * 100_000,
    # Of a few lines, and 2^40 when written out.
    "anyOf": chain(40, lambda schema: {"anyOf": [schema] * 2}),
    "one forced value": chain(40, lambda schema: in_object(schema, "xy")),
    "recursive intersection": {
        "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        "$defs": {name: in_object({"$ref": f"#/$defs/{name}"}) for name in "ab"},
    },
    # Intersecting 40 of these took minutes.
    "patterns of one text": {"allOf": [{"pattern": f"a{number}"} for number in range(500)]},
    "a product": {
        "allOf": [
            {"anyOf": [{"properties": {f"p{n}": {"const": m}}} for m in range(6)]} for n in range(8)
        ]
    },
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_refused_in_one_line_or_works(name: str) -> None:
    assert_works_or_is_refused(Constraint.from_schema, HOSTILE[name])


KEYWORDS = sorted(
    {
        *(name for schema in FRAGMENTS for name in schema),
        *("allOf", "anyOf", "oneOf", "not", "if", "items", "prefixItems", "properties", "$defs"),
        *("patternProperties", "dependencies", "$schema", "$id", "title", "x", "a"),
    }
)
SCALARS = st.sampled_from(
    [
        *(None, True, False, 0, 1, -1, 2.5, 1e300, "", "a", "^a$", "(", "date", "integer", "#"),
        *("object", "array", "string", "number", "#/$defs/a", "#/properties/a", "#/0", "\0"),
    ]
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(ANYTHING)
def test_any_json_is_a_schema_or_refused_in_one_line(schema: Any) -> None:
    assert_works_or_is_refused(Constraint.from_schema, schema)
