"""The line on stderr that moves during a long operation. Separate from `progress` because importing
rich often takes longer than the operation."""

from rich.console import Console, ConsoleOptions
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Column

# Leaves room for the "^C^C" that the terminal echoes when Ctrl-C is pressed twice.
MARGIN = len("^C^C") + 1
# From this width on, there is room for a bar.
WIDE = 75


class _Stderr(Console):
    """The cursor stays visible: Ctrl-Z may hand the terminal to the shell at any moment."""

    def __init__(self) -> None:
        super().__init__(stderr=True)

    @property
    def options(self) -> ConsoleOptions:
        return super().options.update_width(max(self.width - MARGIN, 1))

    def show_cursor(self, show: bool = True) -> bool:
        return False


def moving_line(text: str, total: int | None, *, is_animated: bool = True) -> Progress:
    """A spinner, a bar if there is a total and room, and the text of the only task. Call `start`
    and `stop`; it disappears when stopped."""
    console = _Stderr()
    line = Progress(
        SpinnerColumn(),
        *([BarColumn(bar_width=20)] if total and console.width >= WIDE else []),
        TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis"),
        ),
        console=console,
        # stdout may not be a terminal.
        redirect_stdout=False,
        transient=True,
        auto_refresh=is_animated,
    )
    line.add_task(text, total=total)
    return line
