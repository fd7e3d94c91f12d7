"""What `mlxchat chat` does with its options: open the chat, and let a person or a pipe talk."""

import sys

from mlxchat import paths
from mlxchat.app.chat import Chat
from mlxchat.app.ranks import Ranks, lead_or_follow
from mlxchat.cli.options import ChatShown
from mlxchat.cli.setup import find_model
from mlxchat.errors import ExitStatus, UsageError
from mlxchat.request import ChatOptions
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.signals import ignore_signals
from mlxchat.text.documents import piped_stdin, read_turns


def run(options: ChatOptions, shown: ChatShown) -> int:
    """Chat, and return the exit status. Raises MlxchatError for all that a user can mend."""
    # Whatever can be refused is refused before anything takes time.
    options.setup.check()
    if shown.latest and shown.session is not None:
        raise UsageError("--continue is the latest session, --session NAME another: give one")
    if not shown.save and (shown.latest or shown.session is not None):
        raise UsageError("--no-save goes with neither --continue nor --session")
    status = lead_or_follow(lambda ranks: _run(options, shown, ranks), ignore_signals)
    return status or ExitStatus.OK


def _run(options: ChatOptions, shown: ChatShown, ranks: Ranks | None) -> int:
    messages = Messages(shown.quiet)
    on_terminal = sys.stdin is not None and sys.stdin.isatty() and not shown.events
    stdin = None if on_terminal else piped_stdin(to_its_end=False)
    if not on_terminal and stdin is None:
        raise UsageError("there are no turns to answer: pipe them in, one a line")
    with Chat.open(
        options,
        session=shown.session,
        latest=shown.latest,
        save=shown.save,
        ranks=ranks,
        find=lambda setup: find_model(setup, messages),
        # On a terminal they are shown between the replies.
        notify=None if on_terminal else messages.warn,
        note=None if on_terminal else messages.note,
    ) as chat:
        if stdin is None:
            return _talk_on_terminal(chat, options, shown, messages)
        from mlxchat.terminal.piped_chat import PipedChat, PipeOptions

        hides = options.think != "on"
        pipe = PipeOptions(shown.events, hides, shown.stats)
        return PipedChat(chat, pipe, messages).run(read_turns(stdin))


def _talk_on_terminal(
    chat: Chat, options: ChatOptions, shown: ChatShown, messages: Messages
) -> int:
    from mlxchat.terminal.chat_screen import ScreenOptions
    from mlxchat.terminal.repl import Repl

    history = paths.history_file() if shown.save else None
    screen = ScreenOptions(shown.plain, options.think, shown.stats, history)
    return Repl(chat, screen, messages).run()
