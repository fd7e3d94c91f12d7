"""Animations on stderr during long operations. Separate from `progress` because importing rich
often takes longer than the operation."""

from rich.console import Console, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.spinner import Spinner
from rich.text import Text

# Leaves room for the "^C^C" that the terminal echoes when Ctrl-C is pressed twice.
MARGIN = len("^C^C") + 1


class _Stderr(Console):
    """The cursor stays visible: Ctrl-Z may hand the terminal to the shell at any moment."""

    def __init__(self) -> None:
        super().__init__(stderr=True)

    def show_cursor(self, show: bool = True) -> bool:
        return False


class MovingBar(Progress):
    """A progress bar with one task. Call `start` and `stop`; it disappears when stopped.

    A narrow terminal shows the count and whatever else fits.
    """

    def __init__(self) -> None:
        self._stderr = _Stderr()
        # The minimum terminal width for each column.
        self._columns = {
            SpinnerColumn(): 45,
            TextColumn("{task.description}"): 30,
            BarColumn(): 70,
            TextColumn("{task.fields[count]}"): 0,
            TextColumn("{task.fields[rate]}"): 70,
            TextColumn("{task.fields[left]}"): 45,
        }
        super().__init__(
            console=self._stderr,
            # stdout may not be a terminal.
            redirect_stdout=False,
            transient=True,
        )

    def get_renderable(self) -> RenderableType:
        width = max(self._stderr.width - MARGIN, 1)
        self.columns = tuple(each for each, minimum in self._columns.items() if width >= minimum)
        return Constrain(super().get_renderable(), width)


def moving_line(text: str) -> Live:
    """A spinner with a text. Call `start` and `stop`; it disappears when stopped."""
    console = _Stderr()
    line = Text(text, style="dim", no_wrap=True, overflow="ellipsis")
    return Live(
        Constrain(Spinner("dots", line), max(console.width - MARGIN, 1)),
        console=console,
        refresh_per_second=10,
        redirect_stdout=False,
        transient=True,
    )
