"""What moves on stderr while something takes long. Apart from `progress`, because importing rich
takes longer than most of what it would show."""

from rich.console import Console, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.spinner import Spinner
from rich.text import Text

# The line that is erased has room for the "^C^C" that the terminal shows for Ctrl-C pressed twice.
MARGIN = len("^C^C") + 1


class MovingBar(Progress):
    """One task of so many units. To be started and stopped; gone once it is stopped.

    A narrow terminal shows the count, and what else has room.
    """

    def __init__(self, unit: str) -> None:
        self._stderr = Console(stderr=True)
        # From how many columns on each has room.
        self._columns = {
            SpinnerColumn(): 45,
            TextColumn("{task.description}"): 30,
            BarColumn(): 70,
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + unit): 0,
            TextColumn("{task.fields[rate]}"): 70,
            TextColumn("{task.fields[left]}"): 45,
        }
        super().__init__(
            console=self._stderr,
            # What goes to stdout meanwhile is not for the terminal.
            redirect_stdout=False,
            transient=True,
        )

    def get_renderable(self) -> RenderableType:
        width = max(self._stderr.width - MARGIN, 1)
        self.columns = tuple(each for each, least in self._columns.items() if width >= least)
        return Constrain(super().get_renderable(), width)


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
