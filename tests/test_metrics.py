import errno
import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from mlxchat.store.metrics import MetricsFile

TIME = datetime(2026, 11, 21, 23, 5, 9, 123456, tzinfo=timezone(timedelta(hours=1)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_a_line_is_one_json_object_that_starts_with_the_time(path: Path) -> None:
    metrics = MetricsFile(path)
    assert metrics.write({"tokens": 2000, "model": "Grüße"}, now_s=0, time=TIME) is None
    assert metrics.write({"tokens": 3000}, now_s=60, time=TIME) is None
    assert path.read_text() == (
        '{"time": "2026-11-21T23:05:09+01:00", "tokens": 2000, "model": "Grüße"}\n'
        '{"time": "2026-11-21T23:05:09+01:00", "tokens": 3000}\n'
    )


def test_the_time_is_now_with_its_offset(path: Path) -> None:
    before = datetime.now().astimezone().replace(microsecond=0)
    MetricsFile(path).write({}, now_s=0)
    time = datetime.fromisoformat(json.loads(path.read_text())["time"])
    assert before <= time <= datetime.now().astimezone()


def test_a_line_is_due_immediately_and_then_at_each_interval(path: Path) -> None:
    metrics = MetricsFile(path)
    assert metrics.due(1000.0)
    metrics.write({}, now_s=1000.0)
    assert [metrics.due(now_s) for now_s in (1000.0, 1059.9, 1060.0, 2000.0)] == [
        *(False, False),
        *(True, True),
    ]
    metrics.write({}, now_s=1200.0)
    assert not metrics.due(1259.0)


def test_lines_are_appended_to_those_of_an_earlier_run(path: Path) -> None:
    path.write_text('{"tokens": 1}\n')
    MetricsFile(path).write({}, now_s=0, time=TIME)
    assert path.read_text() == '{"tokens": 1}\n{"time": "2026-11-21T23:05:09+01:00"}\n'


def test_a_truncated_line_does_not_spoil_the_next(path: Path) -> None:
    path.write_text('{"tokens": 1}\n{"tok')
    MetricsFile(path).write({}, now_s=0, time=TIME)
    assert path.read_text().splitlines()[1:] == [
        '{"tok',
        '{"time": "2026-11-21T23:05:09+01:00"}',
    ]


def test_a_file_that_was_moved_away_is_created_again(path: Path) -> None:
    metrics = MetricsFile(path)
    metrics.write({"tokens": 1}, now_s=0, time=TIME)
    path.rename(path.with_suffix(".old"))
    metrics.write({"tokens": 2}, now_s=60, time=TIME)
    assert path.read_text().count("\n") == 1


def test_infinity_and_nan_become_null(path: Path) -> None:
    facts = {"tokens_per_s": float("inf"), "share": float("nan"), "free": -float("inf")}
    MetricsFile(path).write(facts, now_s=0, time=TIME)
    line = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert line == {"time": TIME.isoformat(timespec="seconds")} | dict.fromkeys(facts)


def test_an_error_is_reported_once_and_writing_retried(tmp_path: Path) -> None:
    path = tmp_path / "later" / "metrics.jsonl"
    metrics = MetricsFile(path)
    message = metrics.write({}, now_s=0)
    assert message == f"cannot write {path}: No such file or directory"
    assert not metrics.due(59)
    assert metrics.write({}, now_s=60) is None
    path.parent.mkdir()
    assert metrics.write({}, now_s=120) is None
    assert path.read_text().count("\n") == 1


def test_a_full_disk_does_not_stop_the_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    metrics = MetricsFile(path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        message = metrics.write({}, now_s=0)
    assert message == f"cannot write {path}: No space left on device"


def test_a_partly_written_line_is_ended_before_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, room = os.write, 9

    def nearly_full(descriptor: int, data: bytes) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(descriptor, data[:room])
        room -= written
        return written

    metrics = MetricsFile(path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", nearly_full)
        metrics.write({}, now_s=0, time=TIME)
    metrics.write({}, now_s=60, time=TIME)
    assert path.read_text() == '{"time": \n{"time": "2026-11-21T23:05:09+01:00"}\n'


@pytest.mark.timeout(10)
def test_a_pipe_without_a_reader_does_not_stop_the_run(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    metrics = MetricsFile(pipe)
    messages = [metrics.write({"text": "x" * 100_000}, now_s=n) for n in range(3)]
    assert messages == [f"cannot write {pipe}: {os.strerror(errno.EAGAIN)}", None, None]


def test_a_directory_is_reported_as_such(tmp_path: Path) -> None:
    assert MetricsFile(tmp_path).write({}, now_s=0) == f"cannot write {tmp_path}: Is a directory"
