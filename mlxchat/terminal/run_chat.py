"""Runs `mlxchat chat`: opens the chat for a person, a pipe, or one question."""

import sys
from collections.abc import Iterator
from functools import partial

from mlxchat import platform
from mlxchat.app.chat import Chat
from mlxchat.app.prompt import constraint_of, read_into, with_schema
from mlxchat.app.ranks import check_ranks
from mlxchat.errors import UsageError
from mlxchat.models.model import Alone
from mlxchat.request import Answer, ChatOptions
from mlxchat.request.commands import ChatShown
from mlxchat.terminal.output import Messages, Stdout
from mlxchat.terminal.progress import observer_of
from mlxchat.terminal.talk import PipedChat
from mlxchat.terminal.worker import Worker, with_ranks
from mlxchat.text.documents import (
    STDIN,
    Input,
    Spoken,
    piped_stdin,
    read_input,
    read_turns,
    warn_of_unread_stdin,
)

NO_FORM = Answer()


def run(
    options: ChatOptions,
    shown: ChatShown,
    question: str | None = None,
    answer: Answer = NO_FORM,
    template: str | None = None,
) -> int:
    """Chat, and return the exit status; `answer` is the form of the answer to the question, which
    goes into the `template`, if any. Raises MlxchatError for everything a user can fix."""
    constraint = constraint_of(answer)
    messages = Messages(shown.quiet)

    def open_chat(ranks: Alone, on_terminal: bool) -> Chat:
        chat = Chat.open(
            options,
            observer_of(messages),
            session=shown.session,
            latest=shown.latest,
            save=shown.save,
            # On a terminal, notices appear between the replies.
            collects=on_terminal,
            ranks=ranks,
        )
        in_prompt = constraint if answer.schema_prompt else None
        chat.revise_system(partial(with_schema, constraint=in_prompt))
        is_single = question is not None or template is not None
        if is_single and shown.session is None and not shown.latest:
            chat.mark_question(is_one=True)
        return chat

    def converse(ranks: Alone, worker: Worker) -> int:
        check_ranks(ranks, constraint=next(iter(answer.constraints()), None))
        turns, attached = None, Input("")
        if ranks.leads:
            turns = worker.read(lambda: _turns(shown, question, template, messages))
        if ranks.leads and question is None and template is None:
            attached = worker.read(lambda: read_input(None, shown.files, None, may_be_empty=True))
            _text(attached, messages)
        chat = worker.call(lambda: open_chat(ranks, turns is None))
        if turns is None and ranks.size == 1:
            from mlxchat.terminal.chat_loop import ChatLoop

            return ChatLoop(chat, worker, shown, think=options.think, files=attached.found).run()
        return PipedChat(
            chat,
            worker,
            shown,
            turns or iter(()),
            hides_thoughts=options.think != "on",
            files=attached.found,
            answer=answer,
            constraint=constraint,
        ).run()

    return with_ranks(converse)


def _turns(
    shown: ChatShown, question: str | None, template: str | None, messages: Messages
) -> Iterator[Spoken] | None:
    """The question, or the turns from a pipe; None on a terminal."""
    if question is not None or template is not None:
        warn_of_unread_stdin(messages.warn)
        document = read_into(template, question, shown.files, piped_stdin())
        return iter([Spoken("user", _text(document, messages), documents=document.documents)])
    alone = platform.launched_rank() is None
    if sys.stdin is not None and sys.stdin.isatty() and not shown.events and alone:
        if not Stdout().is_terminal:
            raise UsageError(
                "stdout is not a terminal: pass a QUESTION, pipe one message per line, or save a "
                "chat with `mlxchat session show`"
            )
        return None
    stdin = piped_stdin(to_its_end=False)
    if stdin is None:
        raise UsageError("nothing to answer: pass a QUESTION, or pipe one message per line")
    if STDIN in shown.files:
        raise UsageError(f"--file {STDIN} needs a QUESTION: without one, stdin holds the turns")
    return read_turns(stdin)


def _text(document: Input, messages: Messages) -> str:
    for notice in document.notices:
        messages.warn(notice)
    return document.text
