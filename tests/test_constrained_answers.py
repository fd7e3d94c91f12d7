"""Random answers under every kind of constraint, checked by programs that know nothing of ours."""

import json
import random
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from jsonschema.validators import validator_for

from mlxchat.constraint.constraint import Constraint
from mlxchat.models.tokenizer_files import load_tokenizer
from mlxchat.text.tokens import Tokenizer
from scripts.schemas import SCHEMAS
from scripts.tiny_model import byte_tokenizer
from tests.conftest import examples
from tests.constrained import Walker
from tests.expressions import expressions
from tests.grammars import GRAMMARS
from tests.json_formats import CHECKER

END = 258  # <|im_end|>


@pytest.fixture(scope="module")
def byte_walker() -> Walker:
    return Walker(Tokenizer(byte_tokenizer(), None, [END]))


@pytest.fixture(scope="module")
def smollm2_walker(embedded_model: Path) -> Walker:
    config = json.loads((embedded_model / "config.json").read_text())
    return Walker(load_tokenizer(embedded_model, config))


@pytest.fixture(
    params=["byte_walker", pytest.param("smollm2_walker", marks=pytest.mark.model)], scope="module"
)
def walker(request: pytest.FixtureRequest) -> Walker:
    return request.getfixturevalue(request.param)


# 20 of each schema and of each grammar with `make test-all`.
ANSWERS = 5


def exactly(text: str) -> Any:
    """JSON with decimal fractions, for which multiples are exact."""
    return json.loads(text, parse_float=Decimal)


def wrong(
    walker: Walker, constraint: Constraint, is_right: Callable[[str], bool], few: int, seed: int
) -> list[str]:
    """The answers that the check rejects."""
    rng = random.Random(seed)
    answers = [walker.answer(constraint, rng) for _ in range(examples(few))]
    return [answer for answer in answers if not is_right(answer)]


def test_answers_satisfy_their_schema(walker: Walker) -> None:
    found: dict[str, list[str]] = {}
    for seed, (name, schema) in enumerate(SCHEMAS.items()):
        validator = validator_for(schema, default=jsonschema.Draft202012Validator)
        validator.check_schema(schema)
        check = validator(exactly(json.dumps(schema)), format_checker=CHECKER)
        constraint = Constraint.from_schema(schema)
        found[name] = wrong(
            walker,
            constraint,
            lambda answer, check=check: check.is_valid(exactly(answer)),
            ANSWERS,
            seed,
        )
    assert len(found) == 50
    assert not any(found.values()), found


def test_answers_match_their_expression(walker: Walker) -> None:
    found = {
        expression: wrong(
            walker,
            Constraint.from_regex(expression),
            # Python spells names of groups differently.
            re.compile(expression.replace("(?<word>", "(?P<word>")).fullmatch,  # type: ignore
            2,
            seed,
        )
        for seed, expression in enumerate(expressions())
    }
    assert len(found) >= 200
    assert not any(found.values()), found


def test_answers_follow_their_grammar(walker: Walker) -> None:
    found = {
        name: wrong(walker, Constraint.from_grammar(grammar), check, ANSWERS, seed)
        for seed, (name, (grammar, check)) in enumerate(GRAMMARS.items())
    }
    assert len(found) == 20
    assert not any(found.values()), found


def test_an_answer_is_one_of_the_choices(walker: Walker) -> None:
    choices = ["yes", "no", "maybe", "no way", "日本", 'a "b"\n', "(.*)", "😀", " "]
    constraint = Constraint.from_choices(choices)
    rng = random.Random(0)
    assert {walker.answer(constraint, rng) for _ in range(150)} == set(choices)
