"""Runs `mlxchat generate`: its text, its progress on a terminal, and its exit status."""

import shlex
from collections.abc import Callable
from functools import partial
from typing import Unpack

from mlxchat.app.begin import Changes, begin, resume
from mlxchat.app.run import Run
from mlxchat.errors import ExitStatus, RunEnded
from mlxchat.models.model import Alone
from mlxchat.request import Request
from mlxchat.request.commands import Shown
from mlxchat.terminal.figures import incomplete, stats_line
from mlxchat.terminal.output import Messages, Stdout
from mlxchat.terminal.progress import Count, observer_of, progress
from mlxchat.terminal.worker import Worker, in_worker
from mlxchat.text.documents import piped_stdin, warn_of_unread_stdin
from mlxchat.units import Observer

Open = Callable[[Observer, Alone], Run]


def run(request: Request, shown: Shown) -> int:
    """Generate, and return the exit status. Raises MlxchatError for everything a user can fix."""

    def opened(observer: Observer, ranks: Alone) -> Run:
        warn_of_unread_stdin(observer.warn)
        # Without an output file, a closed stdout is an error before anything is read.
        write = Stdout().write if request.overnight.output_path() is None else None
        return begin(request, observer, write=write, piped=piped_stdin(), ranks=ranks)

    return in_worker(lambda worker, ranks: _generate(opened, ranks, worker, shown))


def resume_run(directory: str, shown: Shown, **changes: Unpack[Changes]) -> int:
    """Continue the run in a checkpoint."""
    opened = partial(resume, directory, **changes)
    return in_worker(lambda worker, ranks: _generate(opened, ranks, worker, shown))


def _generate(opened: Open, ranks: Alone, worker: Worker, shown: Shown) -> int:
    messages = Messages(shown.quiet)
    try:
        with (
            opened(observer_of(messages), ranks) as begun,
            progress(messages.quiet) as line,
            worker.stoppable() as stop,
        ):
            stop.before_leaving = begun.write_ending
            read, wrote = Count(line, "reading", "tokens"), Count(line, "writing", "tokens")
            is_seen = begun.file is None and Stdout().is_seen and not begun.request.answer.extract
            tokens = begun.tokens(should_stop=stop.requested, on_prefill=read, on_over=stop.over)
            first = 1 if begun.resume_point is None else begun.resume_point.generated + 1
            for count, _ in enumerate((each for each in tokens if each.id is not None), first):
                if not is_seen:
                    wrote(count, None)
    except RunEnded as error:
        messages.warn(str(error))
        return error.exit_status
    stats = begun.stats
    if stats.prompt_tokens:
        messages.stats(stats_line(stats, begun.saved), shown.stats)
    if stop.status and begun.saver and not begun.saver.checkpoint.run.ended:
        directory = shlex.quote(str(begun.saver.checkpoint.directory))
        messages.note(f"stopped: mlxchat generate --resume {directory} continues")
    if stats.complete is False:
        messages.warn(incomplete(stats))
        return stop.status or ExitStatus.INCOMPLETE
    return ExitStatus.LOOP if stats.finish_reason == "loop" else stop.status or ExitStatus.OK
