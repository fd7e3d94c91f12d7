"""The costs of drafts are kept on disk. If that fails, they are measured again, and that is all."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mlxchat import paths
from mlxchat.app.drafting import MAX_FILE_BYTES, make_drafter
from mlxchat.engine.drafts import Drafter
from mlxchat.engine.row_costs import ROWS, RowCosts
from mlxchat.models.load import load
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings

COSTS = RowCosts(dict(zip(ROWS, (1.0, 1.1, 1.2, 1.5, 2.0), strict=True)))


@pytest.fixture
def model(tiny_model: Path) -> Model:
    return load(str(tiny_model))


@pytest.fixture
def notices() -> list[str]:
    return []


@pytest.fixture
def drafter(model: Model, notices: list[str]) -> Drafter:
    made = make_drafter(model, GenerationSettings(), notices.append)
    assert made is not None
    return made


def costs_of(model: Model, notices: list[str]) -> dict[int, RowCosts]:
    made = make_drafter(model, GenerationSettings(), notices.append)
    assert made is not None
    return made.costs


def test_costs_are_kept_by_context(drafter: Drafter, model: Model, notices: list[str]) -> None:
    drafter.measured(100, COSTS)
    drafter.measured(5000, COSTS)
    assert costs_of(model, notices) == {1024: COSTS, 8192: COSTS}
    assert paths.row_costs_file().stat().st_mode & 0o777 == 0o600
    assert notices == []


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\x00\xff\xfe",
        b"[]",
        b'{"key": 1}',
        b'{"key": [1, 2]}',
        b'{"key": {"1024": [1, 2]}}',
        b'{"key": {"soon": [1, 1, 1, 1, 1]}}',
        b'{"key": {"1024": [0, 1, 1, 1, NaN]}}',
        b"[" * 100_000,
        b'{"key": "' + b"x" * MAX_FILE_BYTES + b'"}',
    ],
    ids=lambda damaged: repr(damaged[:40]),
)
def test_a_damaged_file_is_replaced(
    drafter: Drafter, model: Model, notices: list[str], damaged: bytes
) -> None:
    drafter.measured(100, COSTS)
    (key,) = json.loads(paths.row_costs_file().read_bytes())
    paths.row_costs_file().write_bytes(damaged.replace(b"key", key.encode()))
    assert costs_of(model, notices) == {}
    drafter.measured(2000, COSTS)
    assert costs_of(model, notices) == {2048: COSTS}
    assert notices == []


def test_a_directory_in_place_of_the_file_is_reported(
    drafter: Drafter, model: Model, notices: list[str]
) -> None:
    paths.row_costs_file().mkdir(parents=True)
    assert costs_of(model, notices) == {}
    drafter.measured(100, COSTS)
    assert [str(each) for each in notices] == [
        f"cannot write {paths.row_costs_file()}: Is a directory"
    ]
    assert drafter.costs_at(100) == COSTS


def test_a_cache_directory_that_cannot_be_made_is_reported(
    drafter: Drafter, model: Model, notices: list[str]
) -> None:
    paths.row_costs_file().parent.parent.mkdir(parents=True, exist_ok=True)
    paths.row_costs_file().parent.write_bytes(b"")
    assert costs_of(model, notices) == {}
    drafter.measured(100, COSTS)
    assert "cannot write" in str(notices)


def test_costs_measured_at_the_same_time_are_all_kept(drafter: Drafter, model: Model) -> None:
    """Each process wrote the file as it had read it, without what others had added meanwhile."""
    contexts = [1024 << n for n in range(16)]
    with ThreadPoolExecutor(len(contexts)) as threads:
        list(threads.map(lambda context: drafter.on_measured(context, COSTS), contexts))
    assert sorted(costs_of(model, [])) == contexts
