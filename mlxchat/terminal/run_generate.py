"""Runs `mlxchat generate`: its text, its progress on a terminal, and its exit status."""

from typing import Unpack

from mlxchat.app.begin import Changes, begin, resume
from mlxchat.app.run import Run
from mlxchat.errors import ExitStatus, RunEnded
from mlxchat.models.model import Alone
from mlxchat.request import Request
from mlxchat.request.commands import Shown
from mlxchat.terminal.figures import incomplete, stats_line
from mlxchat.terminal.output import Messages, Stdout
from mlxchat.terminal.progress import counting, observer_of
from mlxchat.terminal.worker import Worker, in_worker
from mlxchat.text.documents import is_stdin_left_unread, piped_stdin


def run(request: Request, shown: Shown) -> int:
    """Generate, and return the exit status. Raises MlxchatError for everything a user can fix."""
    return in_worker(lambda worker, ranks: _run(request, shown, ranks, worker))


def resume_run(directory: str, shown: Shown, **changes: Unpack[Changes]) -> int:
    """Continue the run in a checkpoint."""
    return in_worker(lambda worker, ranks: _resume(directory, shown, changes, ranks, worker))


def _run(request: Request, shown: Shown, ranks: Alone, worker: Worker) -> int:
    messages = Messages(shown.quiet)
    # Without an output file, a closed stdout is an error before anything is read.
    write = Stdout().write if request.overnight.output_path() is None else None
    with begin(
        request, observer_of(messages), write=write, piped=piped_stdin(), ranks=ranks
    ) as begun:
        if is_stdin_left_unread():
            messages.warn(
                "stdin is not read, because mlx.launch does not report its end: use --file"
            )
        stopped = _generate(begun, messages, worker)
    return _report(begun, messages, shown, stopped)


def _resume(directory: str, shown: Shown, changes: Changes, ranks: Alone, worker: Worker) -> int:
    messages = Messages(shown.quiet)
    try:
        with resume(directory, observer_of(messages), ranks, **changes) as begun:
            stopped = _generate(begun, messages, worker)
    except RunEnded as error:
        messages.warn(str(error))
        return error.exit_status
    return _report(begun, messages, shown, stopped)


def _generate(begun: Run, messages: Messages, worker: Worker) -> ExitStatus | None:
    """Generate to the end. Return the exit status of the signal that stopped it, if any."""
    with counting("reading", "tokens", messages.quiet) as on_prefill, worker.stoppable() as stop:
        stop.before_leaving = begun.write_ending
        begun.write(should_stop=stop.requested, on_prefill=on_prefill, on_over=stop.over)
    return stop.status


def _report(begun: Run, messages: Messages, shown: Shown, stopped: ExitStatus | None) -> int:
    stats = begun.stats
    messages.stats(stats_line(stats, begun.saved), shown.stats)
    if stats.complete is False:
        messages.warn(incomplete(stats))
        return ExitStatus.INCOMPLETE
    return ExitStatus.LOOP if stats.finish_reason == "loop" else stopped or ExitStatus.OK
