"""Saves a chat as it goes: every message immediately, and the cache every few turns.

Failures are reported once, and the chat continues.
"""

import json
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxchat.app.opening import Notify
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.turn import Turn
from mlxchat.engine.sampling import Token
from mlxchat.errors import (
    DeviceError,
    RanksError,
    SessionError,
    SnapshotError,
    UsageError,
    device_failures,
)
from mlxchat.models.resolve import ResolvedModel
from mlxchat.options import Option, options_of
from mlxchat.request import ChatOptions, Setup
from mlxchat.request.template_args import check_template_args
from mlxchat.sessions import listing
from mlxchat.sessions.listing import prune_snapshots
from mlxchat.sessions.session import Session
from mlxchat.store.fingerprint import Fingerprint, ModelPrint
from mlxchat.store.state_file import Outage, StateFile, Written

# Turns between snapshots, and how many sessions keep a snapshot.
SNAPSHOT_EVERY = 4
SNAPSHOTS_KEPT = 10


def open_session(
    name: str | None = None, *, latest: bool = False, save: bool = True
) -> Session | None:
    """Open the session of that name, creating it if necessary; the latest one; or a new one.
    None if nothing is to be saved.

    Raises SessionError.
    """
    if not save:
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
    setup = replace(options.setup, **_saved(Setup, session, chosen))
    return replace(options, setup=setup, **_saved(ChatOptions, session, chosen))


def saved_template_args(session: Session) -> dict[str, Any] | None:
    """The template variables saved with the session, if any."""
    return _saved(ChatOptions, session, ()).get("template_args")


def _saved(kind: type, session: Session, chosen: Collection[str]) -> dict[str, Any]:
    """The dataclass's fields that were saved with the session. Nothing in the file is trusted."""
    found = session.contents.settings
    values: dict[str, Any] = {}
    for name, each in options_of(kind).items():
        if each.saved and name in found and name not in chosen:
            with suppress(TypeError, ValueError, RecursionError, UsageError):
                values[name] = _checked(each, found[name])
    return values


def _checked(option: Option, value: object) -> Any:
    """The value. Raises TypeError, ValueError or UsageError if it is invalid for the option."""
    if option.many:
        return check_template_args(json.loads(str(value)))
    if option.parse is not None:
        kinds = {int, type(None)}  # The window in effect, not as it was written.
    else:
        text = option.type is str or option.choices
        kinds = {str if text else bool if option.type is bool else int}
    if type(value) not in kinds:
        raise TypeError(value)
    option.check(value)
    return value if option.parse is not None else option.value_of(value)


class Keeper:
    """Saves one conversation in `session`; nothing if that is None.

    `exact`: refuse to resume a session whose state cannot be restored to the bit.
    """

    def __init__(self, session: Session | None, notify: Notify, *, exact: bool = False) -> None:
        self.session = session
        self._exact = exact
        self._notify = notify
        self._state = None if session is None else StateFile(session.snapshot_path or Path())
        self._model: tuple[Any, ModelPrint] | None = None
        self._saved_turns = 0
        self._outage = Outage(notify, "the cache is saved again")

    @property
    def saved_system(self) -> str | None:
        """The session's system prompt when it was opened."""
        return None if self.session is None else self.session.contents.system

    @property
    def saved_note(self) -> str | None:
        """The session's note when it was opened."""
        return None if self.session is None else self.session.contents.note

    def begin(self, conversation: Conversation, found: ResolvedModel, dtype: str) -> None:
        """Fill the new conversation with the contents of the session, including the cache if
        possible. A system prompt that it already has stays.

        Raises SnapshotError if the cache must be restored exactly and cannot be.
        """
        if self.session is None:
            return
        contents = self.session.contents
        for notice in contents.notices:
            self._notify(notice)
        if contents.turns or contents.system is not None:
            system = contents.system if conversation.system is None else conversation.system
            conversation.resume(system, contents.turns, contents.note)
            self._restore(conversation)
        self.describe(conversation, found, dtype)

    def rename(self, name: str) -> None:
        """Rename the session. Raises SessionError; it then keeps its name."""
        assert self.session is not None
        self.session.rename(name)

    def describe(self, conversation: Conversation, found: ResolvedModel, dtype: str) -> None:
        """Save the settings to resume with; `dtype` is the requested one."""
        if self.session is None:
            return
        session = self.session
        settings: dict[str, str | int | bool | None] = {
            **_model_settings(found, dtype),
            "window": conversation.settings.max_kv_size,
            "recalls": conversation.recalls,
            "template_args": json.dumps(conversation.template_args),
        }
        self._guarded(lambda: session.settings(settings))

    def keep(self, message: str, system: str | None, found: ResolvedModel, dtype: str) -> None:
        """Save a message that was sent before the conversation began, as one without a reply."""
        if self.session is None:
            return
        session = self.session
        turns = [*session.contents.turns, Turn(message, finish_reason="interrupted")]
        system = session.contents.system if system is None else system
        self._guarded(lambda: session.settings(_model_settings(found, dtype)))
        self._guarded(lambda: session.record(system, turns, session.contents.note))

    def record(self, conversation: Conversation) -> None:
        """Save all changes."""
        if self.session is None:
            return
        session = self.session
        system, turns, note = conversation.system, conversation.turns, conversation.note
        self._guarded(lambda: session.record(system, turns, note))
        if session.recovered:
            self._notify("saving works again; nothing is missing")

    def show(self, token: Token) -> None:
        """Save text of the current reply, before it is shown."""
        if self.session is not None:
            session = self.session
            self._guarded(lambda: session.show(token.text, token.thought))

    def turn_over(self, conversation: Conversation) -> None:
        """Save the finished turn, and every few turns start saving the cache."""
        self.record(conversation)
        if self._state is None:
            return
        due = abs(len(conversation.turns) - self._saved_turns) >= SNAPSHOT_EVERY
        if due and not self._state.background.busy:
            self._snapshot(conversation)

    def close(self, conversation: Conversation | None) -> Written | None:
        """Save everything and unlock the session; return the size and time of the snapshot."""
        if self.session is None or self._state is None:
            return None
        try:
            if conversation is not None:
                self.record(conversation)
                if conversation.turns:
                    self._snapshot(conversation)
            self._state.background.wait()
            self._see_result()
            # Deleting old snapshots can wait.
            with suppress(SessionError):
                prune_snapshots(SNAPSHOTS_KEPT)
        finally:
            self.session.close()
        return self._state.background.written

    def _snapshot(self, conversation: Conversation) -> None:
        assert self.session is not None
        assert self._state is not None
        session = self.session
        path = self.session.snapshot_path
        if path is None or len(conversation.ledger) == 0 or session.outage is not None:
            return
        self._see_result()
        self._saved_turns = len(conversation.turns)
        serials, turns = session.serials, conversation.window.turns
        # A new session gets its file with its first turn.
        self._state.path = path
        facts: dict[str, Any] = {"held": [serials[n - 1] for n in turns if n <= len(serials)]}
        # A lost rank ends the chat, and is reported then.
        with suppress(RanksError):
            try:
                with device_failures():
                    self._state.save(
                        conversation.model,
                        conversation.cache,
                        conversation.ledger,
                        self._fingerprint(conversation),
                        facts,
                    )
            except (SnapshotError, DeviceError) as error:
                self._failed(error)

    def _restore(self, conversation: Conversation) -> None:
        assert self._state is not None
        assert self.session is not None
        path = self._state.path
        self._saved_turns = len(conversation.turns)
        try:
            with device_failures():
                restored = self._state.restore(
                    conversation.model, conversation.cache, self._fingerprint(conversation)
                )
        except (SnapshotError, DeviceError) as error:
            if self._exact:
                raise
            self._notify(f"{error}: your next message reads the transcript again")
            return
        except OSError as error:
            if self._exact:
                raise SnapshotError(f"cannot read {path}: {error.strerror}") from error
            self._notify(f"cannot read {path}: {error.strerror}")
            return
        if restored is None:
            if self._exact and conversation.turns:
                raise SnapshotError(
                    f"{path} is missing: resume without --exact to read the transcript again"
                )
            return
        held = restored.facts.get("held")
        serials = set(held) if isinstance(held, list) else set[object]()
        window = conversation.window
        window.cache, window.ledger = restored.cache, restored.ledger
        window.turns = tuple(
            n for n, serial in enumerate(self.session.serials, 1) if serial in serials
        )

    def _fingerprint(self, conversation: Conversation) -> Fingerprint:
        if self._model is None or self._model[0] is not conversation.model:
            self._model = conversation.model, ModelPrint(conversation.model)
        ledger = conversation.ledger
        return self._model[1].of(ledger.window, ledger.keep, conversation.state.system_text)

    def _guarded(self, save: Callable[[], object]) -> None:
        try:
            save()
        except SessionError as error:
            self._notify(str(error))

    def _see_result(self) -> None:
        """Report the result of the last snapshot, once it is known."""
        assert self._state is not None
        assert self.session is not None
        result = self._state.background.take_result()
        if self.session.outage is not None:
            # One warning is enough.
            return
        if isinstance(result, OSError):
            self._failed(result.strerror or result)
        elif result is not None:
            self._outage.ends()

    def _failed(self, reason: object) -> None:
        self._outage.lasts(f"cannot save the cache: {reason}")


def _model_settings(found: ResolvedModel, dtype: str) -> dict[str, str | None]:
    path = Path(found.name).expanduser()
    return {
        "model": str(path.resolve()) if path.exists() else found.name,
        "adapter": None if found.adapter is None else found.adapter.name,
        "dtype": dtype,
    }
