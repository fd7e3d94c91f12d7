"""Shows on the terminal what `app` reports while it opens a model."""

from mlxchat.app import opening
from mlxchat.app.observer import Observer
from mlxchat.models.resolve import ResolvedModel
from mlxchat.request import Setup
from mlxchat.terminal.ask import terminal_question
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.progress import progress, waiting


def observer_of(messages: Messages) -> Observer:
    """Shows on the terminal what `app` reports."""
    return Observer(
        warn=messages.warn,
        note=messages.note,
        ask=terminal_question(),
        show_progress=not messages.quiet,
        waiting=lambda text: waiting(text, messages.quiet),
        counting=lambda what, unit: progress(what, unit, messages.quiet),
    )


def find_model(setup: Setup, messages: Messages) -> ResolvedModel:
    """Find the model's files; questions and download progress appear on the terminal."""
    return opening.find_model(
        setup, messages.warn, terminal_question(), show_progress=not messages.quiet
    )
