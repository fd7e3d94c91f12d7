"""From a command's options to the Setup and Observer that `app` opens a model with."""

from collections.abc import Mapping
from typing import Any

from mlxchat.app import opening
from mlxchat.app.observer import Observer
from mlxchat.cli.options import build
from mlxchat.models.resolve import ResolvedModel
from mlxchat.options import options_of
from mlxchat.request import Setup
from mlxchat.settings import SamplingSettings
from mlxchat.terminal.ask import terminal_question
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.progress import progress, waiting
from mlxchat.terminal.spelling import as_flags


def setup_of(values: Mapping[str, Any]) -> Setup:
    """The Setup in a command's options. Raises UsageError."""
    sampling = {
        name: each.value_of(values.get(name)) for name, each in options_of(SamplingSettings).items()
    }
    seed = sampling.pop("seed")
    return build(Setup, values, sampling=sampling, **({} if seed is None else {"seed": seed}))


def observer_of(messages: Messages) -> Observer:
    """Shows on the terminal what `app` reports."""
    return Observer(
        warn=messages.warn,
        note=messages.note,
        ask=terminal_question(),
        show_progress=not messages.quiet,
        spell=as_flags,
        waiting=lambda text: waiting(text, messages.quiet),
        counting=lambda what, unit: progress(what, unit, messages.quiet),
    )


def find_model(setup: Setup, messages: Messages) -> ResolvedModel:
    """Find the model's files; questions and download progress appear on the terminal."""
    return opening.find_model(
        setup, messages.warn, terminal_question(), show_progress=not messages.quiet
    )
