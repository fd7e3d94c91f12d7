"""Loads a model while the user is already typing."""

import threading
from collections.abc import Callable

from mlxchat.models.model import Model


class Loading:
    """A model being loaded in its own thread.

    `load` gets a function to call once the model has passed its checks, before any weights are
    read.
    """

    def __init__(self, load: Callable[[Callable[[], None]], Model]) -> None:
        self._load = load
        self._checked = threading.Event()
        self._done = threading.Event()
        self._model: Model | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="loading", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    @property
    def failed(self) -> bool:
        return self._error is not None

    def wait_for_checks(self) -> None:
        """Wait until the model has passed its checks. Raises the error of loading."""
        self._checked.wait()
        if self._error is not None:
            # The program is about to exit, and a thread that used MLX must not outlive it.
            self._thread.join()
            raise self._error

    def wait(self) -> Model:
        """Wait for the model. Raises the error of loading."""
        # Once a `join` has been interrupted, Python takes the thread for one that has ended.
        self._done.wait()
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._model is not None
        return self._model

    def _run(self) -> None:
        try:
            self._model = self._load(self._checked.set)
        except BaseException as error:  # noqa: BLE001  (raised again by `wait`)
            self._error = error
        finally:
            self._checked.set()
            self._done.set()
