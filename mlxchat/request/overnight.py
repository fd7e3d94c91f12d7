"""When a long run ends, and what it writes to disk."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from mlxchat.options import Panel, at_least, check_options, option
from mlxchat.request.amounts import parse_bytes, parse_deadline, parse_duration_s
from mlxchat.request.pairs import refuse_pairs
from mlxchat.settings import OnLoop


@dataclass(frozen=True, slots=True)
class Overnight:
    """When a long run ends, and what it writes to disk.

    The run ends at `until`, or `lasting_s` seconds after generation begins, or before the text
    exceeds `max_bytes`. The text goes to the new file `output`; with `checkpoint`, a new directory,
    the default is output.txt in it.
    """

    until: datetime | None = option(
        None,
        "Stop at a local time, such as 07:00",
        Panel.END,
        common=True,
        metavar="TIME",
        parse=parse_deadline,
    )
    lasting_s: float | None = option(
        None,
        "Stop after a duration, such as 8h or 1h30m",
        Panel.END,
        name="for",
        metavar="DURATION",
        parse=parse_duration_s,
    )
    max_bytes: int | None = option(
        None,
        "Stop before the text exceeds SIZE, such as 100MB",
        Panel.END,
        metavar="SIZE",
        parse=parse_bytes,
    )
    on_loop: OnLoop | None = option(
        None,
        "What to do if the text repeats itself",
        Panel.END,
        if_unset="stop, or warn for endless text",
    )
    output: Path | None = option(
        None,
        "Write the text to a new file",
        Panel.OUTPUT,
        short="o",
        common=True,
        if_unset="stdout, or output.txt in the checkpoint",
    )
    checkpoint: Path | None = option(
        None,
        "Save checkpoints to a new directory, to resume from",
        Panel.OVERNIGHT,
        common=True,
        metavar="DIR",
    )
    checkpoint_every: int = option(
        2_000, "Tokens between checkpoints", Panel.OVERNIGHT, metavar="TOKENS", must=at_least(1)
    )

    def __post_init__(self) -> None:
        check_options(self)
        refuse_pairs(self)

    @property
    def keeps_awake(self) -> bool:
        """Whether to keep the machine awake."""
        return any(each is not None for each in (self.checkpoint, self.until, self.lasting_s))

    def action_on_loop(self, *, endless: bool) -> OnLoop:
        """What to do if the text repeats itself; `endless` text goes on all the same."""
        return self.on_loop or (OnLoop.WARN if endless else OnLoop.STOP)

    def deadline_s(self, now_s: float) -> float | None:
        """The deadline in seconds since the epoch, if generation begins now."""
        if self.lasting_s is not None:
            return now_s + self.lasting_s
        return None if self.until is None else self.until.timestamp()

    def output_path(self) -> Path | None:
        """The output file, if any."""
        if self.output is not None:
            return self.output.expanduser()
        return None if self.checkpoint is None else self.checkpoint / "output.txt"
