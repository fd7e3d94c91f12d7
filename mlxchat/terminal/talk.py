"""What a chat on a terminal and one in a pipe share: a model, attachments, replies as they come."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TypeVar

from mlxchat.app.chat import Chat
from mlxchat.chat.answering import Watch
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.state import Said
from mlxchat.errors import ExitStatus
from mlxchat.terminal import Terminated
from mlxchat.terminal.output import Messages
from mlxchat.terminal.progress import Count, progress, waiting
from mlxchat.terminal.worker import Stop, Worker
from mlxchat.text.documents import SEPARATOR

T = TypeVar("T")

# Starts a reply, as `Chat.continue_reply` does.
Begin = Callable[[Watch], Generator[Said]]


class Talk:
    """A chat with a person or a program until they leave; then the chat is closed.

    The main thread reads; `work` lets the worker do what computes, and show it.
    """

    def __init__(
        self, chat: Chat, worker: Worker, messages: Messages, attached: Sequence[str] = ()
    ) -> None:
        """Starts to load the model. `attached` texts go before the next message."""
        self.chat, self.worker, self.messages = chat, worker, messages
        self.attached = list(attached)
        # What signals ask of the latest work.
        self.stop = Stop()
        self.seconds = 0.0
        self.begun = worker.start(lambda: chat.begin(self.checked))

    def run(self) -> int:
        """Return the exit status."""
        try:
            status = self.converse()
        finally:
            # A closed terminal is an error before its SIGHUP comes.
            with self.worker.stoppable() as stop:
                self.worker.call_last(self.chat.close)
                self.worker.drop_ctrl_c()
            if stop.status is not None:
                raise Terminated(stop.status)
        self.take_leave()
        return status or (ExitStatus.OK if self.chat.not_saved is None else ExitStatus.FAILURE)

    def converse(self) -> int:
        """Read and answer until they leave; return the exit status."""
        raise NotImplementedError

    def take_leave(self) -> None:
        """The chat is closed."""

    def checked(self) -> None:
        """The model and the window have passed their checks; its weights have not been read."""

    @property
    def conversation(self) -> Conversation:
        return self.chat.conversation

    def wait_for_model(self) -> None:
        """Wait until the conversation has begun. Raises the errors of loading; KeyboardInterrupt or
        Terminated for a signal."""
        quiet = self.messages.quiet or self.begun.done()
        with waiting(f"loading {self.chat.model_name} …", quiet):
            self.worker.wait(self.begun)

    def work(self, job: Callable[[], T]) -> T:
        """Let the worker do the job, which signals ask to `stop`."""

        def do() -> T:
            with self.worker.stoppable() as self.stop:
                return job()

        return self.worker.call(do)

    def with_attachments(self, text: str) -> str:
        return SEPARATOR.join([*self.attached, text])

    @contextmanager
    def answering(
        self, begin: Begin, is_enough: Callable[[], bool] = lambda: False
    ) -> Iterator[Iterator[Said]]:
        """The reply as it comes, in `work`, with progress before it; it takes `seconds`. It ends
        early if it `is_enough`."""
        begun_s = time.perf_counter()
        with progress(self.messages.quiet) as line:

            def on_end() -> None:
                self.stop.over()
                # Nothing may be printed into the line.
                line.stop()

            watch = Watch(
                on_encode=Count(line, "tokenizing", "characters"),
                on_prefill=Count(line, "reading", "tokens"),
                should_stop=lambda: is_enough() or self.stop.requested(),
                on_end=on_end,
            )
            with closing(begin(watch)) as reply:
                yield reply
        self.seconds = time.perf_counter() - begun_s
