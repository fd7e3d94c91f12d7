"""A worker thread computes; the main thread waits for it, and obeys signals. Every rule is here:

- A handler only puts the signal into the queue from which the main thread also learns that a job
  has ended. `mx.eval` may take minutes, and writing to a terminal or a pipe may block: the main
  thread does neither.
- In a part of a job that is `stoppable`, the first Ctrl-C, SIGTERM or SIGHUP asks it to stop. A
  Ctrl-C that takes a while is announced, and a second one ends the process at once, as SIGTERM and
  SIGHUP do within five seconds, with everything saved and the terminal restored.
- Elsewhere, the main thread stops waiting: it raises KeyboardInterrupt or Terminated.
- After Ctrl-Z and `fg`, what is drawn stays where it is.
- Outside a worker, signals do what they do by default: everything is saved by a system call.
"""

import os
import signal
import termios
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, NoReturn, Self, TypeVar

from mlxchat.app.ranks import run_on_ranks
from mlxchat.errors import ClosedPipe, ExitStatus
from mlxchat.models.model import Alone
from mlxchat.platform import exit_now
from mlxchat.terminal import Terminated, is_dumb, is_in_background
from mlxchat.terminal.output import TerminalLine

# Signals that end the program, with the status 128 and their number.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# How long the main thread waits for anything: the system may hand a signal to another thread.
TICK_S = 0.05
# A job that stops within this time needs no message.
REACTION_S = 0.3
# SIGTERM and SIGHUP end the process within five seconds, whatever it is doing.
END_AFTER_S = 4.0
# The last words must not take longer, even if the reader is gone or a disk hangs.
LAST_WORDS_S = 0.5
WILL_STOP = "mlxchat: stopping after this step; press Ctrl-C again to quit now"

T = TypeVar("T")

STDIN = 0
# Indices of the terminal's settings.
_IFLAG, _LFLAG, _CC = 0, 3, 6


def ending_by(number: int) -> BaseException:
    """What to raise to end the program with the status of the signal."""
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(ExitStatus(128 + number))


@contextmanager
def ctrl_c_ignored() -> Iterator[None]:
    """While the body runs, Ctrl-C is for another program: unlike SIG_IGN, a handler is not
    inherited by it. Main thread only."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Stop:
    """What signals ask of a part of a job that can be stopped, and saves everything as it goes.

    `before_leaving` is called, in another thread, if the process has to end at once; the job may
    then have stopped anywhere.
    """

    def __init__(self, restore: Callable[[], None] = lambda: None) -> None:
        """`restore` restores the terminal before the process ends."""
        self._restore = restore
        self.status: ExitStatus | None = None
        self.before_leaving: Callable[[], object] = lambda: None
        self._say_at_s = self._leave_at_s = float("inf")
        self._is_over = False
        self._leaving = threading.Lock()

    def requested(self) -> bool:
        # Blocks for ever if the process is being ended.
        with self._leaving:
            return self.status is not None

    @property
    def ends_program(self) -> bool:
        """Whether the program ends after the job."""
        return self.status not in (None, ExitStatus.INTERRUPTED)

    def over(self) -> None:
        """The loop that had to stop has ended; what follows may take its time."""
        self._is_over = True

    def take(self, number: int, came_s: float | None = None) -> None:
        """Take a signal, which came now or then; the second Ctrl-C ends the process."""
        status = ExitStatus(128 + number)
        if status is not ExitStatus.INTERRUPTED:
            self._leave_at_s = min(self._leave_at_s, (came_s or time.monotonic()) + END_AFTER_S)
        elif self.status is None:
            self._say_at_s = time.monotonic() + REACTION_S
        else:
            self._leave(status)
        self.status = status

    def enforce(self) -> None:
        """Announce the stop, or end the process, if that is due."""
        if self.status is None or self._is_over:
            return
        now_s = time.monotonic()
        if now_s >= self._leave_at_s:
            self._leave(self.status)
        if now_s >= self._say_at_s:
            self._say_at_s = float("inf")
            TerminalLine.announce(WILL_STOP)

    def _leave(self, status: ExitStatus) -> NoReturn:
        """End the process at once, after the last words, with the terminal restored."""
        self._leaving.acquire()
        words = threading.Thread(target=self._speak, daemon=True)
        words.start()
        words.join(LAST_WORDS_S)
        exit_now(status)

    def _speak(self) -> None:
        # Errors can no longer be reported.
        with suppress(Exception):
            self.before_leaving()
        self._restore()


class Worker:
    """Runs jobs in one thread, one after the other. Use it in the main thread, as a context in
    which signals are its own. Leaving the context never waits for the job."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "worker", initializer=_leave_to_main_thread)
        # Numbers of signals; None if a job has ended.
        self._events: SimpleQueue[int | None] = SimpleQueue()
        self._latest: Future[Any] | None = None
        self._stop: Stop | None = None
        # The signal that ends the program, and when it came.
        self._ended_by: tuple[int, float] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self.keys = Keys()
        TerminalLine.look = staticmethod(self.keys.look)
        for number in (*ENDING, signal.SIGCONT):
            # Not if the parent process wants it ignored, as `nohup` does with SIGHUP.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._put)
        signal.siginterrupt(signal.SIGCONT, False)  # `fg` interrupts no call of the prompt
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        is_busy = self.is_busy
        if is_busy:
            self._restore()
        self.keys.restore()
        # A thread that used MLX may not end while the interpreter does.
        self._thread.shutdown(wait=not is_busy)
        if error is None:
            self.drop_ctrl_c()

    def _put(self, number: int, _: FrameType | None) -> None:
        if number in (signal.SIGTERM, signal.SIGHUP):
            self._ended_by = self._ended_by or (number, time.monotonic())
        self._events.put(number)

    def _restore(self) -> None:
        """Remove what is drawn, restore the terminal and its cursor, and start a new line."""
        TerminalLine.clear()
        self.keys.restore()
        terminal = next(filter(os.isatty, (2, 1)), None)
        if terminal is not None:
            with suppress(OSError):
                os.write(terminal, b"\r\n" if is_dumb() else b"\x1b[?25h\r\n")

    # Jobs

    @property
    def is_busy(self) -> bool:
        return self._latest is not None and not self._latest.done()

    def start(self, job: Callable[[], T]) -> Future[T]:
        """Do the job after those before it."""
        self._latest = future = self._submit(self._thread, job)
        return future

    def call(self, job: Callable[[], T]) -> T:
        """Do the job and return its result, as `wait` does."""
        return self.wait(self.start(job))

    def read(self, job: Callable[[], T]) -> T:
        """As `call`, but in its own thread: for a job that waits for a person or a pipe."""
        return self.wait(self.start_reading(job))

    def start_reading(self, job: Callable[[], T]) -> Future[T]:
        # Nothing waits for the thread of a job that has been given up.
        reader = ThreadPoolExecutor(1, "reader", initializer=_leave_to_main_thread)
        future = self._submit(reader, job)
        reader.shutdown(wait=False)
        return future

    def call_last(self, job: Callable[[], T]) -> T:
        """Do the job and return its result: here if the worker is busy with a job given up."""
        return job() if self.is_busy else self.call(job)

    def _submit(self, thread: ThreadPoolExecutor, job: Callable[[], T]) -> Future[T]:
        future = thread.submit(job)
        future.add_done_callback(lambda _: self._events.put(None))
        return future

    def wait(self, job: Future[T]) -> T:
        """Wait for the job; return its result, or raise its error.

        Raises KeyboardInterrupt or Terminated, while the job goes on, for a signal in a part of it
        that is not `stoppable`. A signal just before its end is for what is waited for next.
        """
        while not job.done():
            with suppress(Empty):
                self._obey(self._events.get(timeout=TICK_S))
            self.keys.drain()
            if self._stop is not None:
                self._stop.enforce()
        return job.result()

    # Signals

    def drop_ctrl_c(self) -> None:
        """Obey the signals that have come, except a Ctrl-C, which was for what has just ended."""
        for number in self.signals_so_far():
            if number != signal.SIGINT:
                self._obey(number)

    def signals_so_far(self) -> Iterator[int]:
        """Take the signals that have come."""
        while not self._events.empty():
            number = self._events.get()
            if number is not None:
                yield number

    def _obey(self, number: int | None) -> None:
        if number == signal.SIGCONT:
            TerminalLine.moves += 1
            self.keys.hold_again()
        elif number is not None:
            if self._stop is None:
                raise ending_by(number)
            self._stop.take(number)

    @contextmanager
    def stoppable(self) -> Iterator[Stop]:
        """In a job, or around it: signals ask the body to stop, even one that ended another."""
        stop, before = Stop(self._restore), self._stop
        if self._ended_by is not None:
            stop.take(*self._ended_by)
        self._stop = stop
        try:
            yield stop
        except ClosedPipe as error:
            # Ctrl-C ends the reader first, and the shell's loop only if it ends the writer too.
            raise error if stop.status is None else ending_by(stop.status - 128) from error
        finally:
            self._stop = before


def _leave_to_main_thread() -> None:
    """Else this thread may take the signal, and draw before the main thread has learned of it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT])


class Keys:
    """The terminal of stdin, if it is one, and the settings it had at first. While they are held,
    typed keys, and reports of the terminal itself, stay in the kernel's buffer without an echo
    until they are read; Ctrl-C still interrupts."""

    def __init__(self) -> None:
        self._found: list[Any] | None = None
        with suppress(termios.error, OSError):
            self._found = termios.tcgetattr(STDIN)
        self._is_held = self._is_lost = False
        self._holds = 0
        self.take: Callable[[], object] = lambda: None

    def drain(self) -> None:
        self.look()
        # In the shell's settings, Ctrl-D would close the input for good.
        if self._is_held and not self._is_lost and not is_in_background(STDIN):
            self.take()

    def hold(self) -> None:
        self._is_held, self._holds = True, self._holds + 1
        self.hold_again()
        _on_ctrl_z(_discard_and_stop)

    def hold_again(self) -> None:
        """After the shell has had the terminal."""
        # A process in the background would be stopped.
        if self._found and self._is_held and not is_in_background(STDIN):
            _apply(_held(self._found, keeps=self._holds > 1))
            self._is_lost = False
            self._bracket_pastes("h")

    def look(self) -> None:
        """A shell may have left the echo on: who draws cannot wait until the main thread knows."""
        if not self._is_held or self._is_lost or is_in_background(STDIN):
            return
        with suppress(termios.error, OSError):
            self._is_lost = bool(termios.tcgetattr(STDIN)[_LFLAG] & termios.ECHO)
            TerminalLine.moves += self._is_lost

    def restore(self) -> None:
        if self._found and self._is_held:
            # Otherwise a process in the background would be stopped.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
            _apply(self._found)
            self._bracket_pastes("l")
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._is_held = False

    def _bracket_pastes(self, how: str) -> None:
        """Let a paste be one even if it comes before the prompt, or no longer."""
        if not is_dumb():
            with suppress(OSError):
                os.write(STDIN, f"\x1b[?2004{how}".encode())

    @contextmanager
    def edited(self) -> Iterator[None]:
        """The line editor, which stops by itself, changes the held settings to its own and back."""
        _on_ctrl_z(signal.SIG_DFL)
        yield
        self.hold()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Lend the terminal, with the original settings, to what else reads from it."""
        self.restore()
        try:
            yield
        finally:
            self.hold()


def _held(before: list[Any], *, keeps: bool) -> list[Any]:
    # Without IEXTEN only signal keys are special. NOFLSH: Ctrl-C stops the reply and `keeps` the
    # draft of the next message. ICRNL: PlainInput gets Enter as a newline, Editor takes either.
    settings = [*before[:_CC], list(before[_CC])]
    settings[_LFLAG] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)
    settings[_LFLAG] |= termios.ISIG | termios.NOFLSH * keeps
    settings[_IFLAG] |= termios.ICRNL
    settings[_CC][termios.VMIN], settings[_CC][termios.VTIME] = 1, 0
    return settings


def _on_ctrl_z(handler: Any) -> None:
    # Not if the parent process wants it ignored.
    if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
        signal.signal(signal.SIGTSTP, handler)


def _discard_and_stop(*_: object) -> None:
    """The shell would run what was typed for the next prompt."""
    with suppress(termios.error):
        termios.tcflush(STDIN, termios.TCIFLUSH)
    _on_ctrl_z(signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    _on_ctrl_z(_discard_and_stop)


def _apply(settings: list[Any]) -> None:
    """Change the settings if the terminal still exists. Typed input is kept."""
    # TCSANOW: the other actions may discard input.
    with suppress(termios.error, OSError):
        termios.tcsetattr(STDIN, termios.TCSANOW, settings)


def in_worker(job: Callable[[Worker, Alone], int]) -> int:
    """Do the job in a worker, with the ranks if there are several; return the exit status."""
    return with_ranks(lambda ranks, worker: worker.call(lambda: job(worker, ranks)))


def with_ranks(program: Callable[[Alone, Worker], int]) -> int:
    """Run the program in the main thread, with the ranks if this is one of several, and return the
    exit status. Only the first obeys signals."""

    def follow() -> None:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)

    with Worker() as worker:
        return run_on_ranks(lambda ranks: program(ranks, worker), follow, worker.call_last)
