"""`mlxchat batch` from the command line and from Python."""

import json
from pathlib import Path
from typing import Any

import pytest

from mlxchat import platform
from mlxchat.app import batch_run
from mlxchat.errors import ExitStatus
from mlxchat.rows.output import Pending
from mlxchat.rows.row import Row
from mlxchat.terminal.worker import Stop
from tests.in_process import run_in_process, run_quietly


@pytest.fixture(autouse=True)
def place(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLXCHAT_MODEL", str(tiny_model))
    monkeypatch.setenv("MLXCHAT_BATCH_MAX_TOKENS", "6")


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
        (["--files", "folder/**/*.txt", "-t", "Sum {input}"], ["folder/a.txt", "folder/b.txt"]),
        (["-t", "Say {word}", "words.jsonl"], ["x", 2]),
        (["--raw", "--lines", "-"], [1]),
    ],
)
def test_every_form_of_input(arguments: list[str], ids: list[Any]) -> None:
    write("lines.txt", "one", "", "two")
    write("table.csv", "id,subject,text", '7,Hi,"a\nb"', ",Ho,c")
    write("words.jsonl", {"id": "x", "word": "one", "more": 1}, {"word": 2})
    Path("folder").mkdir()
    Path("folder/again").symlink_to(".")
    for name in "ab":
        write(f"folder/{name}.txt", name)
    written = run_quietly("batch", *arguments, stdin="piped")
    assert [each["id"] for each in lines(written)] == sorted(ids, key=str)


def test_failed_rows_are_counted_and_the_first_is_shown() -> None:
    invalid = {"prompt": "b", "schema": {"type": "strin"}}
    write("in.jsonl", {"prompt": "a"}, "nope", invalid, {"prompt": "long " * 90})
    done = run_in_process("batch", "in.jsonl", "-o", "out.jsonl", "--stats", "--max-kv-size", "200")
    assert (done.returncode, done.stdout) == (1, "")
    figures, failed, cut = done.stderr.splitlines()
    assert [figures[:25], cut[9:28]] == ["4 rows, 2 failed · prompt", "1 prompt was larger"]
    unread = "the line must be a JSON object; --lines reads text"
    assert failed == f"mlxchat: 2 rows failed; row 2: {unread}"
    errors = [each.get("error") for each in lines(Path("out.jsonl").read_text())]
    wrong = "schema: $.type: 'strin' is not valid under any of the given schemas"
    assert errors == [None, wrong, None, unread]


INVALID = {"type": "array", "items": {"const": 1}, "minItems": 2, "uniqueItems": True}


@pytest.mark.parametrize(
    ("row", "status", "message"),
    [
        ({"choice": ["yes"]}, 0, ""),
        ({"choice": []}, 1, "1 row failed; row 1: choice: at least one"),
        ({"choice": ["a long choice"], "max_tokens": 2}, 4, "1 answer is not complete"),
        ({"schema": INVALID}, 4, "1 row failed; row 1: the answer is not valid: $: [1, 1"),
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_has_its_own_status(
    row: dict[str, Any], status: int, message: str
) -> None:
    done = run_in_process("batch", write("in.jsonl", {"prompt": "a", "max_tokens": 40, **row}))
    assert done.returncode == status
    assert done.stderr.removeprefix("mlxchat: ").startswith(message)
    assert len(done.stderr.splitlines()) == bool(message)
    (line,) = lines(done.stdout)
    assert line.get("complete") is (None if "error" in line else status == 0)


def test_a_finished_batch_loads_no_model_has_the_same_status_and_its_output_is_no_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pattern that matches the output would have had a second run summarize the results."""
    write("a.txt", "one")
    batch = ["batch", "--files", "*.txt", "-o", "out.txt", "--stats", "-n2", "--choice=certainly"]
    assert run_in_process(*batch).returncode == 4
    before = Path("out.txt").read_text()
    monkeypatch.delattr(batch_run, "open_model")
    done = run_in_process(*batch)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "1 row, 1 already finished\nmlxchat: 1 answer is not complete\n"
    assert Path("out.txt").read_text() == before


@pytest.mark.parametrize(
    ("is_deleted", "status", "reason"),
    [
        (False, 130, "mlxchat: stopped: "),
        # It went on writing to the deleted file, and ended with success.
        (True, 1, "mlxchat: error: out.jsonl was deleted or replaced: "),
    ],
)
def test_a_batch_that_is_cut_short_says_how_to_continue_and_a_second_run_does_the_rest(
    is_deleted: bool, status: int, reason: str
) -> None:
    take, asked = Pending.take, []

    def takes(pending: Pending, *wait_s: float) -> Row | None:
        row = take(pending, *wait_s)
        if row is not None and row.id == 3:
            Path("out.jsonl").unlink() if is_deleted else asked.append(True)
        return row

    def requested(stop: Stop) -> bool:
        stop.status = ExitStatus.INTERRUPTED if asked else None
        return bool(asked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stop, "requested", requested)
        patch.setattr(Pending, "take", takes)
        done = run_in_process("batch", prompts(6), "-o", "out.jsonl", "--rows", "1")
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(reason)
    assert done.stderr.endswith("2 rows finished; run the same command again for the rest\n")
    assert is_deleted or ids_in("out.jsonl") == [0, 1]
    assert run_in_process("batch", "in.jsonl", "-o", "out.jsonl").returncode == 0
    assert ids_in("out.jsonl") == list(range(6))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to read: name a file of rows, pipe them in, or use --files"),
        (["--files", "*.md"], "*.md: no file matches"),
        (["--files", "a.txt", "b.txt"], "b.txt and --files cannot be combined: quote the pattern"),
        # The first machine loaded the whole model and ran all rows; the others ended silently.
        (["in.jsonl"], "a batch runs on one machine: start it without mlx.launch"),
        (["in.jsonl", "--schema", "{"], "--schema: invalid JSON: Expecting property name enclosed"),
    ],
)
def test_what_cannot_work_is_refused_before_a_model_is_loaded(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts(1)
    monkeypatch.delattr(batch_run, "open_model")
    if "machine" in message:
        monkeypatch.setattr(platform, "launched_rank", lambda: 0)
    done = run_in_process("batch", *arguments)
    assert done.returncode == (1 if message.endswith("matches") else 2)
    assert done.stderr.startswith(f"mlxchat: error: {message}")
    assert len(done.stderr.splitlines()) == 1
