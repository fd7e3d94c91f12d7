"""What `mlxchat session verify` prints."""

from mlxchat.app import verify
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.observing import observer_of
from mlxchat.units import count, format_bytes


def verify_session(name: str) -> str:
    """The verdict in one line. Raises SessionError, or SnapshotError if it cannot be verified."""
    found = verify.verify_session(name, observer_of(Messages()))
    agreement = found.agreement
    return (
        f"{name}: {format_bytes(found.size_bytes)}, checksum right, "
        f"{count(found.held_tokens, 'token')} held · "
        f"from a fresh prefill of the same tokens: KL {agreement.kl:.2g} nats per token, largest "
        f"logit difference {agreement.logit_difference:.2g}, same first choice at "
        f"{agreement.same_choice} of {agreement.tokens} tokens\n"
    )
