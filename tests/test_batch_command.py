"""`mlxchat batch` from the command line and from Python."""

import io
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

import mlxchat
from mlxchat import platform
from mlxchat.app import batch_run
from mlxchat.rows.pending import Pending
from mlxchat.rows.row import Row
from mlxchat.terminal import progress as module
from tests.conftest import RunMlxchat
from tests.test_progress import Terminal, seen_on, wait_for

YES_OR_NO = ["yes", "no"]


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


def test_rows_are_answered_each_with_its_own_options(run_mlxchat: RunMlxchat) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1]}}, "required": ["n"]}
    said = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    write(
        "in.jsonl",
        {"id": "a", "prompt": "Hello", "max_tokens": 2},
        {"id": "b", "messages": said, "choice": YES_OR_NO, "temp": 1},
        {"id": "c", "prompt": "x", "schema": schema, "max_tokens": 50},
        {"id": "d", "prompt": "x", "logprobs": 2},
    )
    done = run_mlxchat("batch", "in.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    a, b, c, d = lines(done.stdout)
    assert (a["id"], a["finish_reason"], a["generated_tokens"]) == ("a", "length", 2)
    assert b["text"] in YES_OR_NO
    assert b["complete"] is True
    assert (c["value"], "text" in c) == ({"n": 1}, False)
    assert len(d["logprobs"]) == d["generated_tokens"] == 6
    assert all(len(each["top"]) == 2 for each in d["logprobs"])


def test_a_row_has_the_text_that_generate_writes_with_its_seed(run_mlxchat: RunMlxchat) -> None:
    """The seed depends on the id, not on the place among the rows."""
    options = ("--temp", "1.5", "-s", "Be brief.", "-n", "9")
    write("in.jsonl", {"id": "a", "prompt": "one"}, {"id": "b", "prompt": "one"})
    first = lines(run_mlxchat("batch", "in.jsonl", "--seed", "5", *options).stdout)
    for each in first:
        seed = ("--seed", str(each["seed"]))
        alone = run_mlxchat("generate", "one", "--no-newline", *seed, *options)
        assert each["text"] == alone.stdout
    assert first[0]["text"] != first[1]["text"]
    write("in.jsonl", {"id": "b", "prompt": "one"}, {"id": "c", "prompt": "one", "seed": 7})
    again = lines(run_mlxchat("batch", "in.jsonl", "--seed", "5", *options).stdout)
    assert again[0]["text"] == first[1]["text"]
    assert again[1]["seed"] == 7


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


def test_ctrl_c_stops_with_every_finished_row_written(
    run_mlxchat: RunMlxchat, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupted_at(3, lambda: signal.raise_signal(signal.SIGINT), patch)
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
            "in.jsonl is the input: write the results to another file",
        ),
        (["--files", "*.md"], "--files: no file matches *.md"),
        (
            ["--files", "a.txt", "b.txt"],
            "b.txt and --files cannot be combined: quote the pattern, so that the shell leaves it "
            "alone",
        ),
        (
            ["--files", "a", "b", "c"],
            "unexpected argument c; quote the pattern of --files (see mlxchat batch --help)",
        ),
        (["in.jsonl", "--rows", "0"], "--rows must be between 1 and 1,024, got 0"),
        (
            ["in.jsonl", "--raw", "-s", "x"],
            "--system needs the chat template, which --raw bypasses",
        ),
        (
            ["in.jsonl", "--schema", "{"],
            "--schema: invalid JSON: Expecting property name enclosed ",
        ),
        (
            ["in.jsonl", "--ignore-eos", "--regex", "a"],
            "--regex and --ignore-eos cannot be combined",
        ),
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
    assert done.returncode == (1 if message.startswith("cannot ") else 2)
    assert done.stderr.startswith(f"mlxchat: error: {message}")
    assert len(done.stderr.splitlines()) == 1


def test_a_model_that_is_not_there_leaves_no_empty_output(run_mlxchat: RunMlxchat) -> None:
    done = run_mlxchat("batch", prompts(1), "-o", "out.jsonl", "-m", "./none")
    assert (done.returncode, done.stderr) == (1, "mlxchat: error: ./none does not exist\n")
    assert not Path("out.jsonl").exists()


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
    assert done.stderr.startswith("mlxchat: error: cannot write out.jsonl: it has been deleted; ")
    assert run_mlxchat("batch", "in.jsonl", "-o", "out.jsonl").returncode == 0
    assert ids_in("out.jsonl") == list(range(6))


def test_a_batch_from_python() -> None:
    rows = io.BytesIO(b'{"id": "a", "word": "one"}\n{"id": "b", "word": "two"}')
    request = mlxchat.BatchRequest(
        input=mlxchat.BatchInput(template=mlxchat.RowTemplate.parse("Say {word}")),
        output=Path("out.jsonl"),
        max_tokens=4,
    )
    with mlxchat.open_batch(request, piped=rows) as batch:
        found = {result.row.id: result.text for result in batch.results()}
        assert batch.figures.rows.finished == 2
    written = {each["id"]: each["text"] for each in lines(Path("out.jsonl").read_text())}
    assert found == written


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (80, r"[━╺╸]+ running 250/1,000 rows · 345 tok/s · 0:30 left"),
        (20, r"running 250"),
    ],
)
def test_the_progress_shows_rows_tokens_and_time_left(
    columns: int, line: str, ordinary_terminal: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    stderr = Terminal()
    bar = module.Bar("running", "rows", 0.0)
    with seen_on(stderr):
        for now[0], done in ((1.0, 240), (1.4, 250)):
            bar(done, 1_000, "345 tok/s")
        wait_for("250", stderr)
        bar.stop()
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stderr.getvalue())
    found = [" ".join(each.split()) for each in re.split(r"[\r\n]", shown)]
    assert any(re.search(line, each) for each in found), found
