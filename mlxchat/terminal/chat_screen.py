"""A chat on the screen of a terminal: replies as they come, and what is known about them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from mlxchat.app.chat import Chat
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.turn import Forgot, Said
from mlxchat.errors import ExitStatus
from mlxchat.terminal.figures import forgotten_line, turn_line
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.plain_input import PlainInput
from mlxchat.terminal.progress import Bar, progress, waiting
from mlxchat.terminal.reply import reply_view
from mlxchat.terminal.restore import restorer, say_on_own_line
from mlxchat.terminal.screen import Screen, is_dumb
from mlxchat.terminal.signals import StopRequest, Terminated
from mlxchat.terminal.typeahead import Released
from mlxchat.units import beginning, count

# Characters of the last message that are shown as its session is resumed: it may hold files.
MOST_SHOWN_AGAIN = 2_000

# Watched and ended as it is told, this yields a reply: `Chat.say` and its like.
Answer = Callable[..., Generator[Said]]


@dataclass(frozen=True, slots=True)
class ScreenOptions:
    """How a chat is shown: `think` is on, off or hide; replies are `plain` text or Markdown.

    `attached` are names and texts of files that go before the first message.
    """

    plain: bool = False
    think: str = "on"
    stats: bool = False
    history_file: Path | None = None
    attached: tuple[tuple[str, str], ...] = ()


class ChatScreen:
    """What slash commands act on: the chat, its screen, its prompt, and what stands between."""

    def __init__(
        self,
        chat: Chat,
        options: ScreenOptions,
        messages: Messages,
        commands: Mapping[str, str],
        settable: Collection[str],
    ) -> None:
        """`commands` are helps by name, for completion; `settable` is what /set takes."""
        self.chat = chat
        self.screen = Screen(settable)
        self.think = options.think
        self.attached: list[str] = []
        self.figures = ""
        self.released: Released = nullcontext
        self._options = options
        self._messages = messages
        # The terminal as the shell left it, before anything is held.
        self._restore = restorer()
        self.editor = PlainInput() if is_dumb() else self._line_editor(commands)

    def ready_chat(self) -> Chat:
        """The chat, as soon as its model is loaded and its cache made, which runs the model."""
        if not self.chat.is_ready:
            with waiting(f"loading {self.chat.model_name} …", quiet=False):
                self.chat.begin()
            self.say_notices()
        return self.chat

    @property
    def conversation(self) -> Conversation:
        return self.ready_chat().conversation

    def say_notices(self) -> None:
        for notice in self.chat.notices:
            self.screen.say(notice)
        self.chat.notices.clear()

    # The prompt

    def read(self, draft: str) -> str:
        """What the user types next. Raises EndOfInput."""
        # The line editor of a terminal that moves its cursor needs settings of its own, and gets
        # from the held ones to them and back, so that there is no moment in which keys are echoed.
        with self.released() if is_dumb() else nullcontext():
            return self.editor.read(draft)

    def edit(self, text: str) -> str:
        """Let the user change the text in an editor. Raises InputError."""
        with self.released():
            return self.editor.edit(text)

    def attach_given_files(self) -> None:
        """Attach the files that were given when the chat was started."""
        for name, text in self._options.attached:
            self.attach(name, text)

    def attach(self, name: str, text: str) -> None:
        """Put the text of a file before the next message."""
        self.attached.append(text)
        self.screen.say(f"{name}: {len(text):,} characters, before your next message")

    def with_attached(self, text: str) -> str:
        """The message, after the files that wait for it."""
        whole = "\n\n".join([*self.attached, text])
        self.attached.clear()
        return whole

    def _line_editor(self, commands: Mapping[str, str]) -> Any:
        from mlxchat.terminal.editor import Editor

        history = self._options.history_file
        return Editor(history_file=history, commands=commands, toolbar=self._toolbar)

    def _toolbar(self) -> str:
        if not self.chat.is_ready:
            return f"{self.chat.model_name} · {'loading …' if self.chat.is_loading else 'ready'}"
        conversation = self.chat.conversation
        window = conversation.settings.max_kv_size
        held = f"{len(conversation.held_ids):,}/{'∞' if window is None else f'{window:,}'}"
        parts = [conversation.model.name, held, count(len(conversation.retained), "turn")]
        if conversation.forgotten:
            parts.append(f"{len(conversation.forgotten)} forgotten")
        if self.attached:
            parts.append(f"{count(len(self.attached), 'file')} attached")
        if conversation.stats is not None and conversation.stats.decode_tokens_per_s:
            parts.append(f"{conversation.stats.decode_tokens_per_s:.1f} tok/s")
        return " · ".join(parts)

    # The reply

    def say(self, text: str) -> None:
        """Say it to the model, and show the reply."""
        chat = self.ready_chat()
        self._show(lambda **how: chat.say(text, **how))

    def retry(self) -> None:
        """Have the last message answered again, and show how."""
        self._show(self.chat.retry)

    def continue_reply(self) -> None:
        """Let the last reply continue, and show how."""
        self._show(self.chat.continue_reply)

    def show_last_exchange(self) -> None:
        """What was said last in a session that is resumed."""
        session = self.chat.session
        turns = session.journal.contents.turns if session is not None else []
        if session is None or not turns:
            return
        forgotten = sum(turn.forgotten for turn in turns)
        said = f"{session.name}: {count(len(turns), 'turn')}, {forgotten:,} forgotten"
        self.screen.rule(f"{said}; this was the last")
        self.screen.say(f"> {beginning(turns[-1].user, MOST_SHOWN_AGAIN)}")
        with self._view() as view:
            view.add(turns[-1].thought, True)
            view.add(turns[-1].reply)
            view.finish()

    def _show(self, answer: Answer) -> None:
        with StopRequest(self._restore) as stop, progress("reading", "tokens", False) as bar:
            started_s = time.perf_counter()
            forgotten = self._show_until_it_ends(answer, stop, bar)
            for each in forgotten:
                self.screen.rule(forgotten_line(each))
            self._show_figures(time.perf_counter() - started_s)
            if stop.status not in (None, ExitStatus.INTERRUPTED):
                raise Terminated(stop.status)

    def _show_until_it_ends(self, answer: Answer, stop: StopRequest, bar: Bar) -> list[Forgot]:
        """Show the reply as it comes; return what was forgotten meanwhile."""
        draws_rows = not (self._options.plain or is_dumb())
        say = self.screen.say_below if draws_rows else say_on_own_line
        stop.say = lambda text: bar.say(text) or say(text)
        stop.before_leaving(bar.stop)
        said_below = False
        forgotten: list[Forgot] = []

        def on_end() -> None:
            nonlocal said_below
            said_below = stop.obeyed() or said_below
            # Whatever is said of the reply must not be said into the bar.
            bar.stop()

        reply = answer(
            on_encode=bar.counting("tokenizing", "characters"),
            on_prefill=bar.counting("reading", "tokens"),
            should_stop=stop.requested,
            on_end=on_end,
        )
        try:
            with closing(reply):
                first = self._draw_what_was_forgotten_before(reply)
                with self._view() as view:
                    for said in chain(first, reply):
                        if isinstance(said, Forgot):
                            forgotten.append(said)
                        else:
                            if said.another:
                                view.begin_another_thought()
                            view.add(said.text, said.thought)
                    if said_below and draws_rows:
                        self.screen.clear_below()
                    view.finish()
        except KeyboardInterrupt:
            # The second one, while the first had no effect yet.
            pass
        return forgotten

    def _draw_what_was_forgotten_before(self, reply: Iterator[Said]) -> list[Said]:
        """Draw the rules that belong above the reply; return the reply's beginning."""
        for said in reply:
            if not isinstance(said, Forgot):
                return [said]
            self.screen.rule(forgotten_line(said))
        return []

    def _view(self) -> Any:
        # Thoughts of a model that cannot be stopped from thinking are hidden.
        thinking = "on" if self.think == "on" else "hide"
        return reply_view(plain=self._options.plain, thinking=thinking)

    def _show_figures(self, seconds: float) -> None:
        stats = self.chat.conversation.stats
        if stats is None:
            return
        self.figures = turn_line(len(self.chat.conversation.turns), stats, seconds)
        if stats.finish_reason == "interrupted":
            self.screen.say("stopped")
        elif stats.finish_reason == "length":
            self.screen.say("cut at its most tokens: /continue lets it go on")
        self._messages.stats(self.figures, self._options.stats)
