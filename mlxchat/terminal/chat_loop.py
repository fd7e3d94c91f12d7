"""A chat on a terminal: read a line, answer it or run its command, repeat."""

import re
import signal
from contextlib import suppress

from mlxchat import paths
from mlxchat.chat.state import State
from mlxchat.errors import (
    ClosedPipe,
    DeviceError,
    ExitStatus,
    MlxchatError,
    SnapshotError,
    device_failures,
)
from mlxchat.terminal import is_dumb
from mlxchat.terminal.chat_screen import ChatScreen
from mlxchat.terminal.commands import COMMANDS, as_command, run_command, suggestions
from mlxchat.terminal.editor import Editor, EndOfInput, PlainInput
from mlxchat.terminal.settable import as_in_chat
from mlxchat.terminal.worker import ending_by
from mlxchat.units import count


class ChatLoop(ChatScreen):
    """A chat with a person, until they leave."""

    # How much of the window is used at the prompt, and by what.
    _tokens, _counted = 0, None

    def converse(self) -> int:
        self.worker.keys.hold()
        # Takes a moment, in which the model is loaded.
        self._editor = PlainInput(self.worker) if is_dumb() else self._new_editor()
        with suppress(EndOfInput):
            name, session = self.shown.session, self.chat.session
            # The name may be mistyped.
            is_new = name and session is not None and session.snapshot_path is None
            new = f"new session {name} · " if is_new else ""
            print("" if is_dumb() else "\r\x1b[K", end="")  # what was typed comes at the prompt
            self.screen.say(f"{self.chat.model_name} · {new}/help for commands · Ctrl-D to leave")
            self.say_notices()
            self.show_last_exchange()
            if self.attached:
                run_command(self, "/file")
            draft = ""
            while True:
                # Ctrl-C may arrive between a reply, for which it was meant, and the prompt.
                with suppress(KeyboardInterrupt):
                    draft = self._turn(draft)
        return ExitStatus.OK

    def _turn(self, draft: str) -> str:
        """Read and process one line; return a draft for the next prompt."""
        self._counted = None
        keys = self.worker.keys
        with keys.lent() if is_dumb() else keys.edited():
            text = self._editor.read(draft)
        try:
            with device_failures():
                if (command := as_command(text)) is not None:
                    return run_command(self, command) or ""
                # What makes it a message is no part of it. A comment that is pasted stays as it is.
                marked = re.fullmatch(r"//(?!\s).*", text) or as_command(text.removeprefix(" "))
                return "" if self.say(text[1:] if marked else text) else text
        except KeyboardInterrupt:
            # Something other than a reply was interrupted: keep the typed text.
            self.screen.say("stopped")
            return text
        except (MlxchatError, OSError) as error:
            # Without a model, or with a session that cannot be resumed, there is no chat.
            has_failed = self.begun.done() and not self.chat.is_ready
            if has_failed or isinstance(error, ClosedPipe | SnapshotError):
                raise
            lost = "; nothing said so far is lost" if isinstance(error, DeviceError) else ""
            self.screen.complain(as_in_chat(f"{error}{lost}"))
            return ""
        finally:
            self.chat.save()
            self.say_notices()

    def _new_editor(self) -> Editor:
        editor = Editor(
            history_file=paths.history_file() if self.shown.save else None,
            commands={each.usage: each.help for each in COMMANDS.values()},
            toolbar=self._toolbar,
            suggest=lambda command, typed: suggestions(self, command, typed),
            ended_by=self._ended_by,
            news=lambda: self.say_notices if self.begun.done() and self.chat.notices else None,
        )
        self.worker.keys.take = editor.take_typed
        return editor

    def _ended_by(self) -> BaseException | None:
        """What ends the prompt: a signal, or that the model cannot be loaded."""
        # A Ctrl-C was for what came before.
        for number in self.worker.signals_so_far():
            if number in (signal.SIGTERM, signal.SIGHUP):
                return ending_by(number)
        return self.begun.exception() if self.begun.done() else None

    def _toolbar(self) -> str:
        if not self.chat.is_ready:
            return f"{self.chat.model_name} · loading …"
        conversation = self.conversation
        window = conversation.settings.max_kv_size
        if self._counted is not conversation.state:
            self._counted, tokens = conversation.state, conversation.tokens
            self._tokens = min(tokens, window or tokens)
        held = f"{self._tokens:,}/{'∞' if window is None else f'{window:,}'}"
        parts = [conversation.model.name, held, count(len(conversation.turns), "turn")]
        if conversation.state.forgotten:
            parts.append(f"{len(conversation.state.forgotten)} forgotten")
        if self.attached:
            parts.append(f"{len(self.attached)} attached")
        if self.constraint is not None:
            parts.append("JSON next")
        if conversation.stats is not None and conversation.stats.decode_tokens_per_s:
            parts.append(f"{conversation.stats.decode_tokens_per_s:.1f} tok/s")
        return " · ".join(parts)

    def take_leave(self) -> None:
        """Say where the chat is saved."""
        self.say_notices()
        state = self.conversation.state if self.chat.is_ready else State()
        if self.attached:
            self.screen.say(f"{count(len(self.attached), 'attachment')} not sent")
        if (session := self.chat.session) is not None and session.is_emptied:
            self.screen.say("no turn is left, so this chat is not kept")
        elif session is not None and (state.turns or state.remembered or session.snapshot_path):
            self.screen.say(self.saved())
