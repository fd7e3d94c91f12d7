"""The chat on a terminal: read a line, answer it or obey it, and again."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from mlxchat import paths
from mlxchat.cli.chat_setup import ChatRequest, new_conversation
from mlxchat.cli.commands import COMMANDS, run_command
from mlxchat.cli.loading import Loading
from mlxchat.cli.piped_chat import forgotten_line, turn_line
from mlxchat.cli.setup import find_model, load_model
from mlxchat.cli.signals import StopRequest, Terminated
from mlxchat.conversation import Conversation, Forgot
from mlxchat.errors import ExitStatus, MlxchatError
from mlxchat.generate import Token
from mlxchat.models.load import Model
from mlxchat.models.resolve import ResolvedModel
from mlxchat.settings import SamplingSettings
from mlxchat.terminal.messages import Messages
from mlxchat.terminal.plain_input import EndOfInput, PlainInput
from mlxchat.terminal.progress import progress
from mlxchat.terminal.reply import reply_view
from mlxchat.terminal.screen import Screen, is_dumb
from mlxchat.terminal.typeahead import held_typeahead
from mlxchat.units import count

THINK_TAGS = ("<think>", "</think>")


class Repl:
    """A chat with a person. Commands change it through what is public here."""

    def __init__(self, request: ChatRequest, messages: Messages) -> None:
        self.request = request
        self.screen = Screen()
        self.attached: list[str] = []
        self.think = request.think
        self.retries = 0
        self.figures = ""
        self._messages = messages
        self._conversation: Conversation | None = None
        self.sampling: SamplingSettings = request.setup.sampling_settings({})
        self._found = find_model(request.setup, messages)
        self._notices: list[str] = []
        self._loading = Loading(lambda: self._load(self._found))
        self.editor = PlainInput() if is_dumb() else self._line_editor()

    def run(self) -> int:
        """Until the user leaves; returns the exit status."""
        self.screen.say(f"{self._found.name} · /help · Ctrl-D leaves")
        draft = ""
        try:
            while True:
                draft = self._turn(draft)
        except EndOfInput:
            self._leave()
        return ExitStatus.OK

    def _turn(self, draft: str) -> str:
        """Read once and do as it says; returns a draft for the next prompt."""
        text = self.editor.read(draft)
        try:
            if text.startswith("/") and not text.startswith("//"):
                return run_command(self, text) or ""
            self.retries = 0
            self.answer(self._with_attached(text.removeprefix("/") if text[:2] == "//" else text))
        except MlxchatError as error:
            if self._loading.failed:
                # Without a model there is no chat.
                raise
            self.screen.complain(str(error))
        except KeyboardInterrupt:
            # While something else than a reply took its time: what was typed is not lost.
            self.screen.say("stopped")
            return text
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
            self._conversation = self._begin(self._loading.wait())
        return self._conversation

    def answer(self, text: str | None) -> None:
        """Say it to the model and show the reply; None answers the last message again."""
        conversation = self.conversation
        # Each turn, and each retry of it, draws from a stream of its own.
        seed = self.request.setup.seed if self.sampling.seed is None else self.sampling.seed
        seed += len(conversation.turns) + 1_000_003 * self.retries
        conversation.sampling = replace(self.sampling, seed=seed % 2**64)
        with StopRequest() as stop, progress("reading", "tokens", False) as on_prefill:
            how: dict[str, Any] = {"on_prefill": on_prefill, "should_stop": stop.requested}
            reply = conversation.retry(**how) if text is None else conversation.say(text, **how)
            self._show(reply, stop)

    def go_on(self) -> None:
        """Let the last reply continue, and show how."""
        with StopRequest() as stop:
            self._show(self.conversation.go_on(should_stop=stop.requested), stop)

    def change_model(self, name: str) -> None:
        """Go on with the same conversation and another model, which reads what is retained."""
        setup = replace(self.request.setup, model=name)
        found = find_model(setup, self._messages)
        with self.screen.waiting(f"loading {found.name} …"):
            model = Loading(lambda: self._load(found)).wait()
        old = self.conversation
        # Until all of it has gone well, the old one stays.
        new = self._begin(model)
        new.set_system(old.system)
        for turn in old.turns:
            # Another tokenizer spells otherwise.
            new.turns.append(replace(turn, ids=None, exact=False))
        self._found, self._conversation = found, new

    # The model

    def _load(self, found: ResolvedModel) -> Model:
        return load_model(self.request.setup, found, self._notices.append)

    def _begin(self, model: Model) -> Conversation:
        conversation = new_conversation(self.request, model, self._notices.append)
        for notice in self._notices:
            self.screen.say(notice)
        self._notices.clear()
        self.sampling = conversation.sampling
        return conversation

    # The prompt

    def _line_editor(self) -> Any:
        from mlxchat.terminal.editor import Editor

        helps = {name: each.help for name, each in COMMANDS.items()}
        return Editor(history_file=paths.history_file(), commands=helps, toolbar=self._toolbar)

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
        if conversation.stats is not None:
            parts.append(f"{conversation.stats.decode_tokens_per_s:.1f} tok/s")
        return " · ".join(parts)

    def _with_attached(self, text: str) -> str:
        whole = "\n\n".join([*self.attached, text])
        self.attached.clear()
        return whole

    # The reply

    def _show(self, reply: Iterator[Token | Forgot], stop: StopRequest) -> None:
        started_s = time.perf_counter()
        forgotten: list[Forgot] = []
        try:
            with held_typeahead():
                first = self._tell_what_was_forgotten_before(reply)
                with self._view() as view:
                    for said in chain(first, reply):
                        if isinstance(said, Forgot):
                            forgotten.append(said)
                        else:
                            view.add(said.text)
                    view.finish()
        except KeyboardInterrupt:
            # The second one, while the first had no effect yet.
            pass
        for each in forgotten:
            self.screen.rule(forgotten_line(each))
        self._close(time.perf_counter() - started_s)
        if stop.status is ExitStatus.TERMINATED:
            raise Terminated

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
        return reply_view(
            plain=self.request.plain,
            thinking="hide" if self.think == "hide" else "on",
            think_tags=THINK_TAGS,
            inside_thinking=self.conversation.begins_in_thought,
        )

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
