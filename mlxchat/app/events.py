"""The JSON Lines that `--json` writes, one object per line, as documented in manual/json.md."""

import io
import json
import math
from dataclasses import asdict
from typing import Any

from mlxchat.chat.state import Change, Recalled
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.reply import Stats
from mlxchat.engine.sampling import Token
from mlxchat.passages.search import LineRange, Read
from mlxchat.paths import __version__
from mlxchat.text.tokens import Tokenizer
from mlxchat.units import json_line


class EventWriter:
    """Turns a generation into lines, and collects its text for the last one.

    In a chat each turn has its own writer, and its number in every line.
    """

    has_code = False

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        with_top: bool = False,
        hides_thoughts: bool = False,
        turn: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._with_top, self._hides_thoughts = with_top, hides_thoughts
        self._turn = {} if turn is None else {"turn": turn}
        self._recalled: dict[str, Any] = {"recalled": []}
        self._passages: dict[str, Any] = {}
        # What the last line has if there is no answer.
        self.so_far = ""
        self._texts = {False: io.StringIO(), True: io.StringIO()}

    @property
    def answer(self) -> str:
        return self._texts[False].getvalue() or self.so_far

    def start(self, model: str, facts: dict[str, Any], *settings: Any) -> str:
        """The first line: the model's name, other facts, and the fields of the settings."""
        for each in settings:
            facts = asdict(each) | facts
        return json_line({"event": "start", "version": __version__, "model": model} | facts)

    def passages(self, read: Read) -> str:
        """Which passages of larger documents are in the prompt."""
        named = [{"file": each.file, "lines": [each.first, each.last]} for each in read.places]
        self._passages = {"passages": named, "share": round(read.share, 6)}
        figures = {"read": read.read, "of": read.of}
        return json_line({"event": "passages"} | figures | self._passages)

    def section(self, place: LineRange, answer: str) -> str:
        """The answer from a section of a larger document."""
        lines = [place.first, place.last]
        return json_line({"event": "section", "file": place.file, "lines": lines, "answer": answer})

    def change(self, change: Change) -> str:
        """What has left the window, or is back in it."""
        if isinstance(change, Recalled):
            self._recalled = {"recalled": list(change.numbers)}
            figures = {"event": "recalled", **self._turn, "turns": list(change.numbers)}
        else:
            figures = {"event": "forgot", **self._turn, "turns": change.turns}
        return json_line(figures | {"tokens": change.tokens})

    def token(self, token: Token) -> str:
        """The line of a token; empty if it is hidden."""
        if token.thought and self._hides_thoughts:
            return ""
        self._texts[token.thought].write(token.text)
        event: dict[str, Any] = {
            "event": "token",
            **self._turn,
            "text": token.text,
            "thought": token.thought,
            "id": token.id,
            "logprob": finite(token.logprob),
        }
        if self._with_top:
            event["top"] = [
                {"id": id_, "text": self._tokenizer.text_of(id_), "logprob": finite(logprob)}
                for id_, logprob in token.top
            ]
        return json_line(event)

    def done(
        self, stats: Stats, model: str, seed: int, *, error: str | None = None, value: Any = None
    ) -> str:
        """The last line, with the `error` that ended it, if any, and the `value` of the answer."""
        figures = asdict(stats)
        del figures["problem"]
        event: dict[str, Any] = {
            "event": "done",
            **self._turn,
            "text": self.answer,
            "thought": self._texts[True].getvalue(),
            "finish_reason": figures.pop("finish_reason"),
            "complete": figures.pop("complete"),
            "value": value,
        }
        if self._turn:
            event |= self._recalled
        event |= self._passages
        if error is not None:
            event |= {"finish_reason": "error", "error": error}
        return json_line(event | figures | {"model": model, "seed": seed})


def value_of(constraint: Constraint | None, answer: str) -> Any:
    """A complete answer as a JSON value, if it was constrained by a schema.

    None if Python cannot hold it: schemas may allow deep nesting, or 1e999.
    """
    if constraint is None or constraint.kind != "schema":
        return None
    try:
        value = json.loads(answer)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return value


def finite(logprob: float | None) -> float | None:
    """JSON has no infinity: an impossible token has no log-probability."""
    return logprob if logprob is not None and math.isfinite(logprob) else None
