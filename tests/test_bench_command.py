"""`mlxchat bench` on a tiny model: records, tables and errors. No test looks at times."""

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from mlxchat.bench import BENCHES, Benchmark, batch, compare, decode, startup
from mlxchat.bench.compare import Comparison, Side, Spread
from mlxchat.request import Setup
from mlxchat.terminal import run_bench
from mlxchat.terminal.run_bench import BenchRequest
from tests.in_process import run_in_process, run_quietly

# The kinds of figures of each benchmark.
FIGURES = {
    *(("startup", "start"), ("prefill", "prefill"), ("decode", "stretch")),
    *(("batch", "rows"), ("batch", "shared")),
}
COMMON = {
    *("bench", "kind", "time", "command", "complete", "quick", "model", "dtype", "weights_bytes"),
    *("machine", "figures"),
}

TINY_BATCH = batch.Amounts((1, 2), tokens=3, rounds=1, prompts=5, shared=40, shared_tokens=3)


def test_every_benchmark_appends_its_figures_and_mlx_lms_and_shows_tables(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables are a comment, headers and rows with the same number of cells, and an empty line."""
    kept = tmp_path / "kept.jsonl"
    kept.write_text('{"a line": "from before"}\n')
    arguments = ["--quick", "-m", str(tiny_model), "--against", "mlx-lm", "--json", str(kept)]
    # Timing is irrelevant, so no process is started, and little is decoded.
    monkeypatch.setattr(startup, "process_seconds", lambda _: 0.5)
    monkeypatch.setattr(decode, "QUICK", replace(decode.QUICK, rounds=1))
    monkeypatch.setattr(batch, "QUICK", TINY_BATCH)
    monkeypatch.setattr(compare, "settle", lambda: None)
    shown = run_quietly("bench", *arguments)
    before, *lines = kept.read_text().splitlines()
    assert before == '{"a line": "from before"}'
    found = [json.loads(line) for line in lines]
    assert {(each["bench"], each["kind"]) for each in found} == FIGURES
    names = [each["bench"] for each in found]
    assert list(dict.fromkeys(names)) == [entry.name for entry in BENCHES]
    assert all({*each} == COMMON and each["complete"] and each["quick"] for each in found)
    assert {each["command"] for each in found} == {shlex.join(["mlxchat", "bench", *arguments])}
    for name in {*names} - {"startup"}:
        figures = [each["figures"] for each in found if each["bench"] == name]
        assert {each["side"] for each in figures} >= {"mlxchat", "mlx-lm"}
        measured = [each for each in figures if "speed_ratio" in each]
        assert all((each["speed_ratio"] is None) == (each["side"] == "mlx-lm") for each in measured)
    *tables, end = shown.split("\n\n")
    assert (len(tables) >= len(BENCHES), end) == (True, "")
    for each in tables:
        cells = {line.count("\t") for line in each.splitlines() if not line.startswith("#")}
        assert len(cells) == 1


def test_an_impossible_request_is_refused_before_measuring() -> None:
    for options in (["-m", "/no/such/model"], ["-m", "smollm2", "--json", "/no/such/directory"]):
        done = run_in_process("bench", "prefill", *options)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert options[-1] in done.stderr


def test_one_failing_benchmark_does_not_stop_the_others(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail = Mock(side_effect=RuntimeError("[malloc] Unable to allocate\nmuch more"))

    def bench(*runs: Callable[[], object]) -> Any:
        sides = {n: Side("", run, list) for n, run in enumerate(runs)}
        found = Comparison("sample", "A sample", sides, 1, lambda key, _: [{"tokens": key}])
        return SimpleNamespace(comparisons=lambda _: [found])

    benches = {"one": bench(list, fail), "two": bench(list)}
    monkeypatch.setattr(run_bench, "import_module", lambda name: benches[name.rpartition(".")[2]])
    entries, setup = tuple(Benchmark(name, "") for name in benches), Setup(str(tiny_model))
    request = BenchRequest(entries, setup, against=False, quick=True, json_file="-", quiet=False)
    assert run_bench.run_benches(request) == 1
    shown = capsys.readouterr()
    assert shown.err == (
        "mlxchat: error: bench one: out of memory: use a smaller window, a smaller or more heavily "
        "quantized model, or close other programs ([malloc] Unable to allocate)\n"
    )
    found = [json.loads(line) for line in shown.out.splitlines()]
    assert [(each["bench"], each["complete"]) for each in found] == [("one", False), ("two", True)]


def test_sides_take_turns_and_each_is_warmed_up_once() -> None:
    done: list[str] = []
    sides = {
        name: Side(name, partial(done.append, name), partial(done.append, f"({name})"))
        for name in "ab"
    }
    *_, runs = compare.interleave(sides, 2, lambda *_: None)
    assert done == ["(a)", "(b)", "a", "b", "a", "b"]
    assert {name: len(each) for name, each in runs.items()} == {"a": 2, "b": 2}
    # An interrupted one has more runs of the first side.
    shown = [{"side": name, "s": Spread.of([1.0] * count)} for name, count in (("a", 2), ("b", 1))]
    assert compare.table("Waits", shown).title == "Waits: 1 to 2 runs each"
