"""What moves on stderr while something takes long. Apart from `progress`, because importing rich
takes longer than most of what it would show."""

from rich.console import Console, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.spinner import Spinner
from rich.text import Text

# What the terminal itself shows for Ctrl-C stays on the line that is erased.
MARGIN = len("^C") + 1


class MovingBar(Progress):
    """One task of so many units. To be started and stopped; gone once it is stopped."""

    def __init__(self, unit: str) -> None:
        self._stderr = Console(stderr=True)
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + unit),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[left]}"),
            console=self._stderr,
            # What goes to stdout meanwhile is not for the terminal.
            redirect_stdout=False,
            transient=True,
        )

    def get_renderable(self) -> RenderableType:
        return Constrain(super().get_renderable(), max(self._stderr.width - MARGIN, 1))


def moving_line(text: str) -> Live:
    """A spinner and the text. To be started and stopped; gone once it is stopped."""
    console = Console(stderr=True)
    line = Text(text, style="dim", no_wrap=True, overflow="ellipsis")
    return Live(
        Constrain(Spinner("dots", line), max(console.width - MARGIN, 1)),
        console=console,
        refresh_per_second=10,
        redirect_stdout=False,
        transient=True,
    )
