"""What a chat on a terminal and one in a pipe share, and the one in a pipe: it reads one turn per
line, writes replies or events, and ends with the input."""

import os
import shlex
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache, partial
from typing import TypeVar

from mlxchat.app.chat import Chat
from mlxchat.app.events import EventWriter, value_of
from mlxchat.app.prompt import constraint_in
from mlxchat.app.ranks import check_ranks
from mlxchat.app.run import TextWriter
from mlxchat.chat.answering import Watch
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.state import Change, Said
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.reply import asked, led, nothing_done
from mlxchat.errors import (
    DeviceError,
    ExitStatus,
    MlxchatError,
    OutputError,
    RanksError,
    UsageError,
)
from mlxchat.request import Answer
from mlxchat.request.commands import ChatShown
from mlxchat.terminal import Terminated
from mlxchat.terminal.figures import first_words, incomplete, turn_line, window_line
from mlxchat.terminal.output import Messages, Stdout, show_error
from mlxchat.terminal.progress import Count, progress, waiting
from mlxchat.terminal.worker import Stop, Worker
from mlxchat.text.documents import SEPARATOR, Document, Spoken, heading

T = TypeVar("T")

# Starts a reply, as `Chat.continue_reply` does.
Begin = Callable[[Watch], Generator[Said]]
Found = Sequence[tuple[Document, str]]  # with their texts
Attached = dict[str, tuple[str, str]]  # names and texts, by path


class Talk:
    """A chat with a person or a program. The main thread reads; `work` lets the worker compute."""

    def __init__(self, chat: Chat, worker: Worker, shown: ChatShown, files: Found = ()) -> None:
        """Starts to load the model; `files` go before the first message."""
        self.chat, self.worker, self.shown = chat, worker, shown
        self.messages = Messages(shown.quiet)
        # What goes before the next message.
        self.attached: Attached = {}
        # What signals ask of the latest work.
        self.stop = Stop()
        self.seconds = 0.0
        self.begun = worker.start(chat.begin)
        self.attach(files)

    def run(self) -> int:
        """Converse until they leave, and close the chat; return the exit status."""
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

    def saved(self) -> str:
        """Whether the chat is saved, and how to resume it."""
        session, problem = self.chat.session, self.chat.not_saved
        if session is None:
            return "not saved (--no-save)"
        turns = session.saved_turns
        saved = "saved" if problem is None else f"not saved{f' after turn {turns}' * (turns > 0)}"
        how = f"; resume with: mlxchat --session {shlex.quote(session.name)}"
        return f"{saved}{f': {problem}' if problem else ''}{how if turns or not problem else ''}"

    @property
    def conversation(self) -> Conversation:
        return self.chat.conversation

    def wait_for_model(self) -> None:
        """Wait until the conversation has begun. Raises what loading raises, and for a signal."""
        with waiting(f"loading {self.chat.model_name} …", self.messages.quiet or self.begun.done()):
            self.worker.wait(self.begun)

    def work(self, job: Callable[[], T]) -> T:
        """Let the worker do the job, which signals ask to `stop`, once the model is loaded."""
        self.wait_for_model()
        # From now on: before the job has begun, a signal would only end the wait for it.
        with self.worker.stoppable() as self.stop:
            return self.worker.call(job)

    def attach(self, files: Found) -> None:
        """Put the texts of files before the next message: once, however their paths are written."""
        for each, text in files:
            key = each.name if each.is_passing else os.path.realpath(str(each.source))
            name, _ = self.attached.get(key, (each.name, ""))
            self.attached[key] = name, heading(name) + text

    @property
    def documents(self) -> str:
        """What is attached, before the next message."""
        return "".join(text + SEPARATOR for _, text in self.attached.values())

    @contextmanager
    def answering(
        self, begin: Begin, is_enough: Callable[[], bool] = lambda: False
    ) -> Iterator[Iterator[Said]]:
        """The reply as it comes, in `work`, with progress before it; it takes `seconds`. It ends
        early if it `is_enough`, or if it cannot be shown any more."""
        begun_s, is_lost = time.perf_counter(), False
        with self.watching(lambda: is_lost or is_enough()) as watch, closing(begin(watch)) as reply:
            try:
                yield reply
            except OutputError:
                # All ranks end it together: else, their caches could not be saved.
                is_lost = True
                for _ in reply:
                    pass
                raise
        self.seconds = time.perf_counter() - begun_s

    @contextmanager
    def watching(self, is_enough: Callable[[], bool] = lambda: False) -> Iterator[Watch]:
        """Shows the progress of a turn, and stops it if signals ask for it, or it `is_enough`."""
        with progress(self.messages.quiet) as line:
            self._wrote = Count(line, "writing", "tokens")

            def on_end() -> None:
                self.stop.over()
                # Nothing may be printed into the line.
                line.stop()

            stop = led(self.chat.ranks.lead, [asked(lambda: is_enough() or self.stop.requested())])
            yield Watch(
                on_encode=Count(line, "tokenizing", "characters"),
                on_prefill=Count(line, "reading", "tokens"),
                on_note=Count(line, "writing a note", "tokens"),
                should_stop=lambda: stop(None) is not None,
                on_end=on_end,
            )


class PipedChat(Talk):
    """Answers turns in order, on standard output: as text, as code, or as JSON Lines."""

    def __init__(
        self,
        chat: Chat,
        worker: Worker,
        shown: ChatShown,
        turns: Iterator[Spoken],
        *,
        hides_thoughts: bool,
        files: Found = (),
        answer: Answer,
        constraint: Constraint | None = None,
    ) -> None:
        """`answer` is the form of all answers, `constraint` that of those without their own."""
        super().__init__(chat, worker, shown, files)
        self._turns, self._hides_thoughts = turns, hides_thoughts
        self._form, self._constraint = answer, constraint
        self._stdout = Stdout()
        self._status = ExitStatus.OK
        # For notices about constraints: what only the finished answer is checked for.
        self._warn_once = cache(self.messages.warn)

    def converse(self) -> int:
        self.wait_for_model()
        if self.shown.events:
            self.work(lambda: self._stdout.write(self._start()))
        try:
            # Only replies are ended gracefully: during the wait for a line, a signal kills at once.
            while (spoken := self._next()) is not None:
                self.work(partial(self._take, spoken))
                if self.stop.status is not None:
                    return self.stop.status
        except DeviceError as error:
            self._stdout.end_line()
            raise DeviceError(f"{error}; {self.saved()}") from error
        return self._status

    def _next(self) -> Spoken | None:
        """The next turn, which rank 0 reads. None after the last; the other ranks end when the
        chat is closed, for whatever reason."""
        ranks = self.chat.ranks
        spoken = self.worker.read(lambda: next(self._turns, None)) if ranks.leads else None
        if spoken is None and ranks.leads:
            return None
        return self.worker.call(lambda: ranks.same(lambda: spoken))

    def _take(self, spoken: Spoken) -> None:
        """Answer the turn. An error costs this turn only."""
        # The turns of a resumed session count.
        self._turn = len(self.conversation.turns) + 1
        hides, tokenizer = self._hides_thoughts, self.conversation.model.tokenizer
        self._events = EventWriter(tokenizer, hides_thoughts=hides, turn=self._turn)
        self._text = TextWriter(hides_thoughts=hides, extracts=self._form.extract)
        # Notices that would be within a line of the reply.
        self._has_begun, self._later = False, list[str]()
        if spoken.notice is not None:
            self.messages.warn(spoken.notice)
        try:
            with self.chat.ranks.turn():
                if spoken.error is not None:
                    raise spoken.error
                if spoken.role == "system":
                    self.conversation.set_system(spoken.text)
                else:
                    self._reply_to(spoken)
        except MlxchatError as error:
            if self.shown.events:
                self._stdout.write(self._done(error))
            if isinstance(error, DeviceError | RanksError | OutputError):
                raise
            self._stdout.end_line()
            line = f"{spoken.line}, " if spoken.line else ""
            asked = first_words(spoken.text[spoken.documents :])
            whose = "" if spoken.error else f'; not answered: {line}"{asked}"'
            show_error(f"{error}{whose}")
            self._status = error.exit_status

    def _reply_to(self, spoken: Spoken) -> None:
        self._obeyed = constraint_in(spoken.others) or self._constraint
        if self._obeyed is not None:
            check_ranks(self.chat.ranks, constraint=self._obeyed.kind)
            for notice in self._obeyed.notices:
                self._warn_once(notice)
        prefill = spoken.others.get("prefill")
        if not isinstance(prefill, str | None):
            raise UsageError("prefill must be text")
        attached = self.chat.ranks.same(lambda: self.documents)
        documents = len(attached) + spoken.documents
        how = {"documents": documents, "prefill": prefill or self._form.prefill}
        begin = partial(self.chat.say, attached + spoken.text, constraint=self._obeyed, **how)
        last, is_seen = "", self._stdout.is_seen and not self._form.extract
        try:
            with self.answering(begin, lambda: self._text.has_code) as reply:
                self._has_begun = True
                if self.shown.events:
                    self.stop.before_leaving = lambda: self._stdout.write(self._done())
                for count, said in enumerate(reply, 1):
                    text = self._written(said)
                    self._stdout.write(text)
                    last = text or last
                    if not is_seen:
                        self._wrote(count, None)
                text = self._done() if self.shown.events else self._text.end()
                # Without text, or code to extract, there is no line to end.
                is_open = (text or last)[-1:] not in "\n" and (text or not self._form.extract)
                self._stdout.write(f"{text}\n" if is_open else text)
        finally:
            for notice in self._later:
                self.messages.warn(notice)
            if len(self.conversation.turns) == self._turn:
                self.attached.clear()
        assert self.conversation.stats is not None
        stats = self._text.judged(self.conversation.stats)
        if stats.prompt_tokens:
            self.messages.stats(turn_line(self._turn, stats, self.seconds), self.shown.stats)
        if stats.complete is False:
            self.messages.warn(incomplete(stats))
            self._status = self._status or ExitStatus.INCOMPLETE
        elif stats.finish_reason == "loop":
            self._status = self._status or ExitStatus.LOOP

    def take_leave(self) -> None:
        stats = self.conversation.stats and self._text.judged(self.conversation.stats)
        if self.chat.not_saved is not None:
            self.messages.warn(self.saved())
        elif stats is not None and (self.stop.status or stats.finish_reason in ("length", "loop")):
            kept = self.saved()
            if stats.finish_reason == "interrupted" and len(self.conversation.turns) < self._turn:
                kept = "no answer had begun, so the message is not saved"
            self.messages.note(f"stopped ({stats.finish_reason}): {kept}")

    def _start(self) -> str:
        conversation, session = self.conversation, self.chat.session
        model, settings = conversation.model, conversation.settings
        facts = {"session": session and session.name, "keep": conversation.window.pinned}
        events = EventWriter(model.tokenizer)
        return events.start(model.name, facts, settings, conversation.sampling)

    def _written(self, said: Said) -> str:
        if not isinstance(said, Change):
            return (self._events if self.shown.events else self._text).token(said)
        if self.shown.events:
            return self._events.change(said)
        (self._later.append if self._text.answer else self.messages.warn)(window_line(said))
        return ""

    def _done(self, error: MlxchatError | None = None) -> str:
        conversation = self.conversation
        stats = conversation.stats if self._has_begun else nothing_done(conversation.cache)
        assert stats is not None
        value = value_of(self._obeyed, conversation.turns[-1].reply) if stats.complete else None
        spelled = stats.problem if error is None else str(error)
        name, seed = conversation.model.name, conversation.reply_seed
        return self._events.done(stats, name, seed, error=spelled, value=value)
