"""The output of a batch: nothing is lost, nothing is there twice, and a second run continues it."""

import io
import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxchat.errors import OutputError, UsageError
from mlxchat.request import BatchInput
from mlxchat.rows import output as writing
from mlxchat.rows.output import Pending, Result, ResultFile
from mlxchat.rows.read import Rows
from mlxchat.rows.row import Row
from tests.failing_disk import FailingDisk


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(json.dumps({"id": f"é{n}", "prompt": "p"}) for n in range(20)))
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "out.jsonl"


def run_batch(
    source: Path, out: Path, on_begin: Callable[[Pending], object] = lambda _: None
) -> Pending:
    """Finish every row, several side by side, in a random order."""
    drawn = random.Random(0)
    with Rows(BatchInput(path=source)) as rows, (output := ResultFile(out)):
        pending = Pending(rows, output.write, output.finished)
        on_begin(pending)
        running: list[Row] = []
        while True:
            while len(running) < 8 and (row := pending.take()) is not None:
                running.append(row)
            if not running:
                assert pending.is_over
                return pending
            row = running.pop(drawn.randrange(len(running)))
            pending.finish(Result(row, text="Yes!", finish_reason="stop"))


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_bytes().splitlines()]


def ids(out: Path) -> list[Any]:
    return [each["id"] for each in records(out)]


def test_the_line_of_a_complete_answer_has_its_value_and_no_line_end_within() -> None:
    """Terminals obey some characters, and readers take others for line ends."""
    figures: dict[str, Any] = {"prompt_tokens": 7, "cached_tokens": 5, "generated_tokens": 2}
    figures |= {"seed": 9, "ttft_s": 0.5, "seconds": 2.0, "finish_reason": "stop"}
    value = {"b": "Yes\r\x1c\x85\u2028\u2029\x9b."}
    result = Result(Row(3, "a"), text=json.dumps(value), value=value, complete=True, **figures)
    assert result.line() == (
        '{"id": "a", "value": {"b": "Yes\\r\\u001c\\u0085\\u2028\\u2029\\u009b."}, '
        '"finish_reason": "stop", "complete": true, "prompt_tokens": 7, "cached_tokens": 5, '
        '"generated_tokens": 2, "thought_tokens": 0, "evicted_tokens": 0, "ttft_s": 0.5, '
        '"seconds": 2.0, "seed": 9}\n'
    )


def test_an_error_of_the_input_is_written_once_and_one_of_the_run_is_tried_again(
    source: Path, out: Path
) -> None:
    read = '{"id":1,"prompt":"a"}\n{"id":1,"prompt":"a"}\n{"id":2,"prompt":"b"}'
    source.write_text(f'nope\n{read}\n{{"prompt":"c","temp":-1}}\n{{"id":0}}')

    def run(fails: bool) -> Pending:
        with Rows(BatchInput(path=source)) as rows, (output := ResultFile(out)):
            todo = Pending(rows, output.write, output.finished)
            while (row := todo.take()) is not None:
                error = "out of memory" if fails and row.id == 2 else None
                todo.finish(Result(row, text="x", finish_reason="stop", error=error))
            return todo

    first = run(fails=True).figures
    assert (first.finished, first.failed) == (1, 5)
    second = run(fails=False).figures
    assert (second.skipped, second.finished, second.failed) == (1, 1, 4)
    third = run(fails=False).figures
    assert (third.skipped, third.finished, third.failed) == (2, 0, 4)
    assert [(each["id"], each.get("row"), each.get("error")) for each in records(out)] == [
        (None, 1, "the line must be a JSON object; --lines reads text"),
        (1, None, None),
        (None, 3, "id 1 is used by an earlier row"),
        (2, 4, "out of memory"),
        (5, 5, "temp must be at least 0, got -1.0"),
        (0, 6, "prompt or messages is missing or empty"),
        (2, None, None),
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_wherever_the_file_was_cut_a_second_run_completes_it(
    source: Path, out: Path, data: st.DataObject
) -> None:
    out.unlink(missing_ok=True)
    run_batch(source, out)
    whole = out.read_bytes()
    ends = [place for place, byte in enumerate(whole) if byte == ord("\n")]
    cut = whole[: data.draw(st.integers(0, len(whole)) | st.sampled_from(ends))]
    zeros = data.draw(st.sampled_from([b"", b"\0" * 9])) if b"\n" in cut else b""
    out.write_bytes(cut + zeros)
    run_batch(source, out)
    assert out.read_bytes().startswith(cut if cut.endswith(b"\n") else cut[: cut.rfind(b"\n") + 1])
    assert sorted(ids(out)) == sorted(f"é{n}" for n in range(20))


def test_a_damaged_line_is_named_and_kept_and_its_row_runs_again(source: Path, out: Path) -> None:
    run_batch(source, out)
    lines = out.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3][:-20] + b"\n"
    out.write_bytes(b"".join(lines))
    with (output := ResultFile(out)):
        assert output.finished.damaged == [4]
    figures = run_batch(source, out).figures
    assert (figures.skipped, figures.finished) == (19, 1)
    assert out.read_bytes().startswith(b"".join(lines))


@pytest.mark.parametrize(
    "text", ["Dear diary,\n", '{"id": 1, "text": "a data set without a line end"}', "[1]\n[2]"]
)
def test_a_file_that_is_not_the_output_of_a_batch_is_left_alone(out: Path, text: str) -> None:
    """Its last line would have been cut off, and results appended."""
    out.write_text(text)
    with pytest.raises(OutputError) as error:
        ResultFile(out)
    assert str(error.value) == f"{out} is not the output of a batch: choose another name"
    assert out.read_text() == text


def test_a_batch_does_not_read_what_it_writes(out: Path) -> None:
    """It answered its own errors for ever."""
    out.write_text(before := '{"prompt": "Hello"}\n')
    with pytest.raises(UsageError, match="is the input too"):
        Rows(BatchInput(path=out), None, out)
    assert out.read_text() == before


def test_a_run_that_fails_at_the_beginning_leaves_no_empty_file(out: Path) -> None:
    with pytest.raises(KeyboardInterrupt), ResultFile(out):
        raise KeyboardInterrupt
    assert not out.exists()
    out.touch()
    with pytest.raises(KeyboardInterrupt), ResultFile(out):
        raise KeyboardInterrupt
    assert out.exists(), "it was there before"
    with pytest.raises(OutputError, match="was moved or replaced"), ResultFile(out):
        out.rename(out.with_name("moved"))
    with ResultFile(out) as file:
        out.rename(out.with_name("moved"))
        with pytest.raises(OutputError, match="was moved or replaced"):
            file.write("{}\n")
        out.with_name("moved").rename(out)
        assert not out.read_text(), "a row that is not reported is not in the file"


@pytest.mark.parametrize("failing", range(30))
def test_whatever_call_fails_what_counts_as_finished_is_written_and_the_next_run_does_the_rest(
    source: Path, out: Path, failing: int
) -> None:
    begun: list[Pending] = []
    with FailingDisk(out.parent).used() as disk:
        disk.failing = {failing}
        disk.max_bytes = 30
        with suppress(OutputError):
            run_batch(source, out, begun.append)
    written = out.read_bytes().count(b"\n") if out.exists() else 0
    assert all(each.figures.finished <= written for each in begun)
    run_batch(source, out)
    assert sorted(ids(out)) == sorted(f"é{n}" for n in range(20))


def test_the_disk_is_synced_once_per_second_and_at_the_end(out: Path) -> None:
    with FailingDisk(out.parent, ("sync",)).used() as disk:
        now = [0.0]
        with ResultFile(out, clock=lambda: now[0]) as file:
            for now[0], syncs in ((0.2, 0), (0.9, 0), (1.0, 1), (1.9, 1), (2.5, 2), (2.6, 2)):
                file.write("{}\n")
                assert len(disk.calls) == syncs
        assert len(disk.calls) == 3


def test_rows_that_need_not_run_are_passed_in_parts() -> None:
    """A million malformed rows held up the rows that were running, and Ctrl-C."""
    written: list[str] = []
    data = io.BytesIO(b"nope\n" * (writing.MAX_PASSED + 9) + b'{"prompt":"a"}')
    todo = Pending(Rows(BatchInput(), data), written.append)
    assert (todo.take(), todo.is_over, len(written)) == (None, False, writing.MAX_PASSED)
    row = todo.take()
    assert row is not None
    assert (row.prompt, todo.figures.failed) == ("a", writing.MAX_PASSED + 9)
