"""Compares a session's saved state with one computed again from the same tokens."""

from dataclasses import dataclass

from mlxchat.app.chat import Chat
from mlxchat.app.observer import Observer
from mlxchat.app.opening import find_model, start
from mlxchat.errors import SessionError, SnapshotError
from mlxchat.request import ChatOptions
from mlxchat.sessions.session import Session
from mlxchat.store.verify import Agreement, compare

PROBE = "What have we talked about so far, and what did you say about it?"


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
