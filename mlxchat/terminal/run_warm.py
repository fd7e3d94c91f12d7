"""What `mlxchat cache warm` shows."""

from collections.abc import Mapping
from typing import Any

from mlxchat.app import warm as app
from mlxchat.errors import ExitStatus
from mlxchat.request import Setup
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.observing import observer_of
from mlxchat.text.documents import STDIN, piped_stdin


def warm(
    setup: Setup,
    file: str,
    system: str | None,
    template_args: Mapping[str, Any],
    *,
    block: bool,
    quiet: bool,
) -> int:
    """Read the document, and note how much of it was known. Raises what `app.warm` raises."""
    messages = Messages(quiet)
    done = app.warm(
        setup,
        file,
        block=block,
        system=system,
        template_args=template_args,
        piped=piped_stdin() if file == STDIN else None,
        observer=observer_of(messages),
    )
    if block:
        known = "which was known already" if done.known else "kept"
        messages.note(f"{done.name}: a block of {done.tokens:,} tokens, {known}")
    else:
        messages.note(
            f"{done.name}: {done.tokens:,} tokens, {done.known:,} of them were known already"
        )
    return ExitStatus.OK
