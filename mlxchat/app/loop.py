"""Detects text that repeats itself, and whether that ends the run."""

from dataclasses import dataclass
from typing import Any

from mlxchat.engine.repetition import LoopDetector
from mlxchat.settings import OnLoop


@dataclass(slots=True)
class Loop:
    """`reported` is whether the present loop, if there is one, has been reported."""

    action: OnLoop
    detector: LoopDetector
    reported: bool = False

    @classmethod
    def begin(cls, action: OnLoop, state: dict[str, Any] | None) -> "Loop":
        """A new detector, or the one saved in `state`."""
        if state is None:
            return cls(action, LoopDetector())
        return cls(action, LoopDetector.from_state(state["detector"]), bool(state["reported"]))

    def state(self) -> dict[str, Any]:
        """The state, for JSON."""
        return {"detector": self.detector.state(), "reported": self.reported}

    def add(self, id_: int) -> bool:
        """Take the next token; return whether the text began to repeat itself with it."""
        self.detector.add(id_)
        began = self.detector.looping and not self.reported
        self.reported = self.detector.looping
        return began

    @property
    def stops(self) -> bool:
        """Whether the run should end because of it."""
        return self.detector.looping and self.action is OnLoop.STOP
