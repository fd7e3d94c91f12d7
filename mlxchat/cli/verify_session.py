"""What `mlxchat session verify` does: a session's state beside one that is computed afresh."""

from mlxchat.app.chat import Chat, ChatOptions
from mlxchat.app.setup import start
from mlxchat.cli.setup import find_model
from mlxchat.errors import SessionError, SnapshotError
from mlxchat.store.session import Session
from mlxchat.store.verify import compare
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.progress import progress, waiting
from mlxchat.units import count, format_bytes

PROBE = "What have we talked about so far, and what did you say about it?"


def verify_session(name: str) -> str:
    """The verdict in one line. Raises SessionError and SnapshotError if there is none."""
    messages = Messages()
    with Session.open(name) as session:
        if not session.snapshot_path.exists():
            raise SessionError(f"session {name!r} has no snapshot: it is read again when continued")
        size_bytes = session.snapshot_path.stat().st_size
        options = ChatOptions()
        start(options.setup, messages.warn)
        # Not closed, so that nothing of the session is replaced.
        chat = Chat(options, session, find=lambda setup: find_model(setup, messages))
        with waiting(f"loading {chat.model_name} …", messages.quiet):
            conversation = chat.conversation
        held, model = conversation.held_ids, conversation.model
        if len(held) == 0:
            raise SnapshotError("; ".join(chat.notices) or f"session {name!r} holds nothing")
        for notice in chat.notices:
            messages.warn(notice)
        ledger = conversation.ledger
        with progress("reading", "tokens", messages.quiet) as on_progress:
            agreement = compare(
                model.network,
                conversation.cache,
                model.make_cache(ledger.window, ledger.keep),
                held,
                model.tokenizer.encode(PROBE),
                step_size=conversation.settings.prefill_step_size,
                on_progress=on_progress,
            )
    return (
        f"{name}: {format_bytes(size_bytes)}, checksum right, {count(len(held), 'token')} held · "
        f"from a fresh prefill of the same tokens: KL {agreement.kl:.2g} nats a token, largest "
        f"logit difference {agreement.logit_difference:.2g}, same first choice at "
        f"{agreement.same_choice} of {agreement.tokens} tokens\n"
    )
