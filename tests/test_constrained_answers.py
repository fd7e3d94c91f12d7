"""Random answers under every kind of constraint, checked by programs that know nothing of ours."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxchat.constraint.constraint import Constraint
from mlxchat.models.tokenizer_files import load_tokenizer
from mlxchat.text.tokens import Tokenizer
from scripts.answer_cases import cases
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


# 20 of each schema and of each grammar with `make test-all`.
ANSWERS = 5


def wrong(
    walker: Walker, constraint: Constraint, is_right: Callable[[str], bool], few: int, seed: int
) -> list[str]:
    """The answers that the check rejects."""
    rng = random.Random(seed)
    answers = [walker.answer(constraint, rng) for _ in range(examples(few))]
    return [answer for answer in answers if not is_right(answer)]


@pytest.mark.parametrize(
    ("kind", "count", "answers"),
    [("schema", 50, ANSWERS), ("regex", 213, 2), ("grammar", 20, ANSWERS)],
)
def test_answers_are_right(walker: Walker, kind: str, count: int, answers: int) -> None:
    found = {
        case.name: wrong(walker, case.constraint, case.is_right, answers, seed)
        for seed, case in enumerate(cases([kind]))
    }
    assert len(found) == count
    assert not any(found.values()), found


def test_an_answer_is_one_of_the_choices(walker: Walker) -> None:
    choices = ["yes", "no", "maybe", "no way", "日本", 'a "b"\n', "(.*)", "😀", " "]
    constraint = Constraint.from_choices(choices)
    rng = random.Random(0)
    assert {walker.answer(constraint, rng) for _ in range(150)} == set(choices)
