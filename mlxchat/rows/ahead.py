"""Reads ahead of the rows that run, so that none of them waits for input that is slow to come."""

import os
import stat
import threading
from collections.abc import Iterator
from queue import Empty, Queue
from typing import BinaryIO

from mlxchat.rows.row import Row

ROWS_AHEAD = 64


class ReadAhead:
    """Takes rows without waiting for them. If the input `may_wait`, a thread reads it."""

    def __init__(self, rows: Iterator[Row], *, may_wait: bool) -> None:
        self.is_over = False
        self._rows = rows
        self._queue: Queue[Row | Exception | None] | None = None
        if may_wait:
            self._queue = Queue(ROWS_AHEAD)
            # A daemon, because nothing can interrupt its wait for input.
            threading.Thread(target=self._read, args=(self._queue,), daemon=True).start()

    def take(self, wait_s: float) -> Row | None:
        """The next row. None if there is no more, which is then `is_over`, or if none has come
        within `wait_s` seconds. Raises InputError if the input cannot be read."""
        if self._queue is None:
            row = next(self._rows, None)
        else:
            try:
                row = self._queue.get(block=wait_s > 0, timeout=wait_s)
            except Empty:
                return None
        if isinstance(row, Exception):
            raise row
        self.is_over = row is None
        return row

    def _read(self, queue: "Queue[Row | Exception | None]") -> None:
        try:
            for row in self._rows:
                queue.put(row)
        except Exception as error:  # noqa: BLE001  (raised by `take`, in the other thread)
            queue.put(error)
        queue.put(None)


def may_wait(stream: BinaryIO | None) -> bool:
    """Whether reading may wait for another program or a person: not from a file."""
    try:
        return stream is not None and not stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:
        # Not a file of the system, but in memory.
        return False
