"""What `mlxchat chat` does with its options: who is talking, and what is saved of it."""

import sys
from dataclasses import replace

from mlxchat.app.ranks import check_ranks, lead_or_follow
from mlxchat.app.setup import start
from mlxchat.cli.chat_setup import ChatRequest
from mlxchat.cli.keeper import open_session, settings_of, template_args_of
from mlxchat.cli.signals import ignore_signals
from mlxchat.distributed.ranks import Ranks
from mlxchat.errors import ExitStatus, UsageError
from mlxchat.store.session import Session
from mlxchat.terminal.messages import Messages


def run(request: ChatRequest) -> int:
    """Chat, and return the exit status. Raises MlxchatError for all that a user can mend."""
    messages = Messages(request.quiet)
    # Whatever can be refused is refused before anything takes time.
    request.setup.check()
    request.generation_settings()
    if request.go_on and request.session is not None:
        raise UsageError("--continue is the latest session, --session NAME another: give one")
    if not request.save and (request.go_on or request.session is not None):
        raise UsageError("--no-save goes with neither --continue nor --session")
    led = lead_or_follow(lambda ranks: _run(request, messages, ranks), ignore_signals)
    return led or ExitStatus.OK


def _run(request: ChatRequest, messages: Messages, ranks: Ranks | None) -> int:
    check_ranks(ranks, pipeline=request.setup.pipeline)
    start(request.setup, messages.warn)
    session = open_session(go_on=request.go_on, name=request.session, save=request.save)
    if session is not None:
        setup, roll = settings_of(request.setup, request.roll, session, request.given)
        args = template_args_of(request.template_args, session, request.given)
        request = replace(request, setup=setup, roll=roll, template_args=args)
    try:
        return _chat(request, messages, session, ranks)
    finally:
        if session is not None:
            session.close()


def _chat(
    request: ChatRequest, messages: Messages, session: Session | None, ranks: Ranks | None
) -> int:
    if sys.stdin is not None and sys.stdin.isatty() and not request.json_events:
        from mlxchat.cli.repl import Repl

        return Repl(request, messages, session, ranks).run()
    from mlxchat.cli.piped_chat import run_piped

    return run_piped(request, messages, session, ranks)
