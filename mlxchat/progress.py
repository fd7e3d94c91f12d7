"""What a long step calls while it goes; what is shown of it is for the caller to decide."""

from collections.abc import Callable

# Done and total, in the step's own unit.
Progress = Callable[[int, int], None]

# One line for the user.
Notify = Callable[[str], None]
