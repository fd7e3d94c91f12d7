"""A chat in a pipe: reads one turn per line, writes replies or events, and ends with the input."""

import shlex
from collections.abc import Iterator, Sequence
from functools import partial

from mlxchat.app.answer import constraint_in, is_whole, value_of
from mlxchat.app.chat import Chat
from mlxchat.app.events import EventWriter
from mlxchat.app.ranks import check_ranks
from mlxchat.chat.state import Change, Said
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.reply import nothing_done
from mlxchat.engine.sampling import Token
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
from mlxchat.text.extract import extract_code, is_settled
from mlxchat.text.reply_reader import ThoughtsAsText


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
        self._has_begun = self._lacks_code = self._has_code = False
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
        events = EventWriter(model.tokenizer, False)
        self._stdout.write(events.start(model.name, facts, settings, conversation.sampling))

    def _take(self, spoken: Spoken) -> None:
        """Answer the turn. An error costs this turn only."""
        # The turns of a resumed session count.
        self._turn = len(self.conversation.turns) + 1
        self._events = EventWriter(self.conversation.model.tokenizer, False, self._turn)
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
            with self.answering(say, lambda: self._has_code) as reply:
                self._has_begun = True
                for piece in self._pieces(reply):
                    self._stdout.write(piece)
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

    def _pieces(self, reply: Iterator[Said]) -> Iterator[str]:
        if self._shown.events:
            return self._lines(reply)
        tokens = self._tokens(reply)
        return self._code(tokens) if self._answer.extract else self._text(tokens)

    def _lines(self, reply: Iterator[Said]) -> Iterator[str]:
        self.stop.before_leaving = lambda: self._stdout.write(self._done())
        for said in reply:
            if isinstance(said, Change):
                yield self._events.change(said)
            elif not (said.thought and self._hides_thoughts):
                yield self._events.token(said)
        yield self._done()

    def _done(self, error: MlxchatError | None = None) -> str:
        conversation = self.conversation
        stats = conversation.stats if self._has_begun else nothing_done(conversation.cache)
        assert stats is not None
        value = value_of(self._obeyed, conversation.turns[-1].reply) if stats.complete else None
        spelled = stats.problem if error is None else str(error)
        name, seed = conversation.model.name, conversation.reply_seed
        return self._events.done(stats, name, seed, error=spelled, value=value)

    def _tokens(self, reply: Iterator[Said]) -> Iterator[Token]:
        for said in reply:
            if isinstance(said, Change):
                self.messages.warn(window_line(said))
            else:
                yield said

    def _text(self, tokens: Iterator[Token]) -> Iterator[str]:
        thoughts = ThoughtsAsText(hidden=self._hides_thoughts)
        last = ""
        for token in tokens:
            text = thoughts.add(token.text, token.thought)
            last = text or last
            yield text
        if not last.endswith("\n"):
            yield "\n"

    def _code(self, tokens: Iterator[Token]) -> Iterator[str]:
        """The first code block of the answer, which ends with it."""
        answer = ""
        for token in tokens:
            if not token.thought:
                answer += token.text
                if "\n" in token.text:
                    self._has_code = is_settled(answer)
        assert self.conversation.stats is not None
        self._lacks_code = not is_whole(answer, self.conversation.stats.finish_reason)
        text = extract_code(answer)
        yield text if text.endswith("\n") else f"{text}\n"


def _prefill_in(spoken: Spoken) -> str | None:
    """The beginning of the answer in the fields of a turn. Raises UsageError."""
    prefill = spoken.others.get("prefill")
    if prefill is not None and not isinstance(prefill, str):
        raise UsageError("prefill must be text")
    return prefill
