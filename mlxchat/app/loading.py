"""Loads a model while the user is already typing."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

from mlxchat.models.model import Model

HANDLE_SIGNALS_S = 0.1


class Loading:
    """A model being loaded in its own thread.

    `load` gets a function to call once the model has passed its checks, before any weights are
    read.
    """

    def __init__(self, load: Callable[[Callable[[], None]], Model]) -> None:
        self._load = load
        self._checked = threading.Event()
        self._model: Future[Model] = Future()
        self._thread = threading.Thread(target=self._run, name="loading", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return self._model.done()

    @property
    def failed(self) -> bool:
        return self._model.done() and self._model.exception() is not None

    def wait_for_checks(self) -> None:
        """Wait until the model has passed its checks. Raises the error of loading."""
        self._checked.wait()
        if self.failed:
            self.wait()

    def wait(self) -> Model:
        """Wait for the model. Raises the error of loading."""
        # Once a `join` has been interrupted, Python takes the thread for one that has ended. And a
        # signal that comes just before a wait, or to another thread, is handled only after it.
        while not wait([self._model], HANDLE_SIGNALS_S).done:
            pass
        # If the program is about to exit: a thread that used MLX must not outlive it.
        self._thread.join()
        return self._model.result()

    def _run(self) -> None:
        try:
            self._model.set_result(self._load(self._checked.set))
        except BaseException as error:  # noqa: BLE001  (raised again by `wait`)
            self._model.set_exception(error)
        finally:
            self._checked.set()
