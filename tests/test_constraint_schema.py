"""What becomes of JSON Schemas as people write them, and of schemas made to harm."""

import json
import time
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxchat.constraint import library
from mlxchat.constraint.constraint import Constraint
from mlxchat.errors import UsageError
from tests.constrained import accepted, accepts, assert_works_or_is_refused, refusal

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


# For each keyword that is enforced, a value that it allows and one that only it forbids.
EXAMPLES: list[tuple[Any, Any, Any]] = [
    ({"type": ["null", "string"]}, "x", 1),
    ({"enum": [1, "a", None]}, "a", "b"),
    ({"const": {"a": [1, 2.5]}}, {"a": [1, 2.5]}, {"a": [1, 2]}),
    ({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "null"}}}, None, 1),
    ({"allOf": [{"type": "integer"}, {"minimum": 5}]}, 5, 4),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, "x"),
    ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, None, "x"),
    ({"type": "object", "properties": {"a": {"type": "null"}}}, {"a": None}, {"a": 1}),
    ({"patternProperties": {"^x": {"type": "null"}}, "type": "object"}, {"x1": None}, {"x": 1}),
    ({"type": "object", "additionalProperties": {"type": "null"}}, {"a": None}, {"a": 1}),
    ({"type": "object", "additionalProperties": False}, {}, {"a": 1}),
    ({"type": "object", "required": ["a"]}, {"a": 1}, {"b": 1}),
    ({"type": "object", "minProperties": 1}, {"a": 1}, {}),
    ({"type": "object", "maxProperties": 1}, {"a": 1}, {"a": 1, "b": 1}),
    ({"type": "array", "items": {"type": "null"}}, [None], [1]),
    ({"type": "array", "prefixItems": [{"type": "null"}]}, [None, 1], [1]),
    ({"$schema": DRAFT_7, "items": [True], "additionalItems": False, "minItems": 1}, [1], [1, 2]),
    ({"type": "array", "minItems": 2}, [1, 2], [1]),
    ({"type": "array", "maxItems": 1}, [1], [1, 2]),
    ({"type": "string", "minLength": 2}, "éé", "é"),
    ({"type": "string", "maxLength": 1}, "😀", "ab"),
    ({"type": "string", "pattern": "b"}, "abc", "ac"),
    ({"type": "string", "format": "date"}, "2024-02-29", "2023-02-30"),
    ({"type": "number", "minimum": 0.5}, 0.5, 0.4),
    ({"type": "integer", "maximum": 7}, 7, 8),
    ({"type": "number", "exclusiveMinimum": 0}, 0.1, 0),
    ({"type": "number", "exclusiveMaximum": 1}, 0.9, 1),
    ({"type": "integer", "multipleOf": 7}, 14, 15),
]


@pytest.mark.parametrize(("schema", "valid", "invalid"), EXAMPLES, ids=str)
def test_a_keyword_is_enforced(schema: Any, valid: Any, invalid: Any) -> None:
    texts = [json.dumps(value, ensure_ascii=False) for value in (valid, invalid)]
    assert accepted(Constraint.from_schema(schema), texts) == texts[:1]


@pytest.mark.parametrize(
    ("schema", "valid", "invalid", "named"),
    [
        ({"not": {"const": 1}}, "2", "1", "not"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "1.5", "1", "oneOf's exactly one"),
        ({"type": "array", "uniqueItems": True}, "[1, 2]", "[1, 1.0]", "uniqueItems"),
        (
            {"$schema": DRAFT_7, "dependencies": {"a": ["b"]}},
            '{"b": 1}',
            '{"a": 1}',
            "dependencies",
        ),
        ({"type": "string", "format": "idn-email"}, '"a@b"', '"ab"', "format 'idn-email'"),
        (
            {"minProperties": 2, "properties": {"a": {}, "b": {}}},
            '{"a": 1, "b": 1}',
            '{"a": 1}',
            "minProp",
        ),
    ],
    ids=json.dumps,
)
def test_what_a_grammar_cannot_enforce_is_named_and_checked(
    schema: Any, valid: str, invalid: str, named: str
) -> None:
    constraint = Constraint.from_schema(schema)
    assert accepted(constraint, [valid, invalid]) == [valid, invalid]
    assert (constraint.problem(valid), constraint.problem(invalid) is None) == (None, False)
    (notice,) = constraint.notices
    assert named in notice
    assert "checked in the end" in notice


def test_a_problem_names_its_place() -> None:
    schema = {"properties": {"a b": {"items": {"not": {"const": 1}}}}}
    problem = Constraint.from_schema(schema).problem('{"a b": [0, 1]}')
    assert problem is not None
    assert problem.startswith("$['a b'][1]: 1 should not be valid")


@pytest.mark.parametrize(
    ("schema", "invalid"),
    [
        ({"not": {"required": ["a"]}}, '{"b": 1, "b": 2}'),
        ({"type": "object"}, '{"a": 1e999}'),
        ({"type": "string", "format": "date-time"}, '"2023-02-29T00:00:00Z"'),
        ({"$schema": DRAFT_4, "type": "string", "format": "date"}, '"2023-02-29"'),
        ({"not": {"format": "uri"}}, '"https://example.com/"'),
        ({"multipleOf": 0.01, "$defs": {"a": {"$ref": "#"}}}, "0.075"),
        ({}, "[" * 5_000 + "]" * 5_000),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_an_invalid_answer_is_noticed(schema: Any, invalid: str) -> None:
    assert Constraint.from_schema(schema).problem(invalid) is not None


def test_multiples_are_exact() -> None:
    """0.07 is no multiple of 0.01 among floats."""
    schema = {"$schema": DRAFT_7, "type": "array", "items": {"$ref": "#/definitions/a"}}
    cents = schema | {"definitions": {"a": {"type": "number", "multipleOf": 0.01}}}
    assert Constraint.from_schema(cents).problem("[0.07, 8730.64]") is None


def test_a_pattern_that_python_cannot_compile_is_left_to_the_grammar() -> None:
    schema = {
        "type": "object",
        "patternProperties": {r"^\p{Lu}$": {"type": "string", "pattern": r"^\p{L}+$"}},
        "additionalProperties": False,
    }
    constraint = Constraint.from_schema(schema)
    assert accepted(constraint, ['{"A": "b"}', '{"a": "b"}']) == ['{"A": "b"}']
    assert constraint.problem('{"A": "b"}') is None


def test_draft_4_is_read_as_draft_4() -> None:
    """Two schemas of three on GitHub name this draft; its excluded bounds are flags."""
    number = {"type": "number", "minimum": 0, "exclusiveMinimum": True, "id": "#number"}
    for draft in (DRAFT_4, "https://json-schema.org/draft-04/schema"):
        constraint = Constraint.from_schema({"$schema": draft, **number})
        assert accepted(constraint, ["0", "0.5"]) == ["0.5"]
        assert constraint.problem("0") is not None


@pytest.mark.parametrize(("low", "high"), [(0, 0.1), (5, 5.5), (99, 99.9), (12345, 12345.5)])
def test_an_excluded_whole_number_is_excluded(low: float, high: float) -> None:
    """It was allowed if the other bound was less than 1 away."""
    between = {"type": "number", "exclusiveMinimum": low, "maximum": high}
    assert accepted(Constraint.from_schema(between), [str(low), f"{low}.0", str(high)]) == [
        str(high)
    ]
    below = {"type": "number", "minimum": -high, "exclusiveMaximum": -low}
    assert accepted(Constraint.from_schema(below), [f"-{low}", f"-{low}.0", f"{-high}"]) == [
        f"{-high}"
    ]
    assert accepted(
        Constraint.from_schema({"type": "integer", "exclusiveMinimum": low}), [str(low + 1)]
    )


def test_patterns_of_listed_names_leave_a_way_out() -> None:
    """After the last property a separator was allowed, and nothing could follow it."""
    schema = {
        "type": "object",
        "properties": {"score": {"type": "integer"}, "b": {}},
        "required": ["score"],
        "additionalProperties": False,
        "patternProperties": {"^(score|b)$": {"maximum": 9}},
    }
    constraint = Constraint.from_schema(schema)
    assert accepted(constraint, ['{"score": 9}', '{"score": 10}']) == ['{"score": 9}']
    for text in ('{"score": 1, "b": 2, ', '{"score": 1, "c'):
        assert not begins(constraint, text)
    assert begins(constraint, '{"score": 1, "b": 2}')


def begins(constraint: Constraint, text: str) -> bool:
    matcher = library.new_matcher(library.byte_tokenizer(), constraint.grammar)
    return matcher.try_consume_tokens(list(text.encode())) == len(text)


def test_a_misspelled_keyword_is_a_warning() -> None:
    schema = {"type": "object", "properties": {"minLenght": {"minLenght": 3}}, "readonly": True}
    assert Constraint.from_schema(schema).notices == (
        "'minLenght' has no effect: did you mean 'minLength'?",
    )


def test_data_in_a_schema_is_left_alone() -> None:
    """It may look like a schema."""
    value = {"type": "number", "exclusiveMinimum": 0, "properties": {"a": True}, "$ref": "#/x"}
    for schema in ({"const": value}, {"enum": [value]}, {"default": value, "examples": [value]}):
        assert accepts(Constraint.from_schema(schema), json.dumps(value))


# Fragments that are combined in pairs, and values that they are tried on.
FRAGMENTS: list[dict[str, Any]] = [
    {"type": "integer"},
    {"type": ["string", "null", "array"]},
    {"minimum": 2, "exclusiveMaximum": 7.5},
    {"multipleOf": 0.5},
    {"minLength": 2, "maxLength": 3},
    {"pattern": "a$"},
    {"format": "date"},
    {"enum": [1, 3.5, "aa", None, [2], {"a": 2}]},
    {"const": 3},
    {"items": {"type": "integer"}},
    {"prefixItems": [{"type": "string"}], "minItems": 1},
    {"maxItems": 1},
    {"properties": {"a": {"type": "integer"}}},
    {"properties": {"b": {"type": "string"}}, "additionalProperties": False},
    {"patternProperties": {"^a": {"minimum": 2}}},
    {"required": ["a"]},
    {"minProperties": 1, "maxProperties": 1},
    {"anyOf": [{"type": "integer"}, {"required": ["b"]}]},
    {"oneOf": [{"type": "string"}, {"type": "object", "required": ["a"]}]},
    {"$ref": "#/$defs/d"},
]
VALUES: list[Any] = [
    *(None, True, 0, 1, 2, 3, 3.5, 7, 7.5, -2, "", "a", "aa", "ba", "aaaa", "é", "2024-02-29"),
    *([], [1], [2], ["a"], ["a", 1], [1, 2], [None], [[]], {}, {"a": 1}, {"a": 2}, {"a": "x"}),
    *({"b": "x"}, {"b": 1}, {"a": 2, "b": "x"}, {"a": 2, "c": 1}, {"ab": 1}, {"ab": 3}, {"c": {}}),
]
DEFINITIONS = {"$defs": {"d": {"properties": {"a": {"maximum": 2}}, "maximum": 3}}}


def combinations() -> list[dict[str, Any]]:
    pairs = [(one, other) for one in FRAGMENTS for other in FRAGMENTS]
    merged = [one | other for one, other in pairs if not one.keys() & other.keys()]
    both = [{"allOf": [one, other]} for one, other in pairs if one is not other]
    return [each | DEFINITIONS for each in [*FRAGMENTS, *merged, *both]]


def test_whatever_is_delivered_is_valid() -> None:
    """Keywords act on each other: nothing delivered under two of them may be invalid."""
    texts = [json.dumps(value, ensure_ascii=False) for value in VALUES]
    count = possible = 0
    for schema in combinations():
        draft = jsonschema.Draft202012Validator
        check = draft(schema, format_checker=draft.FORMAT_CHECKER)
        possible += sum(map(check.is_valid, VALUES))
        try:
            constraint = Constraint.from_schema(schema)
        except UsageError:
            continue
        taken = [text for text in accepted(constraint, texts) if constraint.problem(text) is None]
        assert all(check.is_valid(json.loads(text)) for text in taken), (schema, taken)
        count += len(taken)
    assert count > 0.8 * possible


def test_listed_properties_are_all_there_are() -> None:
    """A small model added properties until its answer was cut off."""
    person = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    assert not accepts(Constraint.from_schema(person), '{"name": "x", "y": 1}')
    open_ = person | {"additionalProperties": True}
    assert accepts(Constraint.from_schema(open_), '{"name": "x", "y": 1}')


def test_an_additional_name_cannot_repeat_a_property_by_escapes() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "additionalProperties": True,
    }
    constraint = Constraint.from_schema(schema)
    assert accepts(constraint, '{"a": 1, "b": "x"}')
    assert not accepts(constraint, '{"a": 1, "\\u0061": "x"}')
    assert not accepts(constraint, '{"a": 1, "a": 2}')


def test_whitespace_is_one_space_after_separators() -> None:
    constraint = Constraint.from_schema({})
    assert accepts(constraint, '{"a": [1, 2]}')
    for text in ('{"a":1}', '{ "a": 1}', "[1,  2]", "[1,2]", " 1", "1 ", "[\n1]"):
        assert not accepts(constraint, text)


NINE, TEN, FINE = "0.500000001", "0.5000000012", "0.00000000012"


@pytest.mark.parametrize(
    ("schema", "allowed"),
    [
        ({"type": "number"}, [NINE]),
        ({}, [NINE]),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, [NINE]),
        ({"type": "number", "minimum": 0, "exclusiveMaximum": 1e-9}, [FINE]),
        ({"allOf": [{"type": "number"}, {"minimum": 0.00000000011}]}, [NINE, TEN, FINE]),
    ],
    ids=json.dumps,
)
def test_numbers_have_an_end_unless_the_schema_needs_finer_ones(
    schema: Any, allowed: list[str]
) -> None:
    """Small models, once among decimals, add digits until something stops them."""
    assert accepted(Constraint.from_schema(schema), [NINE, TEN, FINE]) == allowed


def test_numbers_are_read_alike_everywhere() -> None:
    integers = Constraint.from_schema({"type": "integer"})
    assert accepts(integers, str(2**53 - 1))
    assert not accepts(integers, str(2**53))
    numbers = Constraint.from_schema({"type": "number"})
    assert accepts(numbers, "-0.5")
    assert not accepts(numbers, "1e999")
    # The limits of 64 bits, as generators of schemas write them.
    Constraint.from_schema({"type": "integer", "minimum": 0, "maximum": 2**64 - 1})


def test_a_format_that_nobody_knows_has_no_effect() -> None:
    (notice,) = Constraint.from_schema({"type": "string", "format": "color"}).notices
    assert notice == "the schema's format 'color' has no effect"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "integer", "minimum": 5, "maximum": 3}, "unsatisfiable: minimum (5) is greater"),
        ({"$ref": "#"}, ""),
        ({"type": "string", "pattern": r"[^\s\S]"}, "nothing matches"),
        ({"$ref": "https://example.com/x.json"}, "x.json"),
        ({"$ref": "/etc/passwd"}, "passwd"),
        ({"not": {"$ref": "#/$defs/x"}}, "#/not: refers to '#/$defs/x', which does not exist"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "unsupported draft"),
        ({"$schema": DRAFT_4, "minimum": 5, "exclusiveMinimum": 5}, "$.exclusiveMinimum: 5 is"),
        ({"pattern": "("}, "regex"),
        ({"pattern": "(?=a)"}, "look-around"),
        ({"patternProperties": {r"a\b": {}}}, "lookarounds"),
        ({"const": float("nan")}, "not JSON"),
        ({"const": "\ud800"}, "not JSON"),
    ],
)
def test_a_schema_is_refused_in_one_line(schema: Any, reason: str) -> None:
    assert reason in refusal(Constraint.from_schema, schema)


def doubled(levels: int, keyword: str) -> dict[str, Any]:
    """A schema of a few lines that is 2^levels large when written out."""
    links = {
        f"d{level}": {keyword: [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(levels)
    }
    last = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    return {"$ref": "#/$defs/d0", "$defs": links | {f"d{levels}": last}}


def forced(levels: int) -> dict[str, Any]:
    """A schema of only one value, of 2^levels characters."""
    links = {
        f"d{level}": {
            "type": "object",
            "properties": {name: {"$ref": f"#/$defs/d{level + 1}"} for name in "xy"},
            "required": ["x", "y"],
        }
        for level in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": links | {f"d{levels}": {"type": "null"}}}


def trees() -> dict[str, Any]:
    definitions = {
        name: {"type": "object", "properties": {"child": {"$ref": f"#/$defs/{name}"}}}
        for name in ("one", "other")
    }
    both = [{"$ref": f"#/$defs/{name}"} for name in definitions]
    return {"allOf": both, "$defs": definitions}


def chain(length: int, link: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Definitions of which each refers to the next."""
    links = {f"d{n}": link({"$ref": f"#/$defs/d{n + 1}"}) for n in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": links | {f"d{length}": {"type": "string"}}}


def in_object(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


HOSTILE: dict[str, Any] = {
    # These crashed the process, by overflowing its stack.
    "a chain": chain(2_000, lambda schema: schema),
    "a chain of objects": chain(2_000, in_object),
    "a long chain": chain(20_000, in_object),
    "10 MB": '{"description": "' + "x" * 10_000_000 + '"}',
    "a deep array": "[" * 100_000,
    "anyOf": doubled(40, "anyOf"),
    "one forced value": forced(40),
    "recursive intersection": trees(),
    "most properties": {"properties": {f"p{number}": {} for number in range(2_000)}},
    # Intersecting 40 of these took minutes.
    "patterns of one text": {"allOf": [{"pattern": f"a{number}"} for number in range(500)]},
    "a product": {
        "allOf": [
            {"anyOf": [{"properties": {f"p{n}": {"const": m}}} for m in range(6)]} for n in range(8)
        ]
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_ends_in_one_line_or_works_in_bounded_time(name: str) -> None:
    began_s = time.process_time()
    try:
        Constraint.from_schema(HOSTILE[name])
    except UsageError as error:
        message = str(error)
        assert message.startswith("--schema: ")
        assert "\n" not in message
        assert len(message) < 400
    # Most take milliseconds, and none took two seconds, on a busy machine.
    assert time.process_time() - began_s < 10


KEYWORDS = [name for schema, _, _ in EXAMPLES for name in schema]
KEYWORDS = sorted({*KEYWORDS, "$defs", "title", "x", "a", "not", "if", "dependencies", "$id"})
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


@settings(deadline=None)
@given(ANYTHING)
def test_any_json_is_a_schema_or_refused_in_one_line(schema: Any) -> None:
    assert_works_or_is_refused(Constraint.from_schema, schema)


def test_an_object_that_contains_itself_is_refused() -> None:
    schema: dict[str, Any] = {"type": "object"}
    schema["properties"] = {"a": schema}
    assert "levels deep" in refusal(Constraint.from_schema, schema)
