"""Reports when saving starts to fail, and when it works again."""

from collections.abc import Callable


class Outage:
    """`over` is the message when an outage ends."""

    def __init__(self, notify: Callable[[str], None], over: str) -> None:
        self._notify = notify
        self._over = over
        self._lasts = False

    def lasts(self, message: str) -> None:
        """Saving failed; `message` is shown if it is the first failure."""
        if not self._lasts:
            self._notify(message)
        self._lasts = True

    def ends(self) -> None:
        """Saving succeeded."""
        if self._lasts:
            self._notify(self._over)
        self._lasts = False
