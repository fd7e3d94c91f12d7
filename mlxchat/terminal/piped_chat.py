"""A chat in a pipe: reads one turn per line, writes replies or events, and ends with the input."""

import shlex
from collections.abc import Iterator, Sequence
from functools import partial

from mlxchat.app.chat import Chat
from mlxchat.app.events import EventWriter, value_of
from mlxchat.app.prompt import constraint_in
from mlxchat.app.ranks import check_ranks
from mlxchat.app.run import TextWriter
from mlxchat.chat.state import Change, Said
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.reply import nothing_done
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
from mlxchat.terminal.figures import first_words, incomplete, turn_line, window_line
from mlxchat.terminal.output import Messages, Stdout, show_error
from mlxchat.terminal.talk import Talk
from mlxchat.terminal.worker import Worker
from mlxchat.text.documents import Spoken


class PipedChat(Talk):
    """Answers turns in order, on standard output: as text, as code, or as JSON Lines."""

    def __init__(
        self,
        chat: Chat,
        worker: Worker,
        messages: Messages,
        shown: ChatShown,
        turns: Iterator[Spoken],
        *,
        hides_thoughts: bool,
        attached: Sequence[str] = (),
        answer: Answer,
        constraint: Constraint | None = None,
    ) -> None:
        """`answer` is the form of all answers, `constraint` that of those without their own."""
        super().__init__(chat, worker, messages, attached)
        self._turns, self._shown, self._hides_thoughts = turns, shown, hides_thoughts
        self._answer, self._constraint = answer, constraint
        self._stdout = Stdout()
        self._status = ExitStatus.OK
        self._turn = 0
        self._has_begun = self._lacks_code = False
        self._named: set[str] = set()

    def converse(self) -> int:
        self.wait_for_model()
        if self._shown.events:
            self.work(self._start)
        try:
            # Only replies are ended gracefully: while waiting for the next line, a signal ends the
            # process immediately.
            while (spoken := self.worker.read(lambda: next(self._turns, None))) is not None:
                self.work(partial(self._take, spoken))
                if self.stop.status is not None:
                    return self._status or self.stop.status
        except DeviceError as error:
            self._stdout.end_line()
            raise DeviceError(f"{error}; {self._how_to_resume()}") from error
        return self._status

    def _how_to_resume(self) -> str:
        session = self.chat.session
        if session is None:
            return "the chat was not saved (--no-save)"
        if self.chat.not_saved is not None:
            return f"the chat was not saved: {self.chat.not_saved}"
        return f"--session {shlex.quote(session.name)} continues the chat"

    def _start(self) -> None:
        conversation, session = self.conversation, self.chat.session
        model, settings = conversation.model, conversation.settings
        name = None if session is None else session.name
        facts = {"session": name, "keep": conversation.window.pinned}
        events = EventWriter(model.tokenizer)
        self._stdout.write(events.start(model.name, facts, settings, conversation.sampling))

    def _take(self, spoken: Spoken) -> None:
        """Answer the turn. An error costs this turn only."""
        # The turns of a resumed session count.
        self._turn = len(self.conversation.turns) + 1
        hides, tokenizer = self._hides_thoughts, self.conversation.model.tokenizer
        self._events = EventWriter(tokenizer, hides_thoughts=hides, turn=self._turn)
        self._text = TextWriter(hides_thoughts=hides, extracts=self._answer.extract)
        self._has_begun = False
        if spoken.notice is not None:
            self.messages.warn(spoken.notice)
        try:
            if spoken.error is not None:
                raise spoken.error
            if spoken.role == "system":
                self.conversation.set_system(spoken.text)
            else:
                self._reply_to(spoken)
        except MlxchatError as error:
            if self._shown.events:
                self._stdout.write(self._done(error))
            if isinstance(error, DeviceError | RanksError | OutputError):
                raise
            self._stdout.end_line()
            whose = "" if spoken.error else f'; not answered: "{first_words(spoken.text)}"'
            show_error(f"{error}{whose}")
            self._status = error.exit_status

    def _reply_to(self, spoken: Spoken) -> None:
        self._obeyed = constraint_in(spoken.others) or self._constraint
        if self._obeyed is not None:
            check_ranks(self.chat.ranks, constraint=self._obeyed.kind)
            self._name_unenforced(self._obeyed)
        say = partial(
            self.chat.say,
            self.with_attachments(spoken.text),
            constraint=self._obeyed,
            prefill=_prefill_in(spoken) or self._answer.prefill,
        )
        try:
            with self.answering(say, lambda: self._text.has_code) as reply:
                self._has_begun = True
                self._write_lines(reply) if self._shown.events else self._write_text(reply)
        finally:
            if len(self.conversation.turns) == self._turn:
                self.attached.clear()
        stats = self.conversation.stats
        assert stats is not None
        self.messages.stats(turn_line(self._turn, stats, self.seconds), self._shown.stats)
        if stats.complete is False or self._lacks_code:
            self.messages.warn(incomplete(stats))
            self._status = self._status or ExitStatus.INCOMPLETE

    def _name_unenforced(self, constraint: Constraint) -> None:
        """Report, once each, what only the finished answer is checked for."""
        for notice in constraint.notices:
            if notice not in self._named:
                self._named.add(notice)
                self.messages.warn(notice)

    # What is written

    def _write_lines(self, reply: Iterator[Said]) -> None:
        self.stop.before_leaving = lambda: self._stdout.write(self._done())
        for said in reply:
            events = self._events
            is_change = isinstance(said, Change)
            self._stdout.write(events.change(said) if is_change else events.token(said))
        self._stdout.write(self._done())

    def _write_text(self, reply: Iterator[Said]) -> None:
        last = ""
        for said in reply:
            if isinstance(said, Change):
                self.messages.warn(window_line(said))
            elif text := self._text.token(said):
                self._stdout.write(text)
                last = text
        assert self.conversation.stats is not None
        self._lacks_code = not self._text.is_whole(self.conversation.stats.finish_reason)
        code = self._text.end()
        self._stdout.write(code if (code or last).endswith("\n") else f"{code}\n")

    def _done(self, error: MlxchatError | None = None) -> str:
        conversation = self.conversation
        stats = conversation.stats if self._has_begun else nothing_done(conversation.cache)
        assert stats is not None
        value = value_of(self._obeyed, conversation.turns[-1].reply) if stats.complete else None
        spelled = stats.problem if error is None else str(error)
        name, seed = conversation.model.name, conversation.reply_seed
        return self._events.done(stats, name, seed, error=spelled, value=value)


def _prefill_in(spoken: Spoken) -> str | None:
    """The beginning of the answer in the fields of a turn. Raises UsageError."""
    prefill = spoken.others.get("prefill")
    if prefill is not None and not isinstance(prefill, str):
        raise UsageError("prefill must be text")
    return prefill
