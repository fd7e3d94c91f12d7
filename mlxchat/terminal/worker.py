"""A worker thread computes; the main thread waits for it, and obeys signals.

Neither waits for the other: `mx.eval` may take minutes, in which Python runs no signal handler in
the thread that called it, and writing to a terminal or a pipe may block. So a command's
work, with MLX and what it writes, is a job of the worker. The handlers of signals put them into the
queue from which the main thread also learns that a job has ended.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Self, TypeVar

from mlxchat.app.ranks import Ranks, lead_or_follow
from mlxchat.errors import ExitStatus
from mlxchat.terminal.leaving import (
    STATUS_OF_SIGNAL,
    TICK_S,
    ending_by,
    ignore_signals,
    is_ignored,
    leave,
    restorer,
    say_on_own_line,
)

# Signals that ask for progress: Ctrl-T on a Mac, `kill -USR1` anywhere.
STATUS_SIGNALS = {signal.SIGUSR1, getattr(signal, "SIGINFO", signal.SIGUSR1)}

# A job that stops within this time needs no message.
REACTION_S = 0.3
# SIGTERM and SIGHUP end the process within five seconds, whatever it is doing.
END_AFTER_S = 4.0
WILL_STOP = "mlxchat: stopping after this step; press Ctrl-C again to quit now"

T = TypeVar("T")


class Stop:
    """What signals ask of a part of a job that can be stopped, and saves everything as it goes.

    `say` announces the stop, and `before_leaving` is called, in another thread, if the process has
    to end at once; the job may then have stopped anywhere.
    """

    def __init__(self, restore: Callable[[], None] = lambda: None) -> None:
        """`restore` restores the terminal before the process ends."""
        self._restore = restore
        self.status: ExitStatus | None = None
        self.say: Callable[[str], object] = say_on_own_line
        self.before_leaving: Callable[[], object] = lambda: None
        # Whether Ctrl-C is for another program, which has the terminal.
        self.is_terminal_lent = False
        # Whether a signal asked for progress; showing it sets this to False.
        self.asks_for_progress = False
        self._say_at_s = self._leave_at_s = float("inf")
        self._is_over = False
        self._leaving = threading.Lock()

    def requested(self) -> bool:
        # Blocks for ever if the process is being ended.
        with self._leaving:
            return self.status is not None

    def over(self) -> None:
        """The loop that had to stop has ended; what follows may take its time."""
        self._is_over = True

    def take(self, number: int) -> None:
        """Take a signal; the second Ctrl-C ends the process."""
        status = STATUS_OF_SIGNAL[signal.Signals(number)]
        if status is not ExitStatus.INTERRUPTED:
            self._leave_at_s = min(self._leave_at_s, time.monotonic() + END_AFTER_S)
            self.status = status
        elif self.is_terminal_lent:
            return
        elif self.status is None:
            self._say_at_s = time.monotonic() + REACTION_S
            self.status = status
        else:
            self._leave(status)

    def enforce(self) -> None:
        """Announce the stop, or end the process, if that is due."""
        if self.status is None or self._is_over:
            return
        now_s = time.monotonic()
        if now_s >= self._leave_at_s:
            self._leave(self.status)
        if now_s >= self._say_at_s:
            self._say_at_s = float("inf")
            self.say(WILL_STOP)

    def _leave(self, status: ExitStatus) -> None:
        self._leaving.acquire()
        leave(status, self._restore, self.before_leaving)


class Worker:
    """Runs jobs in one thread, one after the other. Use it in the main thread, as a context in
    which signals are its own. Leaving the context never waits for the job."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "worker", initializer=_leave_to_main_thread)
        self._reader = ThreadPoolExecutor(1, "reader", initializer=_leave_to_main_thread)
        # Numbers of signals; None if a job has ended.
        self._events: SimpleQueue[int | None] = SimpleQueue()
        self._jobs: list[Future[Any]] = []
        self._stop: Stop | None = None
        self._before: dict[int, Any] = {}
        # Called when the program continues after Ctrl-Z.
        self.when_continued: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        # The settings to restore are those of now.
        self._restore = restorer()
        for number in (*STATUS_OF_SIGNAL, *STATUS_SIGNALS, signal.SIGCONT):
            if not is_ignored(number):
                self._before[number] = signal.signal(number, self._put)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        is_busy = self.is_busy
        if is_busy:
            self._restore()
        # A thread that used MLX may not end while the interpreter does.
        self._thread.shutdown(wait=not is_busy)

    def _put(self, number: int, _: FrameType | None) -> None:
        self._events.put(number)

    @property
    def is_busy(self) -> bool:
        return not all(job.done() for job in self._jobs)

    def start(self, job: Callable[[], T]) -> Future[T]:
        """Do the job after those before it."""
        future = self._submit(self._thread, job)
        self._jobs = [each for each in (*self._jobs, future) if not each.done()]
        return future

    def _submit(self, thread: ThreadPoolExecutor, job: Callable[[], T]) -> Future[T]:
        future = thread.submit(job)
        future.add_done_callback(lambda _: self._events.put(None))
        return future

    def call(self, job: Callable[[], T]) -> T:
        """Do the job and return its result, as `wait` does."""
        return self.wait(self.start(job))

    def read(self, job: Callable[[], T]) -> T:
        """Do the job, which waits for input, in a thread of its own; return its result as `wait`
        does."""
        return self.wait(self._submit(self._reader, job))

    def call_last(self, job: Callable[[], T]) -> T:
        """Do the job and return its result: here if the worker is busy with something that nobody
        waits for any longer."""
        return job() if self.is_busy else self.call(job)

    def wait(self, job: Future[T]) -> T:
        """Wait for the job; return its result, or raise its error.

        Raises KeyboardInterrupt or Terminated, while the job goes on, for a signal in a part of it
        that is not `stoppable`. A Ctrl-C that comes just before its end is for what is waited for
        next.
        """
        self.wait_until(job.done)
        if self.drop_ctrl_c():
            self._events.put(signal.SIGINT)
        return job.result()

    def drop_ctrl_c(self) -> bool:
        """Obey the signals that have come, except a Ctrl-C; return whether there was one."""
        came = False
        while not self._events.empty():
            number = self._events.get()
            if number == signal.SIGINT:
                came = True
            else:
                self._obey(number)
        return came

    def wait_until(self, is_reached: Callable[[], bool]) -> None:
        """Wait as `wait` does until a job makes it true."""
        while not is_reached():
            self._obey(self.next_signal(TICK_S))
            if self._stop is not None:
                self._stop.enforce()

    def next_signal(self, wait_s: float = 0.0) -> int | None:
        """The next signal; None if none comes, or if a job ends first."""
        with suppress(Empty):
            return self._events.get(wait_s > 0, wait_s)
        return None

    def _obey(self, number: int | None) -> None:
        stop = self._stop
        if number == signal.SIGCONT:
            self.when_continued()
        elif number in STATUS_SIGNALS:
            if stop is not None:
                stop.asks_for_progress = True
        elif number is not None and stop is not None:
            stop.take(number)
        elif number is not None:
            raise ending_by(number)

    @contextmanager
    def stoppable(self) -> Iterator[Stop]:
        """In a job: the first Ctrl-C, SIGTERM or SIGHUP while the body runs is a request to stop.

        If the body does not react, because a step of MLX takes long, a first Ctrl-C is announced
        and a second one ends the process at once, as SIGTERM and SIGHUP do within five seconds.
        """
        stop, before = Stop(self._restore), self._stop
        self._stop = stop
        try:
            yield stop
        finally:
            self._stop = before


def _leave_to_main_thread() -> None:
    """Else this thread may take the signal, and draw before the main thread has learned of it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT])


def in_worker(job: Callable[[Worker], T]) -> T:
    """Do the job in a worker, and return its result."""
    with Worker() as worker:
        return worker.call(lambda: job(worker))


def with_ranks(lead: Callable[[Ranks | None, Worker], int]) -> int:
    """Call `lead` in the main thread, with the ranks if this is the first of several, and return
    the exit status. The others follow it, and leave signals to it."""
    with Worker() as worker:
        led = lead_or_follow(
            lambda ranks: lead(ranks, worker), ignore_signals, in_thread=worker.call_last
        )
    return led or ExitStatus.OK
