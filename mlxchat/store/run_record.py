"""The content of a checkpoint's run.json: the request, and its progress."""

from dataclasses import dataclass
from typing import Literal

from mlxchat.request import Request
from mlxchat.settings import SamplingSettings


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run. What was chosen for the user when it began is in the `request`, so that it continues
    the same: the model's directory, the window, the deadline.

    `sampling` are the values in effect. `steps` are `[size, count]` of the steps the prompt was
    prefilled in. `ended` is why there is nothing to continue, if so.
    """

    version: Literal[2]
    request: Request
    sampling: SamplingSettings
    steps: tuple[tuple[int, int], ...] = ()
    ended: str | None = None
