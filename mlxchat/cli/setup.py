"""The options that every command that runs a model has, as what `app` opens a model with."""

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
    """Those of a command's options that a model is opened with. Raises UsageError."""
    sampling = {
        name: each.value_of(values.get(name)) for name, each in options_of(SamplingSettings).items()
    }
    seed = sampling.pop("seed")
    return build(Setup, values, sampling=sampling, **({} if seed is None else {"seed": seed}))


def observer_of(messages: Messages) -> Observer:
    """What `app` reports, on the terminal."""
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
    """The model's files; asks on the terminal and shows a download's progress there."""
    return opening.find_model(
        setup, messages.warn, terminal_question(), show_progress=not messages.quiet
    )
