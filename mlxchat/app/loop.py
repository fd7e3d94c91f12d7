"""Detects text that repeats itself, and acts on it."""

from dataclasses import dataclass, replace
from typing import Any

from mlxchat.engine.repetition import LoopDetector, Nudge
from mlxchat.request.overnight import NUDGE_EVERY
from mlxchat.settings import OnLoop, SamplingSettings


@dataclass(slots=True)
class Loop:
    """`temp` is the current temperature, which changes only when the generation pauses."""

    action: OnLoop
    detector: LoopDetector
    nudge: Nudge
    temp: float
    reported: bool = False

    @classmethod
    def begin(
        cls, action: OnLoop, sampling: SamplingSettings, state: dict[str, Any] | None
    ) -> "Loop":
        """A new detector, or the one saved in `state`."""
        if state is None:
            return cls(action, LoopDetector(), Nudge(sampling.temp), sampling.temp)
        return cls(
            action,
            LoopDetector.from_state(state["detector"]),
            Nudge.from_state(sampling.temp, state["nudge"]),
            float(state["temp"]),
            bool(state["reported"]),
        )

    def state(self) -> dict[str, Any]:
        """The state, for JSON."""
        return {
            "detector": self.detector.state(),
            "nudge": self.nudge.state(),
            "temp": self.temp,
            "reported": self.reported,
        }

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

    def sampling(self, base: SamplingSettings, generated: int) -> SamplingSettings:
        """The sampling settings for the next tokens, after `generated` of them."""
        if self.action is OnLoop.NUDGE and generated % NUDGE_EVERY == 0:
            self.temp = self.nudge.temp(self.detector.looping, generated)
        return replace(base, temp=self.temp)
