"""Compares a session's saved state with one computed again from the same tokens.

If turns were evicted and keys shifted, the two differ: later tokens have seen the evicted ones.
"""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat.app.chat import Chat
from mlxchat.cache.layers import Cache
from mlxchat.engine.prefill import Pace, first_step, prefill
from mlxchat.errors import SessionError, SnapshotError
from mlxchat.request import ChatOptions
from mlxchat.sessions.session import Session
from mlxchat.text.encoder import TokenIds
from mlxchat.units import Observer

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


def verify_session(name: str, observer: Observer) -> tuple[int, int, Agreement]:
    """The bytes of the snapshot, whose checksum is right, the tokens it holds, and the agreement.
    Raises SessionError and SnapshotError if there is nothing to compare."""
    with Session.open(name) as session:
        path = session.snapshot_path
        if path is None or not path.exists():
            raise SessionError(f"session {name!r} has no saved state; resuming it rereads the text")
        size_bytes = path.stat().st_size
        # Never closed, so that its cache is not saved anew.
        chat = Chat(ChatOptions(), session, observer, collects=True)
        with observer.waiting(f"loading {chat.model_name} …"):
            conversation = chat.conversation
        held, model, ledger = conversation.ledger.ids, conversation.model, conversation.ledger
        if len(held) == 0:
            reasons = "; ".join(chat.notices) or "the saved state is empty"
            raise SnapshotError(f"session {name!r} has nothing to compare: {reasons}")
        for notice in chat.notices:
            observer.warn(notice)
        fresh = model.make_cache(ledger.window, ledger.keep)
        size, pace = conversation.settings.prefill_step_size, Pace(first_step(model.network))
        with observer.counting("reading", "tokens") as show:
            prefill(model.network, fresh, held, step_size=size, pace=pace, on_progress=show)
        agreement = compare(model.network, conversation.cache, fresh, model.tokenizer.encode(PROBE))
    return size_bytes, len(held), agreement


def compare(network: nn.Module, restored: Cache, fresh: Cache, probe: TokenIds) -> Agreement:
    """Let forks of both states read `probe: (N,)`, and compare what they predict."""
    logits = (network(mx.array(probe)[None], cache=each.fork())[0] for each in (restored, fresh))
    a, b = (np.array(each.astype(mx.float32), np.float64) for each in logits)
    log_a, log_b = (x - np.logaddexp.reduce(x, axis=-1, keepdims=True) for x in (a, b))
    return Agreement(
        tokens=len(probe),
        kl=float((np.exp(log_b) * (log_b - log_a)).sum(axis=-1).mean()),
        logit_difference=float(np.abs(a - b).max()),
        same_choice=int((a.argmax(axis=-1) == b.argmax(axis=-1)).sum()),
    )
