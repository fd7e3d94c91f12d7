"""A chat on a terminal: read a line, answer it or run its command, repeat."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from itertools import chain
from typing import Any, TypeVar

from mlxchat import paths
from mlxchat.app.chat import Chat
from mlxchat.chat.answering import Watch
from mlxchat.chat.state import Change, Said, Turn
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.reply import Stats
from mlxchat.errors import (
    ClosedPipe,
    DeviceError,
    ExitStatus,
    MlxchatError,
    OutputError,
    SnapshotError,
    device_failures,
)
from mlxchat.request.commands import ChatShown
from mlxchat.terminal import Terminated, is_dumb
from mlxchat.terminal.figures import compacted_line, incomplete, turn_line, window_line
from mlxchat.terminal.output import Messages
from mlxchat.terminal.plain_input import EndOfInput, PlainInput, edit
from mlxchat.terminal.progress import Count, progress
from mlxchat.terminal.reply import PlainView, reply_view
from mlxchat.terminal.screen import Screen
from mlxchat.terminal.slash import COMMANDS, as_command, run_command, suggestions, without_draft
from mlxchat.terminal.talk import Begin, Talk
from mlxchat.terminal.worker import Worker, ctrl_c_ignored
from mlxchat.units import beginning, count

# Characters of the last message shown when a session resumes; it may contain files.
MAX_SHOWN_CHARS = 2_000
# Characters shown of a line found by /recall.
MAX_QUOTED_CHARS = 200

T = TypeVar("T")


class ChatScreen(Talk):
    """A chat with a person, which slash commands act on."""

    def __init__(
        self,
        chat: Chat,
        worker: Worker,
        messages: Messages,
        shown: ChatShown,
        *,
        think: str = "on",
        files: Sequence[tuple[str, str]] = (),
    ) -> None:
        """`think` is on, off or hide; `files` are names and texts to put before the first
        message."""
        # Done if loading has failed, too.
        self._checks: Future[None] = Future()
        super().__init__(chat, worker, messages)
        self.begun.add_done_callback(lambda _: self.checked())
        self.screen = Screen()
        self.think = think
        # The constraint on the next answer, and that on the last.
        self.constraint: Constraint | None = None
        self._obeyed: Constraint | None = None
        self.figures = ""
        # How much of the window is used at the prompt.
        self._tokens = 0
        self.shown, self.files = shown, files

    # The conversation

    def converse(self) -> int:
        # Takes a moment, in which the model is loaded.
        self._editor = self._new_editor()
        self.worker.keys.hold()
        with suppress(EndOfInput):
            if self.chat.has_given_window:
                # Before any weights are read, this checks that the template fits into it.
                self.wait_for_checks()
            self.screen.say(f"{self.chat.model_name} · /help for commands · Ctrl-D to leave")
            self.say_notices()
            self.show_last_exchange()
            for name, text in self.files:
                self.attach(name, text)
            draft = ""
            while True:
                # Ctrl-C may arrive between a reply, for which it was meant, and the prompt.
                with suppress(KeyboardInterrupt):
                    draft = self._turn(draft)
        return ExitStatus.OK

    def _turn(self, draft: str) -> str:
        """Read and process one line; return a draft for the next prompt."""
        text = without_draft(self._read(draft), draft)
        try:
            with device_failures():
                return self._obey(text)
        except KeyboardInterrupt:
            # Something other than a reply was interrupted: keep the typed text.
            self.screen.say("stopped")
            return text
        except MlxchatError as error:
            # Without a model, or with a session that cannot be resumed, there is no chat.
            has_failed = self.begun.done() and not self.chat.is_ready
            if has_failed or isinstance(error, ClosedPipe | SnapshotError):
                raise
            lost = "; nothing said so far is lost" if isinstance(error, DeviceError) else ""
            self.screen.complain(f"{error}{lost}")
            return ""
        finally:
            self.chat.save()
            self.say_notices()

    def _obey(self, text: str) -> str:
        """Run the command or send the message; return a draft for the next prompt."""
        command = as_command(text)
        if command is not None:
            return run_command(self, command) or ""
        message = text.removeprefix("/") if text[:2] == "//" else text
        return "" if self.say(message) else text

    # The prompt

    def _read(self, draft: str) -> str:
        """Return what the user types next. Raises EndOfInput."""
        if self.chat.is_ready:
            self._tokens = self.conversation.tokens
        # The line editor switches from the held settings to its own and back, so that keys are
        # never echoed in between.
        with self.worker.keys.lent() if is_dumb() else nullcontext():
            return self._editor.read(draft)

    def _new_editor(self) -> Any:
        if is_dumb():
            return PlainInput(self.worker)
        from mlxchat.terminal.editor import Editor

        return Editor(
            history_file=paths.history_file() if self.shown.save else None,
            commands={name: each.help for name, each in COMMANDS.items()},
            toolbar=self._toolbar,
            suggest=lambda command, typed: suggestions(self, command, typed),
            next_signal=self.worker.next_signal,
        )

    def _toolbar(self) -> str:
        if not self.chat.is_ready:
            return f"{self.chat.model_name} · {'not loaded' if self.begun.done() else 'loading …'}"
        conversation = self.conversation
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

    def take_leave(self) -> None:
        """Say where the chat is saved."""
        session = self.chat.session
        self.say_notices()
        if session is None or not self.chat.is_ready or not self.conversation.turns:
            return
        turns, saved = session.saved_turns, "saved"
        if self.chat.not_saved is not None:
            after = f" after turn {turns}" if turns else ""
            saved = f"not saved{after}: {self.chat.not_saved}"
        if turns or self.chat.not_saved is None:
            saved += f"; resume with: mlxchat --session {shlex.quote(session.name)}"
        self.screen.say(saved)

    # The worker

    def checked(self) -> None:
        if not self._checks.done():
            self._checks.set_result(None)

    def wait_for_checks(self) -> None:
        """Wait until the model and the window have passed their checks. Raises the errors of
        loading."""
        self.worker.wait(self._checks)
        if self.begun.done():
            self.begun.result()

    def wait_for_model(self) -> None:
        super().wait_for_model()
        self.say_notices()

    def work(self, job: Callable[[], T]) -> T:
        """Let the worker do the job, once the model is loaded. Raises Terminated after it if
        a signal ends the chat."""
        self.wait_for_model()
        try:
            return super().work(job)
        finally:
            self.worker.drop_ctrl_c()
            if self.stop.status is not None and self.stop.ends_program:
                raise Terminated(self.stop.status)

    def say_notices(self) -> None:
        for notice in self.chat.notices:
            self.screen.say(notice)
        self.chat.notices.clear()

    def edit(self, text: str) -> str:
        """Let the user change the text in an editor. Raises InputError."""
        with self.worker.keys.lent(), ctrl_c_ignored():
            return self.worker.read(lambda: edit(text))

    # The next message

    def attach(self, name: str, text: str) -> None:
        """Put the text of a file before the next message."""
        self.attached.append(text)
        self.screen.say(f"attached {name} ({len(text):,} characters)")

    def quote(self, line: str, turn: int) -> None:
        """Put a line of an earlier turn before the next message."""
        self.attached.append(f"> {line}")
        self.screen.say(f"your next message will quote turn {turn}: {line[:MAX_QUOTED_CHARS]}")

    def say(self, text: str) -> bool:
        """Send a message, after the attached files and quotes, and show the reply.

        False if it was taken back, because it was stopped before its reply began or is rejected:
        then what is attached, and a constraint, wait for the next message.
        """
        kept = "edit your message below, or send it again"
        if self.attached:
            kept += f" with {count(len(self.attached), 'attachment')}"
        whole = self.with_attachments(text)
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
            self._show(lambda watch: self.chat.say(whole, watch, constraint=self._obeyed), kept)
        except (DeviceError, OutputError):
            raise
        except MlxchatError as error:
            if len(conversation.turns) > before:
                raise
            self.screen.complain(error)
        finally:
            if self.stop.ends_program and len(conversation.turns) == before:
                # There is no next prompt: the session has the message.
                conversation.add(Turn(whole, finish_reason="interrupted"))
            if is_said := len(conversation.turns) > before:
                self.attached.clear()
                self.constraint = None
            else:
                self._obeyed = obeyed
        return is_said

    # The reply

    def retry(self) -> None:
        """Answer the last message again, and show the reply."""
        kept = "the old reply stays"
        self._show(lambda watch: self.chat.retry(watch, constraint=self._obeyed), kept)

    def continue_reply(self) -> None:
        """Continue the last reply, and show it."""
        self._show(self.chat.continue_reply)

    def compact(self, words: str) -> None:
        """Replace all turns in view but the last with a note, and show it."""
        with progress(self.messages.quiet) as line:
            compacted = self.chat.compact(
                words,
                Watch(
                    on_encode=Count(line, "tokenizing", "characters"),
                    on_prefill=Count(line, "reading", "tokens"),
                    on_note=Count(line, "writing a note", "tokens"),
                    should_stop=self.stop.requested,
                ),
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
        turns = session.contents.turns if session is not None else []
        if session is None or not turns:
            return
        forgotten = sum(turn.forgotten for turn in turns)
        also = f", {forgotten:,} forgotten" if forgotten else ""
        self.screen.rule(f"{session.name}: {count(len(turns), 'turn')}{also}; the last one")
        self.screen.say(f"> {beginning(turns[-1].user, MAX_SHOWN_CHARS)}")
        with self._new_view() as view:
            for thought in turns[-1].thoughts:
                view.add(thought, True, True)
            view.add(turns[-1].reply)

    def _show(self, begin: Begin, kept: str = "") -> None:
        """Show the reply as it comes, and what is forgotten or recalled above or below it; `kept`
        says what is as before if it is stopped before it begins."""
        last = self.conversation.state.last
        first: list[Said] = []
        later: list[Change] = []
        with self.answering(begin) as reply:
            for said in reply:
                if not isinstance(said, Change):
                    first = [said]
                    break
                self.screen.rule(window_line(said))
            with self._new_view() as view:
                for said in chain(first, reply):
                    if isinstance(said, Change):
                        later.append(said)
                        continue
                    view.add(said.text, said.thought, said.another)
        for change in later:
            self.screen.rule(window_line(change))
        if kept and self.conversation.state.last is last:
            self.screen.say(f"stopped: {kept}")
        else:
            self._show_end()

    def _new_view(self) -> PlainView:
        # "off" hides the thoughts of models that think regardless.
        thinking = "on" if self.think == "on" else "hide"
        # JSON is not Markdown.
        return reply_view(plain=self.shown.plain or self._obeyed is not None, thinking=thinking)

    def _show_end(self) -> None:
        stats = self.conversation.stats
        if stats is None:
            return
        if stats.complete is False:
            self.screen.say(incomplete(stats))
        self.figures = turn_line(len(self.conversation.turns), stats, self.seconds)
        if stats.finish_reason == "interrupted":
            self.screen.say("stopped")
        elif stats.finish_reason == "length":
            self.screen.say(self._cut_off(stats))
        elif stats.finish_reason == "stop" and not stats.generated_tokens:
            self.screen.say("the reply is empty: /retry asks again")
        self.messages.stats(self.figures, self.shown.stats)

    def _cut_off(self, stats: Stats) -> str:
        maximum = self.conversation.generation.max_tokens
        if 0 < maximum <= stats.generated_tokens:
            return (
                f"stopped at {count(maximum, 'token')} (max-tokens): /continue continues the reply"
            )
        return "stopped: the window is full"
