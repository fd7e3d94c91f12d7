"""A chat in a pipe: reads one turn per line, writes replies or events, and ends with the input."""

import shlex
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from mlxchat.app.answer import constraint_in, is_whole, value_of
from mlxchat.app.chat import Chat
from mlxchat.app.events import EventWriter
from mlxchat.app.ranks import check_ranks
from mlxchat.chat.turn import Change, Said
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
from mlxchat.paths import __version__
from mlxchat.request import Answer
from mlxchat.terminal.figures import first_words, incomplete, turn_line, window_line
from mlxchat.terminal.messages import Messages, show_error
from mlxchat.terminal.progress import Bar, progress, waiting
from mlxchat.terminal.text_output import Stdout
from mlxchat.terminal.worker import Stop, Worker
from mlxchat.text.documents import Spoken
from mlxchat.text.extract import extract_code, is_settled
from mlxchat.text.pieces import ThoughtsAsText


@dataclass(frozen=True, slots=True)
class PipeOptions:
    """Output of a chat in a pipe: JSON Lines if `as_events`, else text; `stats` go to stderr.
    `constraint` is that of all turns without their own."""

    as_events: bool
    hides_thoughts: bool
    stats: bool
    answer: Answer = field(default_factory=Answer)
    constraint: Constraint | None = None


class PipedChat:
    """Answers turns in order, on standard output."""

    def __init__(
        self, chat: Chat, worker: Worker, options: PipeOptions, messages: Messages
    ) -> None:
        self._chat, self._worker = chat, worker
        self._options = options
        self._messages = messages
        self._stdout = Stdout()
        self._turn = 0
        self._lacks_code = self._has_code = False
        self._named: set[str] = set()
        self._status = ExitStatus.OK
        self._stop = Stop()

    def run(self, turns: Iterator[Spoken]) -> int:
        """Answer each turn; return the exit status."""
        with waiting(f"loading {self._chat.model_name} …", self._messages.quiet):
            self._conversation = self._worker.call(self._chat.begin)
        self._worker.call(self._start)
        try:
            while (spoken := self._worker.read(lambda: next(turns, None))) is not None:
                # Only replies are ended gracefully: while waiting for the next line, a signal ends
                # the process immediately.
                self._worker.call(partial(self._answer, spoken))
                # Known here only: until the end, the main thread takes signals.
                if self._stop.status is not None:
                    return self._status or self._stop.status
        except DeviceError as error:
            self._stdout.end_line()
            raise DeviceError(f"{error}; {self._how_to_resume()}") from error
        return self._status

    def _answer(self, spoken: Spoken) -> None:
        """Answer the turn, unless a signal stops it."""
        with (
            progress("reading", "tokens", self._messages.quiet) as bar,
            self._worker.stoppable() as self._stop,
        ):
            try:
                self._take(spoken, self._stop, bar)
            except (DeviceError, RanksError, OutputError):
                raise
            except MlxchatError as error:
                # It costs this message only.
                bar.stop()
                self._reject(spoken, error)

    def _reject(self, spoken: Spoken, error: MlxchatError) -> None:
        """Report why a message was not answered."""
        self._stdout.end_line()
        whose = "" if spoken.error else f'; not answered: "{first_words(spoken.text)}"'
        show_error(f"{error}{whose}")
        self._status = error.exit_status

    def _how_to_resume(self) -> str:
        session = self._chat.session
        if session is None:
            return "the chat was not saved (--no-save)"
        if self._chat.not_saved is not None:
            return f"the chat was not saved: {self._chat.not_saved}"
        return f"--session {shlex.quote(session.name)} continues the chat"

    def _start(self) -> None:
        if not self._options.as_events:
            return
        conversation, session = self._conversation, self._chat.session
        settings = asdict(conversation.settings)
        settings["keep"] = conversation.view.pinned_tokens
        facts: dict[str, Any] = {
            "version": __version__,
            "model": conversation.model.name,
            "session": None if session is None else session.name,
            **settings,
            **asdict(conversation.sampling),
        }
        self._stdout.write(self._events().start(facts))

    def _take(self, spoken: Spoken, stop: Stop, bar: Bar) -> None:
        stop.say = bar.say_anyway
        if spoken.notice is not None:
            self._messages.warn(spoken.notice)
        # The turns of a resumed session count.
        self._turn = len(self._conversation.turns) + 1
        started_s = time.perf_counter()

        def on_end() -> None:
            stop.over()
            bar.stop()

        try:
            if spoken.error is not None:
                raise spoken.error
            if spoken.role == "system":
                self._conversation.set_system(spoken.text)
                return
            constraint = constraint_in(spoken.others) or self._options.constraint
            if constraint is not None:
                check_ranks(self._chat.ranks, constraint=constraint.kind)
                self._name_unenforced(constraint)
            reply = self._chat.say(
                spoken.text,
                on_encode=bar.counting("tokenizing", "characters"),
                on_prefill=bar.counting("reading", "tokens"),
                should_stop=lambda: self._has_code or stop.requested(),
                constraint=constraint,
                prefill=_prefill_in(spoken) or self._options.answer.prefill,
                on_end=on_end,
            )
        except MlxchatError as error:
            if self._options.as_events:
                self._stdout.write(self._not_begun(error))
            raise
        with closing(reply):
            for piece in self._pieces(reply, constraint, stop):
                self._stdout.write(piece)
        stats = self._conversation.stats
        assert stats is not None
        seconds = time.perf_counter() - started_s
        self._messages.stats(turn_line(self._turn, stats, seconds), self._options.stats)
        if stats.complete is False or self._lacks_code:
            self._messages.warn(incomplete(stats))
            self._status = self._status or ExitStatus.INCOMPLETE

    def _name_unenforced(self, constraint: Constraint) -> None:
        """Report, once each, what only the finished answer is checked for."""
        for notice in constraint.notices:
            if notice not in self._named:
                self._named.add(notice)
                self._messages.warn(notice)

    def _pieces(
        self, reply: Iterator[Said], constraint: Constraint | None, stop: Stop
    ) -> Iterator[str]:
        if self._options.as_events:
            return self._event_pieces(reply, constraint, stop)
        if self._options.answer.extracts:
            return self._extracted(reply)
        return self._text_pieces(reply)

    def _extracted(self, reply: Iterator[Said]) -> Iterator[str]:
        """The first or last code block of the answer, which ends with the first one if that is
        wanted."""
        self._has_code = False
        answer, wanted = "", self._options.answer
        for said in reply:
            if isinstance(said, Change):
                self._warn(said)
            elif not said.thought:
                answer += said.text
                if "\n" in said.text:
                    self._has_code = is_settled(answer, last=wanted.extract_last)
        assert self._conversation.stats is not None
        self._lacks_code = not is_whole(wanted, answer, self._conversation.stats.finish_reason)
        text = extract_code(answer, last=wanted.extract_last)
        yield text if text.endswith("\n") else f"{text}\n"

    def _event_pieces(
        self, reply: Iterator[Said], constraint: Constraint | None, stop: Stop
    ) -> Iterator[str]:
        events = self._events()
        stop.before_leaving = lambda: self._stdout.write(self._done(events, constraint))
        try:
            for said in reply:
                if isinstance(said, Change):
                    yield events.change(said)
                elif not (said.thought and self._options.hides_thoughts):
                    yield events.token(said)
        except MlxchatError as error:
            yield self._done(events, constraint, error)
            raise
        yield self._done(events, constraint)

    def _text_pieces(self, reply: Iterator[Said]) -> Iterator[str]:
        thoughts = ThoughtsAsText(hidden=self._options.hides_thoughts)
        last = ""
        for said in reply:
            if isinstance(said, Change):
                self._warn(said)
                continue
            text = thoughts.add(said.text, said.thought)
            last = text or last
            yield text
        if not last.endswith("\n"):
            yield "\n"

    def _warn(self, change: Change) -> None:
        self._messages.warn(window_line(change))

    def _done(
        self,
        events: EventWriter,
        constraint: Constraint | None,
        error: MlxchatError | None = None,
    ) -> str:
        conversation = self._conversation
        stats, model, seed = conversation.stats, conversation.model.name, conversation.reply_seed
        assert stats is not None
        spelled = stats.problem if error is None else str(error)
        value = value_of(constraint, conversation.turns[-1].reply) if stats.complete else None
        return events.done(stats, model, seed, error=spelled, value=value)

    def _not_begun(self, error: MlxchatError) -> str:
        stats, model = nothing_done(self._conversation.cache), self._conversation.model.name
        seed = self._conversation.reply_seed
        return self._events().done(stats, model, seed, error=str(error))

    def _events(self) -> EventWriter:
        return EventWriter(self._conversation.model.tokenizer, False, self._turn or None)


def _prefill_in(spoken: Spoken) -> str | None:
    """The beginning of the answer in the fields of a turn. Raises UsageError."""
    prefill = spoken.others.get("prefill")
    if prefill is not None and not isinstance(prefill, str):
        raise UsageError("prefill must be text")
    return prefill
