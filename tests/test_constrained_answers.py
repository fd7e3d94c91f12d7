"""Random answers to fifty schemas, checked by jsonschema; and to choices."""

import json
import random
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from mlxchat.constraint.constraint import Constraint
from mlxchat.models.tokenizer_files import load_tokenizer
from mlxchat.text.tokens import Tokenizer
from scripts.bench_answers import SCHEMAS
from scripts.tiny_model import byte_tokenizer
from tests.conftest import examples
from tests.constrained import Walker

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


# 20 of each schema with `make test-all`.
ANSWERS = 3


def test_answers_to_schemas_are_valid_or_have_a_problem(walker: Walker) -> None:
    problems = 0
    for seed, schema in enumerate(SCHEMAS.values()):
        constraint, rng = Constraint.from_schema(schema), random.Random(seed)
        draft = validator_for(schema, Draft202012Validator)
        check = draft(schema, format_checker=draft.FORMAT_CHECKER)
        for _ in range(examples(ANSWERS)):
            answer = walker.answer(constraint, rng)
            if constraint.problem(answer) is not None:
                problems += 1
            else:
                # 8730.64 is a multiple of 0.01, but not of its nearest float.
                errors = check.iter_errors(json.loads(answer))
                assert all(each.validator == "multipleOf" for each in errors), (schema, answer)
    assert problems <= 0.02 * len(SCHEMAS) * examples(ANSWERS)


def test_an_answer_is_one_of_the_choices(walker: Walker) -> None:
    choices = ["yes", "no", "maybe", "no way", "日本", 'a "b"\n', "(.*)", "😀", " "]
    constraint = Constraint.from_choices(choices)
    rng = random.Random(0)
    assert {walker.answer(constraint, rng) for _ in range(150)} == set(choices)
