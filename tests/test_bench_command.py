"""`mlxchat bench` as users run it, on a tiny model: records, tables and errors. No test
looks at how long anything takes."""

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mlxchat.bench import batch, decode, paired, startup
from mlxchat.bench.catalog import BENCHES, Entry
from mlxchat.bench.report import Figures
from mlxchat.bench.startup import process_seconds
from mlxchat.bench.subject import Subject
from mlxchat.request import Setup
from mlxchat.terminal import run_bench
from mlxchat.terminal.run_bench import BenchRequest
from tests.conftest import RunMlxchat, made_once
from tests.in_process import run_in_process
from tests.pseudo_terminal import PseudoTerminal

BENCH = [sys.executable, "-m", "mlxchat", "bench"]

# The kinds of figures of each benchmark.
FIGURES = {
    ("startup", "start"),
    ("prefill", "prefill"),
    ("decode", "stretch"),
    ("decode", "workload"),
    ("batch", "rows"),
    ("batch", "shared"),
}
COMMON = {
    *("bench", "kind", "time", "command", "complete", "quick", "model", "dtype", "weights_bytes"),
    *("machine", "figures"),
}


def records(lines: list[str]) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in lines]
    for record in found:
        assert {*record} == COMMON
        assert (record["bench"], record["kind"]) in FIGURES
    return found


@dataclass(frozen=True)
class Everything:
    """The output of one run of all benchmarks, mlx-lm included."""

    command: str
    stdout: str
    stderr: str
    lines: list[str]

    def records(self, name: str) -> list[dict[str, Any]]:
        return [each for each in records(self.lines[2:]) if each["bench"] == name]


TINY_BATCH = batch.Amounts(
    rows=(1, 2),
    tokens=3,
    rounds=1,
    prompts=5,
    shared=40,
    shared_tokens=3,
)
LINES_BEFORE = ['{"a line": "from before"}', '{"and one that was cu']


@pytest.fixture(scope="module")
def everything(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Everything:
    directory = tmp_path_factory.mktemp("bench")
    return made_once("bench", tmp_path_factory, lambda: bench_everything(tiny_model, directory))


def bench_everything(tiny_model: Path, directory: Path) -> Everything:
    kept = directory / "kept.jsonl"
    kept.write_text("\n".join(LINES_BEFORE))
    arguments = ["--quick", "-m", str(tiny_model), "--against", "mlx-lm", "--json", str(kept)]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
            patch.setenv(name, str(directory))
        # Timing is irrelevant, so each process is started once and little is decoded.
        started = cache(lambda command: process_seconds(command, os.environ))
        patch.setattr(startup, "process_seconds", lambda command, _: started(tuple(command)))
        patch.setattr(decode, "QUICK", replace(decode.QUICK, rounds=1))
        patch.setattr(batch, "QUICK", TINY_BATCH)
        patch.setattr(paired, "settle", lambda: None)
        done = run_in_process("bench", *arguments)
    assert done.returncode == 0, done.stderr
    return Everything(
        shlex.join(["mlxchat", "bench", *arguments]),
        done.stdout,
        done.stderr,
        kept.read_text().splitlines(),
    )


@pytest.mark.parametrize("name", [entry.name for entry in BENCHES])
def test_each_benchmark_records_all_its_kinds_of_figures(everything: Everything, name: str) -> None:
    found = everything.records(name)
    assert {(each["bench"], each["kind"]) for each in found} == {
        each for each in FIGURES if each[0] == name
    }
    assert all(each["complete"] and each["quick"] for each in found)
    assert {each["command"] for each in found} == {everything.command}


@pytest.mark.parametrize("name", [entry.name for entry in BENCHES])
def test_mlx_lm_is_measured_too(everything: Everything, name: str) -> None:
    figures = [each["figures"] for each in everything.records(name)]
    for ratio in ("time_ratio", "speed_ratio"):
        assert all(
            (each[ratio] is None) == (each["side"] == "mlx-lm") for each in figures if ratio in each
        )
    assert {each["side"] for each in figures if "side" in each} >= {"mlxchat", "mlx-lm"}


def test_records_are_appended_to_earlier_ones(everything: Everything) -> None:
    assert everything.lines[:2] == LINES_BEFORE
    found = [each["bench"] for each in records(everything.lines[2:])]
    assert list(dict.fromkeys(found)) == [entry.name for entry in BENCHES]


def test_a_pipe_gets_only_tables(everything: Everything) -> None:
    """Comments, headers and rows with the same number of cells, each followed by an empty line."""
    assert everything.stderr == ""
    tables = everything.stdout.split("\n\n")
    assert tables.pop() == ""
    assert len(tables) >= len(BENCHES)
    for table in tables:
        rows = [line for line in table.splitlines() if not line.startswith("#")]
        assert len({row.count("\t") for row in rows}) == 1
        assert len(rows) > 1


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["unheard-of"], 2, "unheard-of"),
        (["prefill", "--workload", "chat"], 2, "--workload"),
        (["decode", "--workload", "poetry"], 2, "poetry"),
        (["prefill", "--against", "llama.cpp"], 2, "llama.cpp"),
        (["prefill", "--json", "/no/such/directory/file"], 1, "/no/such/directory/file"),
        (["prefill", "-m", "/no/such/model"], 1, "/no/such/model"),
    ],
)
def test_impossible_requests_are_a_one_line_error_before_measuring(
    run_mlxchat: RunMlxchat, tiny_model: Path, arguments: list[str], status: int, complaint: str
) -> None:
    name, *options = arguments
    done = run_mlxchat("bench", name, "-m", str(tiny_model), *options)
    assert (done.returncode, done.stdout) == (status, "")
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_one_failing_benchmark_does_not_stop_the_others(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Fails:
        TITLES: ClassVar = {"sample": "A sample"}

        def measure(self, subject: Subject) -> Iterator[list[Figures]]:
            yield [Figures("sample", {"tokens": 1})]
            raise RuntimeError("[malloc] Unable to allocate\nmuch more")

    class Works(Fails):
        def measure(self, subject: Subject) -> Iterator[list[Figures]]:
            yield [Figures("sample", {"tokens": 2})]

    benches = {"one": Fails(), "two": Works()}
    monkeypatch.setattr(run_bench, "load", benches.__getitem__)
    request = BenchRequest(
        entries=tuple(Entry(name, "") for name in benches),
        setup=Setup(model=str(tiny_model), offline=True),
        against=False,
        quick=True,
        json_file="-",
        quiet=False,
    )
    assert run_bench.run_benches(request) == 1
    shown = capsys.readouterr()
    assert shown.err == (
        "mlxchat: error: bench one: out of memory: use a smaller window, a smaller or more heavily "
        "quantized model, or close other programs ([malloc] Unable to allocate)\n"
    )
    found = [json.loads(line) for line in shown.out.splitlines()]
    assert [(each["bench"], each["complete"]) for each in found] == [("one", False), ("two", True)]


def test_a_full_disk_loses_the_file_but_not_the_tables(
    run_mlxchat: RunMlxchat, tiny_model: Path
) -> None:
    done = run_mlxchat("bench", "prefill", "--quick", "-m", str(tiny_model), "--json", "/dev/full")
    assert done.returncode == 1
    assert "STEP SIZE\tTOKENS PER S\t" in done.stdout
    assert done.stderr.startswith("mlxchat: error: cannot write /dev/full: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_an_interrupted_benchmark_shows_and_keeps_its_figures(
    tiny_model: Path, tmp_path: Path, ordinary_terminal: None, number: int, status: int
) -> None:
    """On a terminal, the bar is removed, and the table is shown."""
    kept = tmp_path / "kept.jsonl"
    bench = PseudoTerminal(
        [*BENCH, "prefill", "-m", str(tiny_model), "--json", str(kept)],
        columns=110,
        lines=60,
    )
    bench.shows(r"[3-9]/33")
    bench.child.kill(number)
    assert bench.ends() == status
    screen = bench.text()
    assert "bench prefill is incomplete" in screen
    assert "/33" not in screen
    assert "STEP SIZE  TOKENS PER S" in screen
    found = records(kept.read_text().splitlines())
    assert 2 < len(found) < 33
    assert not any(each["complete"] for each in found)
