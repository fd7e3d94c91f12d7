"""`mlxchat batch` from the command line and from Python."""

import json
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mlxchat import platform
from mlxchat.app import batch_run
from mlxchat.rows.output import Pending
from mlxchat.rows.row import Row
from tests.conftest import RunMlxchat
from tests.in_process import run_in_process


@pytest.fixture(autouse=True)
def place(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    place = tmp_path_factory.mktemp("place")
    monkeypatch.chdir(place)
    monkeypatch.setenv("MLXCHAT_MODEL", str(tiny_model))
    monkeypatch.setenv("MLXCHAT_BATCH_MAX_TOKENS", "6")
    return place


def write(name: str, *records: Any) -> str:
    lines = [each if isinstance(each, str) else json.dumps(each) for each in records]
    Path(name).write_text("\n".join(lines))
    return name


def lines(text: str) -> list[dict[str, Any]]:
    """The results, sorted by id: they are written in the order in which they finish."""
    return sorted((json.loads(line) for line in text.splitlines()), key=lambda x: str(x["id"]))


def ids_in(name: str) -> list[Any]:
    return [each["id"] for each in lines(Path(name).read_text())]


def prompts(count: int) -> str:
    return write("in.jsonl", *({"id": n, "prompt": f"p{n}"} for n in range(count)))


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (["--lines", "lines.txt"], [1, 3]),
        (["--csv", "table.csv", "-t", "{subject}: {text}"], ["7", 2]),
        (["--files", "folder/*.txt", "-t", "Summarize: {text}"], ["folder/a.txt", "folder/b.txt"]),
        (["-t", "Say {word}", "words.jsonl"], ["x", 2]),
        (["--raw", "--lines", "lines.txt"], [1, 3]),
        (["--lines", "-"], [1]),
    ],
)
def test_every_form_of_input(arguments: list[str], ids: list[Any], run_mlxchat: RunMlxchat) -> None:
    write("lines.txt", "one", "", "two")
    write("table.csv", "id,subject,text", '7,Hi,"a\nb"', ",Ho,c")
    write("words.jsonl", {"id": "x", "word": "one", "more": 1}, {"word": 2})
    Path("folder").mkdir()
    for name in "ab":
        write(f"folder/{name}.txt", name)
    done = run_mlxchat("batch", *arguments, stdin="piped")
    assert (done.returncode, done.stderr) == (0, "")
    assert [each["id"] for each in lines(done.stdout)] == sorted(ids, key=str)


def test_failed_rows_are_counted_and_the_first_is_shown(run_mlxchat: RunMlxchat) -> None:
    write("in.jsonl", {"prompt": "a"}, "nope", {"prompt": "b", "schema": {"type": "strin"}})
    done = run_mlxchat("batch", "in.jsonl", "-o", "out.jsonl", "--stats")
    assert (done.returncode, done.stdout) == (1, "")
    figures, failed = done.stderr.splitlines()
    assert figures.startswith("3 rows, 2 failed · prompts ")
    assert failed == ("mlxchat: 2 rows failed; row 2: invalid JSON: expected ident at column 2")
    errors = [each.get("error") for each in lines(Path("out.jsonl").read_text())]
    wrong = "--schema: $.type: 'strin' is not valid under any of the given schemas"
    assert errors == [None, wrong, "invalid JSON: expected ident at column 2"]
    before = Path("out.jsonl").read_text()
    assert run_mlxchat("batch", "in.jsonl", "-o", "out.jsonl").returncode == 1
    assert Path("out.jsonl").read_text() == before, "the same errors are not written again"


def test_an_incomplete_answer_has_its_own_status(run_mlxchat: RunMlxchat) -> None:
    write("in.jsonl", {"prompt": "a", "choice": ["a long choice"], "max_tokens": 2})
    done = run_mlxchat("batch", "in.jsonl")
    assert (done.returncode, done.stderr) == (4, "mlxchat: 1 answer is not complete\n")
    assert lines(done.stdout)[0]["complete"] is False


def test_a_finished_batch_loads_no_model(
    run_mlxchat: RunMlxchat, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_mlxchat("batch", prompts(2), "-o", "out.jsonl").returncode == 0
    before = Path("out.jsonl").read_text()
    monkeypatch.delattr(batch_run, "open_model")
    done = run_mlxchat("batch", "in.jsonl", "-o", "out.jsonl", "--stats")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "2 rows, 2 already finished\n"
    assert Path("out.jsonl").read_text() == before


def interrupted_at(number: int, act: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Call `act` when the row with this id is taken."""
    take = Pending.take

    def takes(pending: Pending, *wait_s: float) -> Row | None:
        row = take(pending, *wait_s)
        if row is not None and row.id == number:
            act()
        return row

    monkeypatch.setattr(Pending, "take", takes)


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)
    # The main thread has to see it first.
    time.sleep(0.2)


def test_ctrl_c_stops_with_every_finished_row_written(
    run_mlxchat: RunMlxchat, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupted_at(3, press_ctrl_c, patch)
        done = run_mlxchat("batch", prompts(6), "-o", "out.jsonl", "--rows", "1")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == (
        "mlxchat: stopped: 2 rows finished; run the same command again for the rest\n"
    )
    assert ids_in("out.jsonl") == [0, 1]
    assert run_mlxchat("batch", "in.jsonl", "-o", "out.jsonl").returncode == 0
    assert ids_in("out.jsonl") == list(range(6))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lines", "--csv", "in.jsonl"], "--lines and --csv cannot be combined"),
        (["none.jsonl"], "cannot read none.jsonl: No such file or directory"),
        ([], "nothing to read: name a file of rows, pipe them in, or use --files"),
        (
            ["in.jsonl", "-o", "in.jsonl"],
            "in.jsonl is not the output of a batch: choose another name",
        ),
        (["--files", "*.md"], "--files: no file matches *.md"),
        (["--files", "a.txt", "b.txt"], "b.txt and --files cannot be combined: quote the pattern"),
        (
            ["--files", "a", "b", "c"],
            "got unexpected extra argument(s) (c); quote a text of several words, or a pattern",
        ),
        (["in.jsonl", "--schema", "{"], "--schema: invalid JSON: Expecting property name enclosed"),
    ],
)
def test_what_cannot_work_is_refused_before_a_model_is_loaded(
    arguments: list[str],
    message: str,
    run_mlxchat: RunMlxchat,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts(1)
    monkeypatch.delattr(batch_run, "open_model")
    done = run_mlxchat("batch", *arguments)
    assert done.returncode == (1 if " cannot read " in f" {message}" or "output" in message else 2)
    assert done.stderr.startswith(f"mlxchat: error: {message}")
    assert len(done.stderr.splitlines()) == 1


def test_a_pattern_that_matches_the_output_does_not_read_it(run_mlxchat: RunMlxchat) -> None:
    """A second run would have summarized the results of the first."""
    write("a.txt", "one")
    for _ in range(2):
        done = run_mlxchat("batch", "--files", "*.txt", "-o", "out.txt")
        assert (done.returncode, done.stderr) == (0, "")
    assert ids_in("out.txt") == ["a.txt"]


def test_a_batch_is_refused_on_several_machines(
    run_mlxchat: RunMlxchat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first machine loaded the whole model and ran all rows; the others ended silently."""
    monkeypatch.setattr(platform, "launched_rank", lambda: 0)
    done = run_mlxchat("batch", prompts(2), "-o", "out.jsonl")
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        "mlxchat: error: a batch runs on one machine: start it without mlx.launch\n",
    )
    assert not Path("out.jsonl").exists()


def test_an_output_that_is_deleted_ends_the_batch(
    run_mlxchat: RunMlxchat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on writing to the deleted file, and ended with success."""
    with pytest.MonkeyPatch.context() as patch:
        interrupted_at(3, Path("out.jsonl").unlink, patch)
        done = run_mlxchat("batch", prompts(6), "-o", "out.jsonl", "--rows", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("mlxchat: error: out.jsonl was deleted or replaced: ")
    assert run_mlxchat("batch", "in.jsonl", "-o", "out.jsonl").returncode == 0
    assert ids_in("out.jsonl") == list(range(6))


# Killed at random moments and run again until it is finished


ROWS = 60


def write_rows(path: Path) -> None:
    """Rows with prompts of several lengths, one of them malformed."""
    rows = [json.dumps({"id": n, "prompt": f"Row {n}. " * (1 + n % 7)}) for n in range(ROWS)]
    path.write_text("\n".join([*rows[:20], "malformed", *rows[20:]]))


def arguments(model: Path, rows: Path, out: Path) -> list[str]:
    return [
        *("batch", str(rows), "-o", str(out), "-m", str(model)),
        *("--rows", "8", "-n", "20", "--temp", "1", "--seed", "3"),
    ]


def run_to_its_end(batch: list[str]) -> float:
    """Run without a kill, in this process; returns seconds."""
    began_s = time.monotonic()
    done = run_in_process(*batch)
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("mlxchat: 1 row failed; row 21: invalid JSON"), done.stderr
    return time.monotonic() - began_s


def kill_run(batch: list[str], out: Path, seconds: float, *, early: bool) -> bool:
    """Run and kill it after `seconds`, which count from its first line unless `early`; returns
    whether it was killed before its end."""
    before = size_of(out)
    process = subprocess.Popen(
        [sys.executable, "-m", "mlxchat", *batch],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not early and process.poll() is None and size_of(out) <= before:
        time.sleep(0.002)
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()
    return process.wait() == -signal.SIGKILL


def size_of(out: Path) -> int:
    return out.stat().st_size if out.exists() else 0


def whole_lines(out: Path) -> bytes:
    data = out.read_bytes() if out.exists() else b""
    return data[: data.rfind(b"\n") + 1]


def texts_in(out: Path) -> dict[int, str]:
    """The texts by id, each of which must be there once, and the malformed row once."""
    found = [json.loads(line) for line in out.read_text().splitlines()]
    texts = {each["id"]: each["text"] for each in found if "error" not in each}
    assert len(found) == len(texts) + 1
    assert set(texts) == set(range(ROWS))
    return texts


def check_kills(model: Path, place: Path, kills: int, seed: int) -> None:
    """Kill as many runs; begin another output whenever one is finished."""
    rows, expected = place / "in.jsonl", place / "expected.jsonl"
    write_rows(rows)
    run_s = run_to_its_end(arguments(model, rows, expected))
    texts = texts_in(expected)
    drawn = random.Random(seed)
    outputs, killed = 0, 0
    while killed < kills:
        outputs += 1
        out = place / f"out-{outputs}.jsonl"
        batch = arguments(model, rows, out)
        before, is_over = b"", False
        while killed < kills and not is_over:
            early = drawn.random() < 0.2
            is_over = not kill_run(batch, out, drawn.uniform(0, run_s / 3), early=early)
            killed += not is_over
            now = whole_lines(out)
            assert now.startswith(before), f"kill {killed}: a finished line was lost or changed"
            before = now
        run_to_its_end(batch)
        assert texts_in(out) == texts
        assert out.read_bytes().startswith(before)


def test_five_kills_lose_no_row_and_double_none(tiny_model: Path, tmp_path: Path) -> None:
    check_kills(tiny_model, tmp_path, kills=5, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_a_hundred_kills_lose_no_row_and_double_none(tiny_model: Path, tmp_path: Path) -> None:
    check_kills(tiny_model, tmp_path, kills=100, seed=0)
