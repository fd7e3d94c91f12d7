"""The tools of the benchmarks: interleaved runs, spreads, texts, each benchmark's arithmetic."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxchat.bench import (
    startup,
    theirs,
    workloads,
)
from mlxchat.bench.paired import Spread, ratios
from mlxchat.bench.report import Figures, tables
from mlxchat.bench.subject import Subject
from mlxchat.errors import ModelError
from mlxchat.models.load import load
from mlxchat.models.skeleton import named_parameters
from scripts.families import build_family

NUMBERS = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=20)
NO_TICK = lambda done, total, what: None  # noqa: E731


@pytest.fixture
def subject(tiny_model: Path, tmp_path: Path) -> Subject:
    return Subject(
        tiny_model,
        "tiny",
        partial(load, str(tiny_model), offline=True),
        scratch=tmp_path,
        tick=NO_TICK,
        quick=True,
        notify=lambda _: None,
    )


# Statistics of runs


@given(NUMBERS)
def test_a_spread_is_the_median_minimum_and_maximum(values: list[float]) -> None:
    ordered = sorted(values)
    n = len(ordered)
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    found = Spread.of(values)
    assert found.median == pytest.approx(middle)
    assert (found.min, found.max, found.runs) == (ordered[0], ordered[-1], n)


def test_a_slowdown_of_the_machine_does_not_change_ratios() -> None:
    """B takes twice as long as A in every round, and both take ten times as long from the second,
    last and interrupted round on: the medians alone would say 1.1."""
    a, b = [1.0, 10.0, 10.0], [2.0, 20.0]
    assert ratios(b, a) == Spread(2.0, 2.0, 2.0, 2)
    assert ratios([], a) is None


@pytest.mark.parametrize(
    ("ratio", "cell"),
    [
        (Spread(1.2, 1.1, 1.3, 3), "1.20 (1.10–1.30)"),
        (Spread(1.2, 0.9, 1.3, 3), "1.20 (0.900–1.30) unclear"),
        (Spread(1.01, 0.9, 1.3, 3), "1.01 (0.900–1.30) tie"),
        (Spread(0.8, 0.8, 0.8, 1), "0.800"),
        (None, ""),
    ],
)
def test_a_ratio_is_a_tie_or_unclear(ratio: Spread | None, cell: str) -> None:
    values = {"side": "mlxchat", "speed_ratio": ratio}
    (table,) = tables([Figures("reading", values)], {"reading": "Reading"})
    assert table.rows == (("mlxchat", cell) if cell else ("mlxchat",),)


# The benchmarks


def test_a_workload_has_the_same_tokens_with_drafts_without_and_from_mlx_lm(
    subject: Subject,
) -> None:
    """All runs continue the same prompt, from a cache that no earlier run has changed."""
    *_, found = workloads.measure(subject, theirs.load_tokenizer(subject.directory))
    names = [each.name for each in workloads.workloads(quick=True)]
    values = [each.values for each in found]
    assert [each["workload"] for each in values] == [name for name in names for _ in range(2)]
    assert {(each["same_tokens"], each["tokens"]) for each in values} == {(16, 16)}
    assert all((each["speed_ratio"] is None) == (each["side"] == "mlx-lm") for each in values)


def test_a_failed_process_is_an_error_with_its_last_line() -> None:
    code = "import sys; sys.exit('first\\nno such model')"
    with pytest.raises(ModelError, match=r"status 1: no such model$"):
        startup.process_seconds([sys.executable, "-c", code], {})


def test_mlx_lm_gets_weights_in_the_same_dtype_as_ours(subject: Subject) -> None:
    directory = theirs.same_weights(subject)
    assert directory != subject.directory
    copied: Any = mx.load(str(directory / "model.safetensors"))
    ours = dict(named_parameters(subject.model.network))
    assert copied.keys() == ours.keys()
    assert all(mx.array_equal(copied[name], ours[name]) for name in ours)
    names = {path.name for path in subject.directory.iterdir()}
    assert {path.name for path in directory.iterdir()} == names


def test_models_for_which_mlx_lm_ignores_a_window_are_detected() -> None:
    """llama and gemma3 make their own caches; some of gemma3's layers are bounded by design."""
    kept = {
        name: theirs.keeps_window(build_family(name), 16)
        for name in ("llama", "gemma3_text", "phi")
    }
    assert kept == {"llama": False, "gemma3_text": False, "phi": True}
