"""What signals do to the worker's jobs: each is obeyed once, by the part that it is for."""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from unittest.mock import Mock

import pytest

from mlxchat.errors import ClosedPipe, ExitStatus
from mlxchat.terminal import Terminated
from mlxchat.terminal import worker as worker_module
from mlxchat.terminal.worker import Stop, Worker, in_worker


class Left(BaseException):
    """Raised where the process would have been ended."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is announced to stop, and ended, as soon as it may be."""

    def leave(_: Stop, status: ExitStatus) -> None:
        raise Left(status)

    monkeypatch.setattr(Stop, "_leave", leave)
    monkeypatch.setattr(worker_module, "END_AFTER_S", 0)
    monkeypatch.setattr(worker_module, "REACTION_S", 0)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def part(
    worker: Worker, numbers: Sequence[int], act: Callable[[Stop], object] = id
) -> ExitStatus | None:
    """Send the signals to a part of a job that can be stopped, and do the rest of it."""
    with worker.stoppable() as stop:
        for number in numbers:
            send(number)
            wait_until(stop.requested)
        act(stop)
    return stop.status


def stopped_by(numbers: Sequence[int], act: Callable[[Stop], object]) -> ExitStatus | None:
    with Worker() as worker:
        return worker.call(lambda: part(worker, numbers, act))


def wait_until(happened: Callable[[], bool]) -> None:
    while not happened():
        threading.Event().wait(0.001)


@pytest.mark.parametrize(
    ("numbers", "status"),
    [
        ([signal.SIGTERM], ExitStatus.TERMINATED),
        ([signal.SIGHUP], ExitStatus.HUNG_UP),
        ([signal.SIGINT, signal.SIGINT], ExitStatus.INTERRUPTED),
        ([signal.SIGINT, signal.SIGTERM], ExitStatus.TERMINATED),
    ],
)
@pytest.mark.usefixtures("impatient")
def test_a_job_that_does_not_end_is_ended(
    numbers: list[int], status: ExitStatus, released: threading.Event
) -> None:
    with pytest.raises(Left) as left:
        stopped_by(numbers, lambda _: released.wait(60))
    assert left.value.args == (status,)


@pytest.mark.usefixtures("impatient")
def test_a_finished_loop_may_take_time_to_save() -> None:
    def save(stop: Stop) -> None:
        stop.over()
        send(signal.SIGTERM)
        wait_until(stop.requested)
        stop.enforce()

    assert stopped_by([], save) is ExitStatus.TERMINATED


def test_ctrl_c_counts_even_if_it_has_ended_the_reader_first() -> None:
    """A shell's loop around `mlxchat … | tee` went on."""
    for numbers, ending in (([signal.SIGINT], KeyboardInterrupt), ([], ClosedPipe)):
        with pytest.raises(ending):
            stopped_by(numbers, Mock(side_effect=ClosedPipe))


def test_a_signal_that_ends_the_program_stops_every_later_part_too() -> None:
    """Closing the chat after SIGTERM would otherwise take as long as it likes."""
    with Worker() as worker:
        found = [worker.call(lambda n=n: part(worker, n)) for n in ([signal.SIGINT], [])]
        assert found == [ExitStatus.INTERRUPTED, None]
        found = [worker.call(lambda n=n: part(worker, n)) for n in ([signal.SIGTERM], [])]
        assert found == [ExitStatus.TERMINATED] * 2


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_nobody_waits_for_what_cannot_be_stopped(
    number: int, raised: type[BaseException], released: threading.Event
) -> None:
    with Worker() as worker:
        job = worker.start(lambda: released.wait(60))
        send(number)
        with pytest.raises(raised):
            worker.wait(job)
        assert worker.is_busy
        # What has to be done now is done by the one who waits.
        assert worker.call_last(threading.current_thread) is threading.main_thread()
        released.set()
        assert worker.wait(job)


def test_a_signal_just_before_the_end_of_a_job_is_for_what_is_waited_for_next(
    released: threading.Event,
) -> None:
    """A chat in a pipe, whose reply had just ended, then waited for the next line for ever."""
    with Worker() as worker:
        worker.call(lambda: send(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            worker.read(lambda: released.wait(60))
    with pytest.raises(Terminated):
        in_worker(lambda *_: send(signal.SIGTERM) or 0)


def test_a_signal_that_the_parent_process_ignores_stays_ignored() -> None:
    """As under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert in_worker(lambda *_: send(signal.SIGHUP) or 0) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
