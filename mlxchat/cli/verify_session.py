"""What `mlxchat session verify` does: a session's state beside one that is computed afresh."""

from mlxchat.app.setup import Setup, load_model, start
from mlxchat.cli.chat_setup import ChatRequest, new_conversation
from mlxchat.cli.keeper import Keeper, settings_of, template_args_of
from mlxchat.cli.setup import find_model
from mlxchat.errors import SessionError, SnapshotError
from mlxchat.settings import Roll
from mlxchat.store.session import Session
from mlxchat.store.verify import compare
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.progress import progress, waiting
from mlxchat.units import count, format_bytes

PROBE = "What have we talked about so far, and what did you say about it?"


def verify_session(name: str) -> str:
    """The verdict in one line. Raises SessionError and SnapshotError where there is none."""
    messages = Messages()
    with Session.open(name) as session:
        if not session.snapshot_path.exists():
            raise SessionError(f"session {name!r} has no snapshot: it is read again when continued")
        size_bytes = session.snapshot_path.stat().st_size
        request = _request(session)
        start(request.setup, messages.warn)
        found = find_model(request.setup, messages)
        told: list[str] = []
        with waiting(f"loading {found.name} …", messages.quiet):
            model = load_model(request.setup, found, messages.warn)
            conversation = new_conversation(request, model, messages.warn)
            Keeper(session, told.append).begin(conversation, found, request.setup.dtype)
        held = conversation.held_ids
        if len(held) == 0:
            raise SnapshotError("; ".join(told) or f"session {name!r} holds nothing")
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


def _request(session: Session) -> ChatRequest:
    setup, roll = settings_of(Setup(keep=0), Roll.SHIFT, session, ())
    return ChatRequest(
        setup=setup,
        system=None,
        roll=roll,
        max_tokens=-1,
        stop=(),
        think="on",
        plain=True,
        json_events=False,
        stats=False,
        template_args=template_args_of({}, session, ()),
    )
