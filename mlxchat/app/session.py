"""Saves a chat as it goes: every message and token immediately, and the cache every few turns.

Failures are reported once, and the chat continues.
"""

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from mlxchat import paths
from mlxchat.app.opening import find_model
from mlxchat.chat.answering import leaving
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.rendering import EMPTY
from mlxchat.chat.state import State, Turn
from mlxchat.engine.sampling import Token
from mlxchat.errors import (
    DeviceError,
    ModelNotFound,
    RanksError,
    SessionError,
    SnapshotError,
    UsageError,
    device_failures,
)
from mlxchat.files import reported_as
from mlxchat.models.model import Alone, Model
from mlxchat.models.resolve import ResolvedModel
from mlxchat.options import options_of
from mlxchat.request import ChatOptions, Setup
from mlxchat.request.written import check_template_args
from mlxchat.sessions import listing
from mlxchat.sessions.records import Saved, Scalar, others_of
from mlxchat.sessions.session import Session
from mlxchat.store.snapshot import Fingerprint, ModelPrint, StateFile, Written, keep_latest
from mlxchat.units import Notify, Observer

# Turns between snapshots, and how many sessions keep a snapshot.
SNAPSHOT_EVERY = 4
SNAPSHOTS_KEPT = 10

T = TypeVar("T", ChatOptions, Setup)


def open_session(name: str | None, *, latest: bool, save: bool) -> Session | None:
    """Open the session of that name, creating it if necessary; the latest one; or a new one.
    None if nothing is to be saved. Raises SessionError."""
    if not save:
        if name is not None or latest:
            raise UsageError("a session cannot be opened without saving it")
        return None
    if name is not None:
        return Session.open(name, create=True)
    if not latest:
        return Session.new()
    name = listing.latest()
    if name is None:
        raise SessionError("no sessions to continue yet")
    return Session.open(name)


def resumed(options: ChatOptions, session: Session) -> ChatOptions:
    """The options; those not given explicitly come from the session."""
    chosen = options.chosen_fields()
    if "model" in chosen:
        # The session's adapter is for the session's model.
        chosen |= {"adapter"}
    if "system" not in chosen and session.contents.state != State():
        # The configured one is for new sessions.
        options = replace(options, system=None)
    setup = with_saved(options.setup, session, chosen)
    return with_saved(replace(options, setup=setup), session, chosen)


def find_model_of(
    session: Session | None, setup: Setup, observer: Observer, ranks: Alone
) -> ResolvedModel:
    """As `find_model`; an error says how the session can go on without its model."""
    try:
        return find_model(setup, observer, ranks)
    except ModelNotFound as error:
        # A new session has none.
        if session is None or session.contents.settings.get("model", "") != setup.model:
            raise
        how = f"-m MODEL continues session {session.name!r} with another"
        raise ModelNotFound(f"{error}: {how}") from error


def with_saved(options: T, session: Session, chosen: Collection[str] = ()) -> T:
    """The options, with those that were saved with the session and were not chosen."""
    found = session.contents.settings
    for name, each in options_of(type(options)).items():
        if each.saved and name in found and name not in chosen:
            # One that is not valid any more is ignored.
            with suppress(TypeError, ValueError, UsageError):
                value: Any = found[name]
                if each.many:
                    value = check_template_args(json.loads(value))
                each.check(value)
                options = replace(options, **{name: value})
    return options


def model_settings(found: ResolvedModel, dtype: str) -> dict[str, Scalar]:
    """The model to resume with; `dtype` is the requested one."""
    path = Path(found.name).expanduser()
    return {
        "model": str(path.resolve()) if path.exists() else found.name,
        "adapter": None if found.adapter is None else found.adapter.name,
        "dtype": dtype,
    }


def settings_of(conversation: Conversation) -> dict[str, Scalar]:
    """The other options to resume with."""
    return {
        "window": conversation.settings.max_kv_size,
        "recalls": conversation.recalls,
        "template_args": json.dumps(dict(conversation.rendering.template_args)),
    }


class Saving:
    """Saves a chat in its session, and its cache beside it: resuming need not read the transcript
    again. Only the first of several ranks has the session; all save their shards of the cache."""

    def __init__(self, session: Session | None, notify: Notify, ranks: Alone) -> None:
        self.session = session
        self._ranks = ranks
        self._notify = notify
        self._file = StateFile((session and session.snapshot_path) or Path())
        self._print: tuple[Model, ModelPrint] | None = None
        self._saved_turns = 0
        self._saved_as: Fingerprint | None = None
        self._file.failed = lambda reason: notify(f"cannot save the cache: {reason}")
        self._file.recovered = lambda: notify("the cache is saved again")
        for notice in _contents(session).notices:
            notify(notice)
        # `session search` finds from now on what a kill cut off.
        self.record(_contents(session).state)

    def resume(self, conversation: Conversation, *, system: str | None) -> None:
        """Fill the conversation with the session's contents; a system prompt replaces the saved."""
        saved = self._ranks.same(lambda: _contents(self.session))
        if saved.state != State():
            own = saved.system if system is None else system
            conversation.resume(replace(saved.state, system=own))
            if saved.state.retained:
                self._restore(conversation)

    def record(self, state: State) -> None:
        """Save all changes of the conversation."""
        self._write(lambda session: session.record(state.system, state.turns, **others_of(state)))
        if self.session is not None and self.session.recovered:
            self._notify("saving works again; nothing is missing")

    def show(self, token: Token) -> None:
        """Save text of the current reply, before it is shown."""
        self._write(lambda session: session.show(token.text, token.thought))

    def describe(self, settings: Mapping[str, Scalar]) -> None:
        """Save options to resume with."""
        self._write(lambda session: session.settings(settings))

    def keep(self, sent: Turn, system: str | None) -> None:
        """Save a message sent before the conversation began, which is not saved after that."""
        state = _contents(self.session).state.add(sent)
        self.record(state if system is None else replace(state, system=system))
        self.close(None)
        self.session = None

    def turn_over(self, conversation: Conversation) -> None:
        """Save the finished turn, and every few turns start saving the cache."""
        self.record(conversation.state)
        due = abs(len(conversation.turns) - self._saved_turns) >= SNAPSHOT_EVERY
        if due and self._ranks.same(lambda: not self._file.background.busy):
            self._save_cache(conversation)

    def close(self, conversation: Conversation | None) -> Written | None:
        """Save everything and unlock the session; return the size and time of the snapshot."""
        try:
            if conversation is not None:
                self.record(conversation.end_reply())
                if self._ranks.at_rest:
                    self._save_cache(conversation)
            self._file.background.wait()
            self._see_result()
            keep_latest(paths.sessions_dir(), "[0-9]*.safetensors", SNAPSHOTS_KEPT)
        finally:
            if self.session is not None:
                self.session.close()
        return self._file.background.written

    def _restore(self, conversation: Conversation) -> None:
        path, window = self._file.path, conversation.window
        self._saved_turns = len(conversation.turns)
        try:
            with device_failures(), reported_as(SnapshotError, f"read {path}"):
                fingerprint = self._fingerprint(conversation)
                restored = self._file.restore(conversation.model, window.cache, fingerprint)
        except (SnapshotError, DeviceError) as error:
            self._notify(f"{error}: the text will be read again")
            return
        if restored is not None:
            held, cleared = restored.facts.get("turns", []), conversation.state.cleared
            size = restored.facts.get("reply_characters")
            for turn in conversation.turns[held[-1] - 1 : held[-1]] if held else ():
                if size not in (None, len(turn.thought + turn.reply)):
                    # Its reply has changed since then: the chat was killed.
                    held = [*held, len(conversation.turns) + 1]
            # Also one that was taken back since then: the window still has it.
            window.turns = tuple(n for n in held if n > cleared)
            window.cache, window.ledger = restored.cache, restored.ledger
            # What was forgotten since then was announced when it was.
            rendering, state = conversation.rendering, conversation.state
            forgotten, tokens = leaving(rendering, state, window)
            if forgotten and window.evict(rendering.ids(state), tokens):
                window.turns = tuple(n for n in window.turns if n not in forgotten)
            self._saved_as = self._fingerprint(conversation)

    def _save_cache(self, conversation: Conversation) -> None:
        model, window, turns = conversation.model, conversation.window, len(conversation.turns)
        path = self._ranks.same(lambda: _snapshot_path(self.session))
        if path is None:
            return
        if not window.turns or any(number > turns for number in window.turns):
            # A file may not keep what was taken back.
            window, state, rendering = window.fork(), conversation.state, conversation.rendering
            held = window.become(rendering.ids(state.add(EMPTY)))
            # If it had evicted what is in view again, it holds only the beginning.
            is_whole = held >= window.pinned + rendering.tokens_of(state, *state.retained)
            window.turns = state.in_view if is_whole else ()
        if len(window.ledger) == 0:
            # Nor what a change made useless.
            is_stale = turns < self._saved_turns
            if self._saved_as is not None and not is_stale:
                with suppress(DeviceError), device_failures():
                    is_stale = self._saved_as != self._fingerprint(conversation)
            if is_stale and self._ranks.leads:
                self._file.background.wait()
                with suppress(OSError):
                    path.unlink()
            return
        self._see_result()
        self._saved_turns = turns
        # A new session gets its file with its first turn.
        self._file.path = path
        facts: dict[str, Any] = {"turns": list(window.turns)}
        if window.turns:
            last = conversation.turns[window.turns[-1] - 1]
            facts["reply_characters"] = len(last.thought + last.reply)
        # A lost rank ends the chat, and is reported then.
        with suppress(RanksError):
            try:
                with device_failures():
                    self._saved_as = self._fingerprint(conversation)
                    self._file.save(model, window.cache, window.ledger, self._saved_as, facts)
            except (SnapshotError, DeviceError) as error:
                self._file.report(error)

    def _fingerprint(self, conversation: Conversation) -> Fingerprint:
        model, ledger = conversation.model, conversation.ledger
        if self._print is None or self._print[0] is not model:
            self._print = model, ModelPrint(model)
        return self._print[1].of(ledger.window, ledger.keep, conversation.state.system_text)

    def _see_result(self) -> None:
        """Report the result of the last snapshot, once it is known."""
        if self.session is not None and self.session.outage is not None:
            # One warning is enough.
            self._file.background.take_result()
        self._file.report()

    def _write(self, save: Callable[[Session], object]) -> None:
        try:
            if self.session is not None:
                save(self.session)
        except SessionError as error:
            self._notify(str(error))


def _contents(session: Session | None) -> Saved:
    return Saved() if session is None else session.contents


def _snapshot_path(session: Session | None) -> Path | None:
    """Where to save the cache; None while nothing can be saved, and for a single question."""
    if session is None or session.outage is not None or session.is_question:
        return None
    return session.snapshot_path
