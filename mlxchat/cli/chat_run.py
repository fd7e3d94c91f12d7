"""What `mlxchat chat` does with its options: open the chat, and let a person or a pipe talk."""

import sys
from dataclasses import dataclass

from mlxchat import paths
from mlxchat.app.chat import Chat, ChatOptions
from mlxchat.app.ranks import Ranks, lead_or_follow
from mlxchat.cli.setup import find_model
from mlxchat.errors import ExitStatus, UsageError
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.signals import ignore_signals
from mlxchat.text.documents import piped_stdin, read_turns


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The options as they were given; `think` is on, off or hide."""

    options: ChatOptions
    latest: bool
    session: str | None
    save: bool
    think: str
    plain: bool
    json_events: bool
    stats: bool
    quiet: bool


def run(request: ChatRequest) -> int:
    """Chat, and return the exit status. Raises MlxchatError for all that a user can mend."""
    # Whatever can be refused is refused before anything takes time.
    request.options.setup.check()
    if request.latest and request.session is not None:
        raise UsageError("--continue is the latest session, --session NAME another: give one")
    if not request.save and (request.latest or request.session is not None):
        raise UsageError("--no-save goes with neither --continue nor --session")
    return lead_or_follow(lambda ranks: _run(request, ranks), ignore_signals) or ExitStatus.OK


def _run(request: ChatRequest, ranks: Ranks | None) -> int:
    messages = Messages(request.quiet)
    on_terminal = sys.stdin is not None and sys.stdin.isatty() and not request.json_events
    stdin = None if on_terminal else piped_stdin(to_its_end=False)
    if not on_terminal and stdin is None:
        raise UsageError("there are no turns to answer: pipe them in, one a line")
    with Chat.open(
        request.options,
        session=request.session,
        latest=request.latest,
        save=request.save,
        ranks=ranks,
        find=lambda setup: find_model(setup, messages),
        # On a terminal they are shown between the replies.
        notify=None if on_terminal else messages.warn,
        note=None if on_terminal else messages.note,
    ) as chat:
        if stdin is None:
            return _talk_on_terminal(chat, request, messages)
        from mlxchat.terminal.piped_chat import PipedChat, PipeOptions

        hides = request.think != "on"
        options = PipeOptions(request.json_events, hides, request.stats)
        return PipedChat(chat, options, messages).run(read_turns(stdin))


def _talk_on_terminal(chat: Chat, request: ChatRequest, messages: Messages) -> int:
    from mlxchat.terminal.chat_screen import ScreenOptions
    from mlxchat.terminal.repl import Repl

    history = paths.history_file() if request.save else None
    options = ScreenOptions(request.plain, request.think, request.stats, history)
    return Repl(chat, options, messages).run()
