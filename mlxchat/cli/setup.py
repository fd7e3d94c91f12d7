"""The options that every command that runs a model has, as what `app` opens a model with."""

from collections.abc import Mapping
from typing import Any

from mlxchat.app import setup as opening
from mlxchat.app.observer import Observer
from mlxchat.app.setup import Setup
from mlxchat.chat.random_streams import random_seed
from mlxchat.cli.amounts import parse_bytes, parse_window
from mlxchat.models.resolve import ResolvedModel
from mlxchat.terminal.ask import terminal_question
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.progress import progress, waiting

SAMPLING_OPTIONS = ("temp", "top_p", "top_k", "min_p", "repetition_penalty")
SAME_NAMES = (
    *("model", "offline", "device", "dtype", "keep", "prefill_step_size"),
    *("prefix_cache", "pipeline"),
)


def setup_of(options: Mapping[str, Any]) -> Setup:
    """Those of a command's options that are meant here, by the names of its parameters."""
    seed = options["seed"]
    return Setup(
        window=parse_window(options["max_kv_size"]),
        sampling={name: options[name] for name in SAMPLING_OPTIONS},
        seed=random_seed() if seed is None else seed,
        prefix_cache_bytes=parse_bytes(options["prefix_cache_size"], "--prefix-cache-size"),
        **{name: options[name] for name in SAME_NAMES},
    )


def observer_of(messages: Messages) -> Observer:
    """What `app` reports, on the terminal."""
    return Observer(
        warn=messages.warn,
        note=messages.note,
        ask=terminal_question(),
        show_progress=not messages.quiet,
        waiting=lambda text: waiting(text, messages.quiet),
        counting=lambda what, unit: progress(what, unit, messages.quiet),
    )


def find_model(setup: Setup, messages: Messages) -> ResolvedModel:
    """The model's files; asks on the terminal and shows a download's progress there."""
    return opening.find_model(
        setup, messages.warn, terminal_question(), show_progress=not messages.quiet
    )
