"""Constraints with checks of their answers that know nothing of ours: 50 schemas, 200 regular
expressions and 20 grammars.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import jsonschema
from jsonschema.validators import validator_for

from mlxchat.app.answer import constraint_in
from mlxchat.constraint.constraint import Constraint
from scripts.expressions import expressions
from scripts.grammars import GRAMMARS
from scripts.json_formats import CHECKER
from scripts.schemas import SCHEMAS

Check = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Case:
    """A constraint, named by its kind and its name or expression, as the `fields` of a row."""

    name: str
    fields: Mapping[str, Any]
    is_right: Check

    @property
    def constraint(self) -> Constraint:
        constraint = constraint_in(self.fields)
        assert constraint is not None
        return constraint


def exactly(text: str) -> Any:
    """JSON with decimal numbers: 8730.64 is a multiple of 0.01, but not of its nearest float."""
    return json.loads(text, parse_float=Decimal)


def by_schema(schema: Any) -> Check:
    """Whether an answer satisfies the schema, formats included."""
    kind: Any = validator_for(schema, jsonschema.Draft202012Validator)
    kind.check_schema(schema)
    checker = kind(exactly(json.dumps(schema)), format_checker=CHECKER)
    return lambda text: checker.is_valid(exactly(text))


def by_expression(expression: str) -> Check:
    # Python spells names of groups differently.
    matches = re.compile(expression.replace("(?<word>", "(?P<word>")).fullmatch
    return lambda text: matches(text) is not None


def cases(only: Sequence[str] = ()) -> Iterator[Case]:
    """All cases, or those whose names begin with one of `only`."""

    def wanted(name: str) -> bool:
        return not only or name.startswith(tuple(only))

    for name, schema in SCHEMAS.items():
        if wanted(f"schema {name}"):
            yield Case(f"schema {name}", {"schema": schema}, by_schema(schema))
    for expression in expressions():
        if wanted(f"regex {expression}"):
            fields = {"regex": expression}
            yield Case(f"regex {expression}", fields, by_expression(expression))
    for name, (grammar, is_right) in GRAMMARS.items():
        if wanted(f"grammar {name}"):
            yield Case(f"grammar {name}", {"grammar": grammar}, is_right)
