"""One job at a time in a thread beside: writing to the disk while the next tokens are computed."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Written:
    """What a job wrote, and how long that took."""

    size_bytes: int
    seconds: float


class Background:
    """Runs jobs that write a file and return its size in bytes; `written` is what the last one
    that succeeded did.

    The thread is no daemon: a job that has begun is finished before the interpreter ends.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._result: Written | OSError | None = None
        self.written: Written | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def run(self, job: Callable[[], int]) -> None:
        """Begin the job, once the one before has ended."""
        self.wait()
        self._thread = threading.Thread(target=self._do, args=(job,), name="writer")
        self._thread.start()

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def take_result(self) -> Written | OSError | None:
        """What became of the last job that has ended; once, then None."""
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
