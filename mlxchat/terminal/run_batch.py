"""Runs `mlxchat batch`: its progress on a terminal, its closing line, and its exit status."""

from mlxchat.app.batch_run import BatchFigures, BatchRun, open_batch
from mlxchat.errors import ExitStatus, MlxchatError
from mlxchat.request import BatchRequest
from mlxchat.request.commands import Shown
from mlxchat.terminal.output import Messages, Stdout
from mlxchat.terminal.progress import Count, observer_of, progress
from mlxchat.terminal.worker import Worker
from mlxchat.text.documents import piped_stdin
from mlxchat.units import beginning, count

# How much of the first row's error is shown; the output has all of it.
MAX_ERROR_CHARS = 200


def run(request: BatchRequest, shown: Shown) -> int:
    """Run the rows; return the exit status. Raises MlxchatError; finished rows are written."""
    # Without the ranks that mlx.launch may have started.
    with Worker() as worker:
        return worker.call(lambda: _run(request, shown, worker))


def _run(request: BatchRequest, shown: Shown, worker: Worker) -> int:
    messages = Messages(shown.quiet)
    write = Stdout().write if request.output is None else lambda _: None
    with open_batch(request, observer_of(messages), write=write, piped=piped_stdin()) as batch:
        try:
            with progress(messages.quiet) as line, worker.stoppable() as stop:
                show = Count(line, "done", "rows")
                results = batch.results(
                    stop.requested, lambda now: show(now.done, now.total, *_pace(now))
                )
                for _ in results:
                    pass
        except MlxchatError as error:
            if batch.figures.generated_tokens:
                raise type(error)(f"{error}; {_how_to_continue(batch)}") from error
            raise
    return _report(batch, messages, shown, stop.status)


def _report(batch: BatchRun, messages: Messages, shown: Shown, stopped: ExitStatus | None) -> int:
    figures = batch.figures
    if stopped is not None:
        messages.warn(f"stopped: {_how_to_continue(batch)}")
    messages.stats(figures_line(figures), shown.stats)
    if figures.failed:
        first = beginning(figures.first_error or "", MAX_ERROR_CHARS)
        messages.warn(f"{count(figures.failed, 'row')} failed; {first}")
    if figures.cut:
        what = count(figures.cut, "prompt was", "prompts were")
        messages.warn(f"{what} larger than the window: the oldest tokens were evicted")
    if figures.incomplete:
        messages.warn(f"{count(figures.incomplete, 'answer is', 'answers are')} not complete")
    if stopped is not None:
        return stopped
    if not figures.done:
        messages.warn("the input has no rows")
    if figures.failed > figures.invalid:
        return ExitStatus.FAILURE
    return ExitStatus.INCOMPLETE if figures.incomplete or figures.invalid else ExitStatus.OK


def _how_to_continue(batch: BatchRun) -> str:
    figures = batch.figures
    finished = f"{count(figures.skipped + figures.finished, 'row')} finished"
    if not batch.can_continue:
        return f"{finished}; a batch with an output file can be continued"
    return f"{finished}; run the same command again for the rest"


def figures_line(figures: BatchFigures) -> str:
    parts = [count(figures.done, "row")]
    if figures.skipped:
        parts[0] += f", {figures.skipped:,} already finished"
    if figures.failed:
        parts[0] += f", {figures.failed:,} failed"
    if figures.generated_tokens:
        cached = f", {figures.cached_tokens:,} cached" if figures.cached_tokens else ""
        parts += [
            f"prompts {count(figures.prompt_tokens, 'token')}{cached}",
            f"generated {_tokens(figures)}",
            f"evicted {figures.evicted_tokens:,}",
            f"{figures.seconds:.1f} s",
        ]
    return " · ".join(parts)


def _pace(figures: BatchFigures) -> tuple[str, bool]:
    """What is done now, and whether that says how long the other rows take."""
    done, total = figures.reading
    if done < total:
        return f"reading {done:,}/{total:,} tokens", False
    # Where there is no room, figures are left out from a dot on.
    return _tokens(figures).replace(", ", " · "), True


def _tokens(figures: BatchFigures) -> str:
    return f"{count(figures.generated_tokens, 'token')}, {figures.tokens_per_s:,.1f} tok/s"
