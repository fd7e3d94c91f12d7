"""A chat on a terminal: the prompt, replies as they come, and status.

The main thread reads; `work` lets the worker do what computes, and show it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from mlxchat.app.chat import Chat
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.turn import Change, Said, Turn
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.reply import Stats
from mlxchat.errors import DeviceError, ExitStatus, MlxchatError, OutputError
from mlxchat.terminal.figures import compacted_line, incomplete, turn_line, window_line
from mlxchat.terminal.leaving import Terminated
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.modes import HeldKeys
from mlxchat.terminal.plain_input import PlainInput, edit
from mlxchat.terminal.progress import Bar, progress, waiting
from mlxchat.terminal.reply import PlainView, ReplyView, reply_view
from mlxchat.terminal.screen import Screen, is_dumb, terminal_stream, wait_for_pipe
from mlxchat.terminal.worker import Stop, Worker
from mlxchat.text.documents import SEPARATOR
from mlxchat.units import beginning, count

# Characters of the last message shown when a session resumes; it may contain files.
MAX_SHOWN_CHARS = 2_000
# Characters shown of a line found by /recall.
MAX_QUOTED_CHARS = 200

T = TypeVar("T")

# Suggests arguments for a chat command, given their typed beginning.
Suggest = Callable[["ChatScreen", str, str], Iterable[str]]

# Starts a reply, as `Chat.say` does; takes the options of `Watching` and `on_end`.
Answer = Callable[..., Generator[Said]]


@dataclass(frozen=True, slots=True)
class ScreenOptions:
    """Options of the display: `think` is on, off or hide; replies are `plain` text or Markdown.

    `attached` are names and texts of files to put before the first message.
    """

    plain: bool = False
    think: str = "on"
    stats: bool = False
    history_file: Path | None = None
    attached: tuple[tuple[str, str], ...] = ()


class ChatScreen:
    """The chat, its screen and its prompt, for slash commands to act on."""

    def __init__(
        self,
        chat: Chat,
        worker: Worker,
        options: ScreenOptions,
        messages: Messages,
        *,
        helps: Mapping[str, str],
        suggest: Suggest,
    ) -> None:
        """Starts to load the model. `helps` are those of the slash commands, by name; `suggest`
        completes their arguments."""
        self.chat = chat
        self.worker = worker
        self._is_checked = Event()
        self._begun = worker.start(lambda: chat.begin(self._is_checked.set))
        # What signals ask of the latest work.
        self.stop = Stop()
        # Replies go to stdout; the prompt and everything else to the terminal.
        self.terminal = terminal_stream()
        self.screen = Screen(self.terminal)
        self.think = options.think
        self.attached: list[str] = []
        # The constraint on the next answer, and that on the last.
        self.constraint: Constraint | None = None
        self._obeyed: Constraint | None = None
        self.figures = ""
        self._tokens = 0
        self.keys = HeldKeys()
        self._view: ReplyView | None = None
        self._options = options
        self._messages = messages
        self._helps, self._suggest = helps, suggest
        if is_dumb():
            self.editor = PlainInput(worker.next_signal, self.terminal)
        else:
            self.editor = self._line_editor()

    @property
    def conversation(self) -> Conversation:
        return self.chat.conversation

    # The worker

    def wait_for_checks(self) -> None:
        """Wait until the model and the window have passed their checks, before any weights are
        read. Raises the errors of loading."""
        self.worker.wait_until(lambda: self._is_checked.is_set() or self._begun.done())
        if self._begun.done():
            self._begun.result()

    def wait_for_model(self) -> None:
        """Wait until the conversation has begun. Raises the errors of loading; KeyboardInterrupt or
        Terminated for a signal."""
        with waiting(f"loading {self.chat.model_name} …", quiet=self._begun.done()):
            self.worker.wait(self._begun)
        self.say_notices()

    def work(self, job: Callable[[], T]) -> T:
        """Let the worker do the job, once the model is loaded. Raises Terminated after it if
        a signal ends the chat."""

        def do() -> T:
            with self.worker.stoppable() as self.stop:
                return job()

        self.wait_for_model()
        try:
            return self.worker.call(do)
        finally:
            # It was meant for the work, which has just ended.
            self.worker.drop_ctrl_c()
            if self._is_ending:
                assert self.stop.status is not None
                raise Terminated(self.stop.status)

    @property
    def _is_ending(self) -> bool:
        """Whether a signal ends the chat after the work."""
        return self.stop.status not in (None, ExitStatus.INTERRUPTED)

    def go_on(self) -> None:
        """After Ctrl-Z and `fg`: the shell has had the terminal."""
        self.keys.hold()
        self._let_stand()

    def _let_stand(self) -> None:
        if self._view is not None:
            self._view.stand()

    def say_notices(self) -> None:
        for notice in self.chat.notices:
            self.screen.say(notice)
        self.chat.notices.clear()

    # The prompt

    def read(self, draft: str) -> str:
        """Return what the user types next. Raises EndOfInput."""
        if self.chat.is_ready:
            self._tokens = self.chat.conversation.tokens
        # The line editor switches from the held settings to its own and back, so that keys are
        # never echoed in between.
        with self.keys.lent() if is_dumb() else nullcontext():
            return self.editor.read(draft)

    def edit(self, text: str) -> str:
        """Let the user change the text in an editor. Raises InputError."""
        self.stop.is_terminal_lent = True
        try:
            with self.keys.lent():
                return edit(text, terminal=None if self._shows_replies else self.terminal)
        finally:
            self.stop.is_terminal_lent = False

    def attach_given_files(self) -> None:
        """Attach the files that were given when the chat was started."""
        for name, text in self._options.attached:
            self.attach(name, text)

    def attach(self, name: str, text: str) -> None:
        """Put the text of a file before the next message."""
        self.attached.append(text)
        self.screen.say(f"attached {name} ({len(text):,} characters)")

    def quote(self, line: str, turn: int) -> None:
        """Put a line of an earlier turn before the next message."""
        self.attached.append(f"> {line}")
        self.screen.say(f"your next message will quote turn {turn}: {line[:MAX_QUOTED_CHARS]}")

    def _line_editor(self) -> Any:
        from mlxchat.terminal.editor import Editor

        history = self._options.history_file
        return Editor(
            history_file=history,
            commands=self._helps,
            toolbar=self._toolbar,
            suggest=lambda command, typed: self._suggest(self, command, typed),
            next_signal=self.worker.next_signal,
            terminal=None if self._shows_replies else self.terminal,
        )

    @property
    def _shows_replies(self) -> bool:
        """Whether stdout is the terminal."""
        return self.terminal is sys.stdout

    def _toolbar(self) -> str:
        if not self.chat.is_ready:
            return f"{self.chat.model_name} · {'not loaded' if self._begun.done() else 'loading …'}"
        conversation = self.chat.conversation
        window = conversation.settings.max_kv_size
        held = f"{self._tokens:,}/{'∞' if window is None else f'{window:,}'}"
        parts = [conversation.model.name, held, count(len(conversation.state.retained), "turn")]
        if conversation.state.forgotten:
            parts.append(f"{len(conversation.state.forgotten)} forgotten")
        if self.attached:
            parts.append(f"{len(self.attached)} attached")
        if conversation.stats is not None and conversation.stats.decode_tokens_per_s:
            parts.append(f"{conversation.stats.decode_tokens_per_s:.1f} tok/s")
        return " · ".join(parts)

    # The reply

    def say(self, text: str) -> bool:
        """Send a message, after the attached files and quotes, and show the reply.

        False if it was taken back, because it was stopped before its reply began or is rejected:
        then what is attached, and a constraint, wait for the next message.
        """
        kept = "edit your message below, or send it again"
        if self.attached:
            kept += f" with {count(len(self.attached), 'attachment')}"
        whole = SEPARATOR.join([*self.attached, text])
        try:
            self.wait_for_model()
        except KeyboardInterrupt:
            self.screen.say(f"stopped: {kept}")
            return False
        except Terminated:
            self.chat.keep(whole)
            raise
        return self.work(lambda: self._say(whole, kept))

    def _say(self, whole: str, kept: str) -> bool:
        conversation, obeyed = self.conversation, self._obeyed
        before = len(conversation.turns)
        self._obeyed = self.constraint
        try:
            self._show(lambda **how: self.chat.say(whole, constraint=self._obeyed, **how), kept)
        except (DeviceError, OutputError):
            raise
        except MlxchatError as error:
            if len(conversation.turns) > before:
                raise
            self.screen.complain(error)
        finally:
            if self._is_ending and len(conversation.turns) == before:
                # There is no next prompt: the session has the message.
                conversation.add(Turn(whole, finish_reason="interrupted"))
            if is_said := len(conversation.turns) > before:
                self.attached.clear()
                self.constraint = None
            else:
                self._obeyed = obeyed
        return is_said

    def retry(self) -> None:
        """Answer the last message again, and show the reply."""
        kept = "the old reply stays"
        self._show(lambda **how: self.chat.retry(constraint=self._obeyed, **how), kept)

    def continue_reply(self) -> None:
        """Continue the last reply, and show it."""
        self._show(self.chat.continue_reply)

    def compact(self, words: str) -> None:
        """Replace all turns in view but the last with a note, and show it."""
        with progress("reading", "tokens", False) as bar:
            self.stop.say = bar.say_anyway
            compacted = self.chat.compact(
                words,
                on_encode=bar.counting("tokenizing", "characters"),
                on_prefill=bar.counting("reading", "tokens"),
                on_note=bar.counting("writing a note", "tokens"),
                should_stop=self.stop.requested,
            )
            self.stop.over()
        if compacted is None:
            self.screen.say("stopped: nothing has changed")
        else:
            self.screen.rule(compacted_line(compacted))
            self.screen.say(compacted.note)
            self.screen.say("/compact edit changes the note, /undo takes it back")

    def show_last_exchange(self) -> None:
        """Show the last turn of a resumed session."""
        session = self.chat.session
        turns = session.journal.contents.turns if session is not None else []
        if session is None or not turns:
            return
        forgotten = sum(turn.forgotten for turn in turns)
        also = f", {forgotten:,} forgotten" if forgotten else ""
        self.screen.rule(f"{session.name}: {count(len(turns), 'turn')}{also}; the last one")
        self.screen.say(f"> {beginning(turns[-1].user, MAX_SHOWN_CHARS)}")
        with self._new_view() if self._shows_replies else PlainView(self.terminal) as view:
            for thought in turns[-1].thoughts:
                view.begin_another_thought()
                view.add(thought, True)
            view.add(turns[-1].reply)
            view.finish()

    def _show(self, answer: Answer, kept: str = "") -> None:
        """Show the answer; `kept` says what is as before if it is stopped before it begins."""
        last = self.conversation.state.last
        started_s = time.perf_counter()
        with progress("reading", "tokens", False) as bar:
            forgotten = self._show_until_it_ends(answer, bar)
        for each in forgotten:
            self._show_change(each)
        if kept and self.conversation.state.last is last:
            self.screen.say(f"stopped: {kept}")
        else:
            self._show_end(time.perf_counter() - started_s)

    def _show_until_it_ends(self, answer: Answer, bar: Bar) -> list[Change]:
        """Show the reply as it comes; return what was forgotten or recalled meanwhile."""
        forgotten: list[Change] = []

        def say(text: str) -> None:
            bar.say_anyway(text)
            # The reply goes on below the notice.
            self._let_stand()

        def on_end() -> None:
            self.stop.over()
            # Nothing may be printed into the bar.
            bar.stop()

        self.stop.say = say
        reply = answer(
            on_encode=bar.counting("tokenizing", "characters"),
            on_prefill=bar.counting("reading", "tokens"),
            should_stop=self.stop.requested,
            on_end=on_end,
        )
        with closing(reply):
            first = self._draw_what_was_forgotten_before(reply)
            with self._new_view() as self._view:
                for said in chain(first, reply):
                    if isinstance(said, Change):
                        forgotten.append(said)
                    else:
                        if said.another:
                            self._view.begin_another_thought()
                        self._view.add(said.text, said.thought)
                self._view.finish()
        if not self._shows_replies:
            wait_for_pipe()
        return forgotten

    def _draw_what_was_forgotten_before(self, reply: Iterator[Said]) -> list[Said]:
        """Draw the rules that belong above the reply; return the start of the reply."""
        for said in reply:
            if not isinstance(said, Change):
                return [said]
            self._show_change(said)
        return []

    def _show_change(self, change: Change) -> None:
        self.screen.rule(window_line(change))

    def _new_view(self) -> ReplyView:
        # "off" hides the thoughts of models that think regardless.
        thinking = "on" if self.think == "on" else "hide"
        # JSON is not Markdown.
        is_json = self._obeyed is not None
        return reply_view(plain=self._options.plain or is_json, thinking=thinking)

    def _show_end(self, seconds: float) -> None:
        stats = self.chat.conversation.stats
        if stats is None:
            return
        if stats.complete is False:
            self.screen.say(incomplete(stats))
        self.figures = turn_line(len(self.chat.conversation.turns), stats, seconds)
        if stats.finish_reason == "interrupted":
            self.screen.say("stopped")
        elif stats.finish_reason == "length":
            self.screen.say(self._cut_off(stats))
        elif stats.finish_reason == "stop" and not stats.generated_tokens:
            self.screen.say("the reply is empty: /retry asks again")
        self._messages.stats(self.figures, self._options.stats)

    def _cut_off(self, stats: Stats) -> str:
        maximum = self.chat.conversation.generation.max_tokens
        if 0 < maximum <= stats.generated_tokens:
            return (
                f"stopped at {count(maximum, 'token')} (max-tokens): /continue continues the reply"
            )
        return "stopped: the window is full"
