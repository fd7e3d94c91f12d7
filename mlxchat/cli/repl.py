"""The chat on a terminal: read a line, answer it or obey it, and again."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import chain
from typing import Any

from mlxchat import paths
from mlxchat.app.loading import Loading
from mlxchat.app.setup import fit_window, load_model
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.turn import Forgot
from mlxchat.cli.chat_setup import ChatRequest, new_conversation
from mlxchat.cli.commands import COMMANDS, run_command
from mlxchat.cli.keeper import Keeper, template_args_of
from mlxchat.cli.piped_chat import forgotten_line, turn_line
from mlxchat.cli.setup import find_model
from mlxchat.cli.signals import StopRequest, Terminated
from mlxchat.distributed.ranks import Ranks
from mlxchat.engine.generate import Token
from mlxchat.errors import (
    CacheError,
    DeviceError,
    ExitStatus,
    MlxchatError,
    SnapshotError,
    TemplateError,
)
from mlxchat.failures import device_failures
from mlxchat.models.model import Model
from mlxchat.models.resolve import ResolvedModel
from mlxchat.store.background import Written
from mlxchat.store.session import Session
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.plain_input import EndOfInput, PlainInput
from mlxchat.terminal.progress import Bar, progress
from mlxchat.terminal.reply import reply_view
from mlxchat.terminal.restore import restorer, say_on_own_line
from mlxchat.terminal.screen import Screen, is_dumb
from mlxchat.terminal.typeahead import Released, held_typeahead
from mlxchat.units import beginning, count, format_bytes

# Characters of the last message that are shown as its session is continued: it may hold files.
MOST_SHOWN_AGAIN = 2_000


class Repl:
    """A chat with a person. Commands change it through what is public here."""

    def __init__(
        self,
        request: ChatRequest,
        messages: Messages,
        session: Session | None,
        ranks: Ranks | None = None,
    ) -> None:
        self.request = request
        self._ranks = ranks
        self.screen = Screen()
        self._notices: list[str] = []
        self.keeper = Keeper(session, self._notices.append, exact=request.exact)
        self._prefixes = request.prefixes(self._notices.append)
        self.attached: list[str] = []
        self.think = request.think
        self.figures = ""
        self._messages = messages
        self._conversation: Conversation | None = None
        self._found = find_model(request.setup, messages)
        self._loading = Loading(lambda: self._load(self._found))
        self._released: Released = nullcontext
        # The terminal as the shell left it, before anything is held.
        self._restore = restorer()
        self.editor = PlainInput() if is_dumb() else self._line_editor()

    def run(self) -> int:
        """Until the user leaves; returns the exit status."""
        try:
            with held_typeahead() as released:
                self._released = released
                self._converse()
            self._leave()
        finally:
            written = self.keeper.close(self._conversation)
            self._prefixes.close()
        self._say_where_it_is_saved(written)
        return ExitStatus.OK

    def _converse(self) -> None:
        """Until the user leaves."""
        self.screen.say(f"{self._found.name} · /help · Ctrl-D leaves")
        self._show_last_exchange()
        draft = ""
        with suppress(EndOfInput):
            while True:
                # Ctrl-C may come between a reply, for which it was meant, and the prompt.
                with suppress(KeyboardInterrupt):
                    draft = self._turn(draft)

    def _turn(self, draft: str) -> str:
        """Read once and do as it says; returns a draft for the next prompt."""
        text = self._read(draft)
        try:
            with device_failures():
                return self._obey(text)
        except DeviceError as error:
            if self._loading.failed:
                raise
            self.screen.complain(f"{error}; everything said so far is kept")
        except MlxchatError as error:
            if self._loading.failed or isinstance(error, SnapshotError):
                # Without a model, or with a session that cannot go on, there is no chat.
                raise
            self.screen.complain(str(error))
        except KeyboardInterrupt:
            # While something else than a reply took its time: what was typed is not lost.
            self.screen.say("stopped")
            return text
        finally:
            if self._conversation is not None:
                self.keeper.record(self._conversation)
            self._say_notices()
        return ""

    def _read(self, draft: str) -> str:
        # The line editor of a terminal that moves its cursor needs settings of its own, and gets
        # from the held ones to them and back, so that there is no moment in which keys are echoed.
        with self._released() if is_dumb() else nullcontext():
            return self.editor.read(draft)

    def _obey(self, text: str) -> str:
        """Do as a line says; returns a draft for the next prompt."""
        if text.startswith("/") and not text.startswith("//"):
            return run_command(self, text) or ""
        self.answer(self._with_attached(text.removeprefix("/") if text[:2] == "//" else text))
        return ""

    def _leave(self) -> None:
        if self._loading.is_done:
            return
        # MLX cannot be interrupted while it reads weights, and must not outlive the interpreter.
        sys.stdout.flush()
        os._exit(ExitStatus.OK)

    # What commands use

    @property
    def conversation(self) -> Conversation:
        """The conversation, as soon as its model is loaded."""
        if self._conversation is None:
            if not self._loading.is_done:
                with self.screen.waiting(f"loading {self._found.name} …"):
                    self._loading.wait()
            conversation = self._begin(self._loading.wait())
            self.keeper.begin(conversation, self._found, self.request.setup.dtype)
            self._say_notices()
            self._conversation = conversation
        return self._conversation

    def edit(self, text: str) -> str:
        """Let the user change the text in an editor. Raises InputError."""
        with self._released():
            return self.editor.edit(text)

    def answer(self, text: str | None) -> None:
        """Say it to the model and show the reply; None answers the last message again."""
        conversation = self.conversation
        with StopRequest(self._restore) as stop, progress("reading", "tokens", False) as bar:
            how = _watched_by(bar, stop)
            reply = conversation.retry(**how) if text is None else conversation.say(text, **how)
            self._show(reply, stop, bar)

    def continue_reply(self) -> None:
        """Let the last reply continue, and show how."""
        with StopRequest(self._restore) as stop, progress("reading", "tokens", False) as bar:
            reply = self.conversation.continue_reply(**_watched_by(bar, stop))
            self._show(reply, stop, bar)

    def set_sampling(self, changes: dict[str, Any]) -> None:
        """Change how tokens are drawn, from now on and with whatever model."""
        setup, conversation = self.request.setup, self.conversation
        conversation.sampling = replace(conversation.sampling, **changes)
        seed = changes.pop("seed", setup.seed)
        setup = replace(setup, sampling={**setup.sampling, **changes}, seed=seed)
        self.request = replace(self.request, setup=setup)

    def set_template_args(self, args: dict[str, Any]) -> None:
        """Change some of the template's variables, and save them with the session."""
        conversation = self.conversation
        conversation.set_template_args({**conversation.template_args, **args})
        self.keeper.describe(conversation, self._found, self.request.setup.dtype)

    def change_model(self, name: str) -> None:
        """Go on with the same conversation and another model, which reads what is retained."""
        setup = replace(self.request.setup, model=name)
        found = find_model(setup, self._messages)
        with self.screen.waiting(f"loading {found.name} …"):
            model = Loading(lambda: self._load(found)).wait()
        # Until all of it has gone well, the old one stays.
        window = fit_window(setup, model, self._notices.append)
        sampling = setup.sampling_settings(model.generation_config)
        new = self.conversation.with_model(model, window, sampling)
        self._found, self._conversation = found, new
        self.keeper.describe(new, found, self.request.setup.dtype)

    def change_session(self, session: Session) -> None:
        """Leave this conversation, saved as it is, and continue another session with the arguments
        of its template."""
        conversation = self.conversation
        args = template_args_of(conversation.template_args, session, given=())
        self.keeper.close(conversation)
        conversation.resume(None, [])
        self.keeper = Keeper(session, self._notices.append, exact=self.request.exact)
        try:
            conversation.set_template_args(args)
        except (CacheError, TemplateError) as error:
            self._notices.append(f"without this session's template arguments: {error}")
        self.keeper.begin(conversation, self._found, self.request.setup.dtype)
        self._show_last_exchange()

    def save_in(self, session: Session) -> None:
        """Save the conversation, which was not saved so far, from now on."""
        self.keeper = Keeper(session, self._notices.append)
        self.keeper.describe(self.conversation, self._found, self.request.setup.dtype)

    # The model

    def _load(self, found: ResolvedModel) -> Model:
        return load_model(self.request.setup, found, self._notices.append, ranks=self._ranks)

    def _begin(self, model: Model) -> Conversation:
        conversation = new_conversation(self.request, model, self._notices.append, self._prefixes)
        self._say_notices()
        return conversation

    # What is saved

    def _show_last_exchange(self) -> None:
        """Where a session that goes on had come to."""
        session = self.keeper.session
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

    def _say_where_it_is_saved(self, written: Written | None) -> None:
        session = self.keeper.session
        self._say_notices()
        if session is None or self._conversation is None or not self._conversation.turns:
            return
        took = ""
        if written is not None:
            took = f" ({format_bytes(written.size_bytes)} in {written.seconds:.2f} s)"
        name = shlex.quote(session.name)
        self.screen.say(f"saved{took}: mlxchat --session {name} goes on with it")

    def _say_notices(self) -> None:
        for notice in self._notices:
            self.screen.say(notice)
        self._notices.clear()

    # The prompt

    def _line_editor(self) -> Any:
        from mlxchat.terminal.editor import Editor

        helps = {name: each.help for name, each in COMMANDS.items()}
        history = paths.history_file() if self.request.save else None
        return Editor(history_file=history, commands=helps, toolbar=self._toolbar)

    def _toolbar(self) -> str:
        conversation = self._conversation
        if conversation is None:
            return f"{self._found.name} · {'ready' if self._loading.is_done else 'loading …'}"
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

    def _with_attached(self, text: str) -> str:
        whole = "\n\n".join([*self.attached, text])
        self.attached.clear()
        return whole

    # The reply

    def _show(self, reply: Iterator[Token | Forgot], stop: StopRequest, bar: Bar) -> None:
        draws_rows = not (self.request.plain or is_dumb())
        say = self.screen.say_below if draws_rows else say_on_own_line
        stop.say = lambda text: bar.say(text) or say(text)
        stop.before_leaving(bar.stop)
        started_s = time.perf_counter()
        forgotten: list[Forgot] = []
        # The message first: whatever happens, it has been said.
        self.keeper.record(self.conversation)
        try:
            first = self._tell_what_was_forgotten_before(reply)
            with self._view() as view:
                for said in chain(first, reply):
                    if isinstance(said, Forgot):
                        forgotten.append(said)
                    else:
                        self.keeper.show(said)
                        view.add(said.text, said.thought)
                if stop.obeyed() and draws_rows:
                    self.screen.clear_below()
                view.finish()
        except KeyboardInterrupt:
            # The second one, while the first had no effect yet.
            pass
        finally:
            stop.obeyed()
            # Whatever is said of the reply must not be said into the bar.
            bar.stop()
            self.keeper.turn_over(self.conversation)
        for each in forgotten:
            self.screen.rule(forgotten_line(each))
        self._close(time.perf_counter() - started_s)
        if stop.status not in (None, ExitStatus.INTERRUPTED):
            raise Terminated(stop.status)

    def _tell_what_was_forgotten_before(
        self, reply: Iterator[Token | Forgot]
    ) -> list[Token | Forgot]:
        """Draw the rules that belong above the reply; return the reply's beginning."""
        for said in reply:
            if not isinstance(said, Forgot):
                return [said]
            self.screen.rule(forgotten_line(said))
        return []

    def _view(self) -> Any:
        # Thoughts of a model that cannot be stopped from thinking are hidden.
        thinking = "on" if self.think == "on" else "hide"
        return reply_view(plain=self.request.plain, thinking=thinking)

    def _close(self, seconds: float) -> None:
        conversation = self.conversation
        stats = conversation.stats
        if stats is None:
            return
        self.figures = turn_line(len(conversation.turns), stats, seconds)
        if stats.finish_reason == "interrupted":
            self.screen.say("stopped")
        elif stats.finish_reason == "length":
            self.screen.say("cut at its most tokens: /continue lets it go on")
        self._messages.stats(self.figures, self.request.stats)


def _watched_by(bar: Bar, stop: StopRequest) -> dict[str, Any]:
    return {
        "on_encode": bar.counting("tokenizing", "characters"),
        "on_prefill": bar.counting("reading", "tokens"),
        "should_stop": stop.requested,
    }
