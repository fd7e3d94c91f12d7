"""Whatever happens to the process, a session reads back what was recorded (see also `…_faults`)."""

import errno
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from mlxchat import paths
from mlxchat.chat.state import Turn
from mlxchat.errors import SessionError
from mlxchat.sessions import records
from mlxchat.sessions.listing import read_session
from mlxchat.sessions.session import Session
from tests.conftest import examples
from tests.failing_disk import FailingDisk
from tests.killed import kill

INTERRUPTED = "the last reply was interrupted: kept what had been shown"
SESSIONS_DIR = paths.sessions_dir

# Each with whether it is of the thought.
Pieces = list[tuple[str, bool]]


def state(system: str | None, turns: Sequence[Turn]) -> tuple[str | None, str]:
    ids = [None if turn.ids is None else turn.ids.tolist() for turn in turns]
    return system, repr([replace(turn, ids=each) for turn, each in zip(turns, ids, strict=True)])


def saved_state() -> tuple[str | None, str]:
    saved = read_session("mine")
    return state(saved.system, saved.turns)


@pytest.fixture
def session(sessions: Path) -> Iterator[Session]:
    with Session.open("mine", create=True) as session:
        yield session


# The reply in progress


def test_a_reply_is_forced_to_the_disk_while_nothing_waits_for_that(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: SimpleQueue[int] = SimpleQueue()
    disk = threading.Event()

    def force(descriptor: int) -> None:
        calls.put(descriptor)
        disk.wait()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(records, "force_to_disk", force)
    monkeypatch.setattr(records, "FORCE_EVERY_S", 0.0)
    session.record(None, [Turn("hello")])
    for _ in range(3):
        session.show("word ")
    calls.get(timeout=10)
    assert calls.empty()
    (forcing,) = (each for each in threading.enumerate() if each.name == "reply")
    disk.set()
    forcing.join(10)
    with pytest.raises(SessionError, match="Input/output error: the chat continues unsaved"):
        session.show("word ")
    assert read_session("mine").turns[0].reply.startswith("word word word word")


def test_a_piece_that_cannot_be_written_is_reported_once_and_written_with_the_next(
    sessions: Path, session: Session
) -> None:
    """Whichever call fails; a failing write has written half of it."""
    turn = Turn("one")
    with FailingDisk(sessions, ["open", "write"]).used() as disk:
        for fails_at in range(4):
            session.record(None, [turn])
            disk.calls.clear()
            disk.failing = [fails_at]
            complaints: list[str] = []
            for piece in ("so", " far", " and", " so", " on"):
                turn = replace(turn, reply=turn.reply + piece)
                try:
                    session.show(piece)
                except SessionError as error:
                    complaints.append(str(error))
            (complaint,) = complaints
            assert complaint.endswith("No space left on device: the chat continues unsaved")
            assert read_session("mine").turns[0].reply == turn.reply
            session.record(None, [turn])
            assert session.recovered


# Random chats, ended in random ways


class Chat(RuleBasedStateMachine):
    """A conversation's turns as it changes, and the session that records them."""

    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)

    @initialize()
    def begin(self) -> None:
        self.directory = Path(mkdtemp()) / "sessions"
        paths.sessions_dir = lambda: self.directory
        self.session = Session.open("mine", create=True)
        self.session.settings({"model": "tiny"})
        self.system: str | None = None
        self.turns: list[Turn] = []
        self.settings: dict[str, Any] = {"model": "tiny"}

    def teardown(self) -> None:
        self.session.close()
        paths.sessions_dir = SESSIONS_DIR
        shutil.rmtree(self.directory.parent)

    def record(self) -> None:
        self.session.record(self.system, self.turns)
        if self.session.snapshot_path is None:
            assert not self.turns
            return
        saved = read_session("mine")
        assert saved_state() == state(self.system, self.turns)
        assert saved.settings == self.settings
        assert saved.notices == ()

    def show(self, pieces: Pieces) -> Turn:
        """Show them; returns the turn with them, which is what is read from now on."""
        turn = self.turns[-1]
        for piece, thought in pieces:
            self.session.show(piece, thought)
            more = {"thought": turn.thought + piece} if thought else {"reply": turn.reply + piece}
            turn = replace(turn, **more)
            saved = read_session("mine")
            assert (saved.turns[-1].thought, saved.turns[-1].reply) == (turn.thought, turn.reply)
            assert saved.notices == ()
        return turn

    def answer(self, pieces: Pieces, ids: list[int] | None, finish_reason: str) -> None:
        turn = self.show(pieces)
        known = None if ids is None else np.array(ids, np.int32)
        self.turns[-1] = replace(turn, ids=known, finish_reason=finish_reason)
        self.record()

    pieces = st.lists(st.tuples(texts, st.booleans()), max_size=4)
    ids = st.none() | st.lists(st.integers(0, 2**31 - 1), max_size=4)
    finish_reasons = st.sampled_from(["stop", "length", "interrupted"])
    values = st.none() | texts | st.sampled_from([-(2**63) + 1, 2**63 - 1, 1.5, True])

    @rule(user=st.none() | texts, pieces=pieces, ids=ids, finish_reason=finish_reasons)
    def say_or_go_on(
        self, user: str | None, pieces: Pieces, ids: list[int] | None, finish_reason: str
    ) -> None:
        if user is not None or not self.turns:
            self.turns.append(Turn(user or ""))
        self.record()
        self.answer(pieces, ids, finish_reason)

    @precondition(lambda self: self.turns)
    @rule(user=texts)
    def try_again_in_vain(self, user: str) -> None:
        old = self.turns.pop()
        self.turns.append(Turn(user))
        self.record()
        self.turns[-1] = old
        self.record()

    @rule(users=st.lists(texts, max_size=3), data=st.data())
    def load_others_reorder_change_and_undo(self, users: list[str], data: st.DataObject) -> None:
        turns = data.draw(st.permutations([*self.turns, *(Turn(user, user) for user in users)]))
        fields = st.fixed_dictionaries(
            {"pinned": st.booleans(), "forgotten": st.booleans(), "time": self.texts},
            optional={
                "later_thoughts": st.lists(st.integers(0, 9)).map(tuple),
                "reply": self.texts,
                "ids": st.none(),
                "finish_reason": self.finish_reasons,
            },
        )
        self.turns = [
            replace(turn, **data.draw(fields)) for turn in data.draw(st.permutations(turns))
        ][data.draw(st.integers(0, 2)) :]
        self.record()

    @rule(system=st.none() | texts)
    def change_system(self, system: str | None) -> None:
        self.system = system
        self.record()

    @rule(name=texts, value=values)
    def change_settings(self, name: str, value: Any) -> None:
        self.settings[name] = value
        self.session.settings({name: value})
        self.record()

    @precondition(lambda self: self.session.snapshot_path)
    @rule()
    def open_again(self) -> None:
        self.session.close()
        self.session = Session.open("mine")
        self.turns = list(self.session.contents.turns)
        self.record()

    @rule(
        user=texts,
        pieces=st.lists(st.tuples(texts.filter(len), st.booleans()), max_size=4),
        damage=st.sampled_from([b"", b'[1, false, " to', b"\0" * 50, b"[1]\n[1, 2, 3]\n"]),
    )
    def be_killed_while_answering(self, user: str, pieces: Pieces, damage: bytes) -> None:
        self.turns.append(Turn(user))
        self.record()
        turn = self.show(pieces)
        if pieces:
            self.turns[-1] = replace(turn, finish_reason="interrupted")
        kill(self.session)
        for file in self.directory.glob("*.reply"):
            file.write_bytes(file.read_bytes() + damage)
        self.session = Session.open("mine")
        assert self.session.contents.notices == (INTERRUPTED,) * bool(pieces)
        assert saved_state() == state(self.system, self.turns)
        self.turns = list(self.session.contents.turns)
        self.turns.append(Turn("next"))
        self.record()
        assert not list(self.directory.glob("*.reply"))


TestAnyChat = Chat.TestCase
TestAnyChat.settings = hypothesis_settings(
    max_examples=examples(9), stateful_step_count=20, deadline=None, derandomize=True
)
