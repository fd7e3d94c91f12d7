"""Runs one job at a time in another thread: writes to the disk while the next tokens compute."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Written:
    """The bytes a job wrote, and the seconds it took."""

    size_bytes: int
    seconds: float


class Background:
    """Runs jobs that write a file and return its size in bytes. `written` describes the last one
    that succeeded.

    The thread is not a daemon: a job that has started finishes before the interpreter exits.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._result: Written | OSError | None = None
        self.written: Written | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def run(self, job: Callable[[], int]) -> None:
        """Start the job after the previous one has finished."""
        self.wait()
        self._thread = threading.Thread(target=self._do, args=(job,), name="writer")
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def take_result(self) -> Written | OSError | None:
        """The result of the last finished job, once; then None."""
        result, self._result = self._result, None
        return result

    def _do(self, job: Callable[[], int]) -> None:
        started_s = time.perf_counter()
        try:
            size_bytes = job()
        except OSError as error:
            self._result = error
        else:
            self.written = self._result = Written(size_bytes, time.perf_counter() - started_s)
