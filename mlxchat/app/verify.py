"""Compares a session's saved state with one computed again from the same tokens.

If turns were evicted and keys shifted, the two differ: later tokens have seen the evicted ones.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat.app.chat import Chat
from mlxchat.app.observer import Observer
from mlxchat.app.opening import find_model, start
from mlxchat.cache import Cache
from mlxchat.engine.loops import prefill
from mlxchat.engine.pace import Pace
from mlxchat.errors import SessionError, SnapshotError
from mlxchat.progress import Progress
from mlxchat.request import ChatOptions
from mlxchat.sessions.session import Session
from mlxchat.settings import CacheSettings
from mlxchat.text.spans import TokenIds

PROBE = "What have we talked about so far, and what did you say about it?"


@dataclass(frozen=True, slots=True)
class Agreement:
    """Compares two states' predictions after each of `tokens` tokens: mean Kullback-Leibler
    divergence of the first from the second, in nats; largest difference of two logits; and how
    often both have the same top choice."""

    tokens: int
    kl: float
    logit_difference: float
    same_choice: int


@dataclass(frozen=True, slots=True)
class Verified:
    """A snapshot of `size_bytes` with a valid checksum and `held_tokens` tokens."""

    size_bytes: int
    held_tokens: int
    agreement: Agreement


def verify_session(name: str, observer: Observer | None = None) -> Verified:
    """Raises SessionError and SnapshotError if there is nothing to compare."""
    shown = observer or Observer()
    with Session.open(name) as session:
        path = session.snapshot_path
        if path is None or not path.exists():
            raise SessionError(f"session {name!r} has no snapshot: resuming it reads it again")
        size_bytes = path.stat().st_size
        options = ChatOptions()
        start(options.setup, shown.warn)
        # Never closed, so that the session is not changed.
        chat = Chat(
            options,
            session,
            find=lambda setup: find_model(
                setup, shown.warn, shown.ask, show_progress=shown.show_progress
            ),
        )
        with shown.waiting(f"loading {chat.model_name} …"):
            conversation = chat.conversation
        held, model = conversation.held_ids, conversation.model
        if len(held) == 0:
            reasons = "; ".join(chat.notices)
            raise SnapshotError(reasons or f"the snapshot of session {name!r} is empty")
        for notice in chat.notices:
            shown.warn(notice)
        ledger = conversation.ledger
        with shown.counting("reading", "tokens") as on_progress:
            agreement = compare(
                model.network,
                conversation.cache,
                model.make_cache(ledger.window, ledger.keep),
                held,
                model.tokenizer.encode(PROBE),
                settings=conversation.settings,
                on_progress=on_progress,
            )
    return Verified(size_bytes, len(held), agreement)


def compare(
    network: nn.Module,
    restored: Cache,
    empty: Cache,
    held: TokenIds,
    probe: TokenIds,
    *,
    settings: CacheSettings,
    on_progress: Progress | None = None,
) -> Agreement:
    """Prefill `held: (T,)` into a fork of `empty`, let both states read `probe: (N,)`, compare.

    `on_progress` counts tokens of `held`.
    """
    fresh = empty.fork()
    prefill(
        network,
        fresh,
        held,
        step_size=settings.max_step_size,
        pace=Pace.of(network, settings),
        on_progress=on_progress,
    )
    tokens = mx.array(probe)[None]
    a, b = (_logits(network, cache.fork(), tokens) for cache in (restored, fresh))
    log_a, log_b = (x - np.logaddexp.reduce(x, axis=-1, keepdims=True) for x in (a, b))
    return Agreement(
        tokens=len(probe),
        kl=float((np.exp(log_b) * (log_b - log_a)).sum(axis=-1).mean()),
        logit_difference=float(np.abs(a - b).max()),
        same_choice=int((a.argmax(axis=-1) == b.argmax(axis=-1)).sum()),
    )


def _logits(network: nn.Module, cache: Cache, tokens: mx.array) -> np.ndarray:
    return np.array(network(tokens, cache=cache)[0].astype(mx.float32), dtype=np.float64)
