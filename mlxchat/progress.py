"""Callback types for long operations; the caller decides what to show."""

from collections.abc import Callable

# Called with the amount done and the total, in the operation's own unit.
Progress = Callable[[int, int], None]

# Called with one line for the user.
Notify = Callable[[str], None]
