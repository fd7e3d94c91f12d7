"""The tools of the benchmarks: interleaved runs, spreads, texts, each benchmark's arithmetic."""

import gc
import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxchat.bench import (
    batch_speed,
    prefill,
    startup,
    theirs,
    workloads,
)
from mlxchat.bench.paired import Side, Spread, differences, interleave, ratios
from mlxchat.bench.record import Circumstances, lines, this_machine
from mlxchat.bench.report import Figures, Table, tables
from mlxchat.bench.subject import Subject
from mlxchat.engine.drafts import Drafter
from mlxchat.engine.lookup import History
from mlxchat.errors import ModelError
from mlxchat.models.load import load
from mlxchat.models.skeleton import named_parameters
from mlxchat.terminal.run_bench import format_bench_table
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


def spread(figures: Figures, name: str) -> Spread:
    found = figures.values[name]
    assert isinstance(found, Spread)
    return found


def side(name: str, log: list[str], give: Callable[[], float] = lambda: 1.0) -> Side[float]:
    def run() -> float:
        log.append(name)
        return give()

    return Side(name, run, warm_up=lambda: log.append(f"warm {name}"))


# Interleaved runs


def test_sides_are_warmed_up_once_and_run_in_turn() -> None:
    log: list[str] = []
    list(interleave([side("A", log), side("B", log)], 3, NO_TICK))
    assert log == ["warm A", "warm B", "A", "B", "A", "B", "A", "B"]


def test_an_interrupted_run_keeps_the_earlier_ones() -> None:
    def interrupt() -> float:
        raise KeyboardInterrupt

    measured = interleave([side("A", []), side("B", [], interrupt)], 2, NO_TICK)
    so_far = next(measured)
    with pytest.raises(KeyboardInterrupt):
        next(measured)
    assert so_far == [[1.0], []]


def test_memory_of_the_previous_run_is_freed_before_each_run() -> None:
    before: list[int] = []

    def litter() -> float:
        before.append(mx.get_active_memory())
        # A cycle, which only the garbage collector frees.
        ring: list[Any] = [mx.zeros((256, 1024)) + 1]
        ring.append(ring)
        mx.eval(ring[0])
        return 0.0

    gc.disable()
    try:
        list(interleave([side("A", [], litter), side("B", [], litter)], 3, NO_TICK))
    finally:
        gc.enable()
    assert len(set(before)) == 1


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
    assert differences(b, a) == Spread(5.5, 1.0, 10.0, 2)
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


def test_what_all_rows_share_is_in_the_title_and_empty_columns_are_left_out() -> None:
    found = [
        Figures(
            "reading",
            {
                "side": side,
                "prompt_tokens": 4_232,
                "tokens_per_s": Spread(speed, speed, speed, 3),
                "peak_bytes": 1_500_000 + n,
                "window": None,
            },
        )
        for n, (side, speed) in enumerate([("mlxchat", 1_066.4), ("mlx-lm", 0.07123)])
    ]
    (table,) = tables(found, {"reading": "Reading a prompt"})
    assert table == Table(
        "Reading a prompt: prompt tokens 4,232, peak MB 1.50, 3 runs each",
        ("SIDE", "TOKENS PER S"),
        (("mlxchat", "1,066 (1,066–1,066)"), ("mlx-lm", "0.0712 (0.0712–0.0712)")),
    )
    assert format_bench_table(table, for_terminal=False) == (
        "# Reading a prompt: prompt tokens 4,232, peak MB 1.50, 3 runs each\n"
        "SIDE\tTOKENS PER S\n"
        "mlxchat\t1,066 (1,066–1,066)\n"
        "mlx-lm\t0.0712 (0.0712–0.0712)\n"
        "\n"
    )


def test_a_table_on_a_terminal_aligns_numbers_right() -> None:
    table = Table("A title \x1b[31m", ("SIDE", "TOK/S"), (("mlxchat", "82.8"), ("mlx-lm", "1,066")))
    drawn = format_bench_table(table, for_terminal=True)
    assert [line.rstrip() for line in drawn.splitlines()] == [
        "A title ␛[31m",
        "",
        "SIDE     TOK/S",
        "──────────────",
        "mlxchat   82.8",
        "mlx-lm   1,066",
        "",
    ]


def test_infinity_and_nan_are_null_in_a_record() -> None:
    found = [Figures("start", {"seconds": Spread(math.inf, 0.1, math.nan, 2)})]
    circumstances = Circumstances(
        *("startup", "2026-01-01T00:00:00+00:00", "mlxchat bench", True, True, "m", "auto", None),
        this_machine(),
    )
    (line,) = lines(found, circumstances)
    record = json.loads(line)
    assert record["figures"]["seconds"] == {"median": None, "min": 0.1, "max": None, "runs": 2}
    assert record["machine"] == asdict(this_machine()) | {"load": record["machine"]["load"]}


# The benchmarks


def test_smaller_steps_need_less_memory(subject: Subject) -> None:
    *_, found = prefill.measure(subject)
    peaks = [spread(each, "peak_memory_bytes").median for each in found]
    assert [each.values["step_size"] for each in found] == [64, 128, 256]
    # Two cores compute parts of a step at the same time, and which arrays coexist is up to chance.
    assert max(peaks[:2]) < peaks[-1]
    assert found[-1].values["speed_ratio"] is None


def test_all_sides_generate_the_same_number_of_tokens(subject: Subject) -> None:
    prompts = batch_speed.different_prompts(subject.model, 3, 20)
    assert len({prompt[:1] for prompt in prompts}) == 3
    given: dict[str, int] = {}
    for generate in (batch_speed.generate_side_by_side, batch_speed.generate_theirs):
        timer = batch_speed.Timer()
        generate(subject, prompts, 5, timer.take)
        given[generate.__name__] = timer.tokens
    assert set(given.values()) == {15}


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


def test_a_workload_that_foresees_its_reply_accepts_drafts(subject: Subject) -> None:
    """A tiny model soon repeats itself."""
    model = subject.model
    ids = workloads.prompt_ids(model, workloads.workloads(quick=True)[-1])
    reply = workloads.Reply.expected(model, "chat", ids, max_tokens=100)
    drafter = Drafter(History(), 15, clock=lambda: 0.0)
    drafter.history.extend(np.array([*ids[-10:], *reply.tokens], np.int32))
    run = reply.decode(drafter)
    assert run.ids == reply.tokens
    assert 0 < run.accepted <= run.drafted


def test_a_reply_counts_up_to_its_end(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    model = subject.model
    ids = workloads.prompt_ids(model, workloads.workloads(quick=True)[-1])
    whole = workloads.Reply.expected(model, "chat", ids, max_tokens=40).tokens
    end = next(n for n in range(len(whole) - 1, -1, -1) if whole[n] not in whole[:n])
    monkeypatch.setattr(model.tokenizer, "eos_ids", frozenset({whole[end]}))
    assert len(workloads.Reply.expected(model, "chat", ids, 40).tokens) == max(end, 16)


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
