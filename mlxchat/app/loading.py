"""Loading a model while the user is already typing."""

import threading
from collections.abc import Callable

from mlxchat.models.model import Model


class Loading:
    """A model on its way into memory, in a thread of its own."""

    def __init__(self, load: Callable[[], Model]) -> None:
        self._load = load
        self._model: Model | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="loading", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    @property
    def failed(self) -> bool:
        return self._error is not None

    def wait(self) -> Model:
        """The model. Raises what loading it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._model is not None
        return self._model

    def _run(self) -> None:
        try:
            self._model = self._load()
        except BaseException as error:  # noqa: BLE001  (raised again where it is waited for)
            self._error = error
