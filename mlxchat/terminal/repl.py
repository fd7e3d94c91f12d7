"""The chat on a terminal: read a line, answer it or run its command, repeat."""

from __future__ import annotations

import shlex
from contextlib import suppress

from mlxchat.app.chat import Chat
from mlxchat.errors import (
    ClosedPipe,
    DeviceError,
    ExitStatus,
    MlxchatError,
    SnapshotError,
    device_failures,
)
from mlxchat.store.state_file import Written
from mlxchat.terminal.chat_screen import ScreenOptions
from mlxchat.terminal.commands import screen_with_commands
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.modes import unread_bytes
from mlxchat.terminal.plain_input import EndOfInput
from mlxchat.terminal.slash import as_command, run_command, without_draft
from mlxchat.terminal.worker import Worker
from mlxchat.units import format_bytes


class Repl:
    """A chat with a person until they leave; then the chat is closed."""

    def __init__(
        self, chat: Chat, worker: Worker, options: ScreenOptions, messages: Messages
    ) -> None:
        self._chat, self._worker = chat, worker
        self._shown = screen_with_commands(chat, worker, options, messages)
        worker.when_continued = self._shown.go_on

    def run(self) -> int:
        """Return the exit status."""
        try:
            with self._shown.keys:
                self._converse()
        finally:
            written = self._worker.call_last(self._chat.close)
        self._show_where_it_is_saved(written)
        return ExitStatus.OK if self._chat.not_saved is None else ExitStatus.FAILURE

    def _converse(self) -> None:
        """Read and answer until the user leaves."""
        if self._chat.has_given_window:
            # Before any weights are read, this checks that the template fits into it.
            self._shown.wait_for_checks()
        self._shown.screen.say(f"{self._chat.model_name} · /help for commands · Ctrl-D to leave")
        self._shown.say_notices()
        self._shown.show_last_exchange()
        self._shown.attach_given_files()
        draft = ""
        with suppress(EndOfInput):
            while True:
                # Ctrl-C may arrive between a reply, for which it was meant, and the prompt.
                with suppress(KeyboardInterrupt):
                    draft = self._turn(draft)

    def _turn(self, draft: str) -> str:
        """Read and process one line; return a draft for the next prompt."""
        text = without_draft(self._shown.read(draft), draft)
        screen = self._shown.screen
        try:
            with device_failures():
                return self._obey(text)
        except DeviceError as error:
            if self._chat.has_failed:
                raise
            screen.complain(f"{error}; nothing said so far is lost")
        except ClosedPipe:
            raise
        except MlxchatError as error:
            if self._chat.has_failed or isinstance(error, SnapshotError):
                # Without a model, or with a session that cannot be resumed, there is no chat.
                raise
            screen.complain(error)
        except KeyboardInterrupt:
            # Something other than a reply was interrupted: keep the typed text.
            screen.say("stopped")
            return text
        finally:
            self._chat.save()
            self._shown.say_notices()
        return ""

    def _obey(self, text: str) -> str:
        """Run the command or send the message; return a draft for the next prompt."""
        command = as_command(text)
        if command is not None:
            return run_command(self._shown, command) or ""
        message = text.removeprefix("/") if text[:2] == "//" else text
        if self._shown.say(message):
            return ""
        # What was typed meanwhile gets its own line.
        return f"{text}\n" if unread_bytes(0) else text

    def _show_where_it_is_saved(self, written: Written | None) -> None:
        session = self._chat.session
        self._shown.say_notices()
        if session is None or not self._chat.is_ready or not self._chat.conversation.turns:
            return
        saved = "saved"
        if self._chat.not_saved is not None:
            turns = session.journal.saved_turns
            after = f" after turn {turns}" if turns else ""
            saved = f"not saved{after}: {self._chat.not_saved}"
            if not turns:
                self._shown.screen.say(saved)
                return
        elif written is not None:
            saved = f"saved ({format_bytes(written.size_bytes)} in {written.seconds:.2f} s)"
        resume = f"--session {shlex.quote(session.name)}"
        self._shown.screen.say(f"{saved}; resume with: mlxchat {resume}")
