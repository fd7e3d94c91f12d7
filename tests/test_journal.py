"""Whatever happens to the process or the disk, a session reads back what was recorded in it."""

import re
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from mlxchat import paths
from mlxchat.chat.turn import Turn
from mlxchat.errors import SessionError
from mlxchat.sessions import journal as journal_module
from mlxchat.sessions.database import names_by_use
from mlxchat.sessions.journal import Journal
from mlxchat.sessions.listing import read_session, remove
from mlxchat.sessions.session import Session
from tests.conftest import examples
from tests.elsewhere import elsewhere

INTERRUPTED = "the last reply was interrupted: kept what had been shown"
SESSIONS_DIR = paths.sessions_dir

State = tuple[Any, ...]


def state_of_turn(turn: Turn) -> State:
    ids = None if turn.ids is None else turn.ids.tolist()
    flags = (turn.exact, turn.pinned, turn.forgotten)
    return (turn.user, turn.reply, ids, *flags, turn.finish_reason)


def state(system: str | None, turns: Sequence[Turn]) -> State:
    return (system, *(state_of_turn(turn) for turn in turns))


def saved_state() -> State:
    saved = read_session("mine")
    return state(saved.system, saved.turns)


def answered(user: str, reply: str = "yes", ids: tuple[int, ...] | None = (1, 2)) -> Turn:
    array = None if ids is None else np.array(ids, np.int32)
    return Turn(user, reply, array, ids is not None, finish_reason="stop")


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "sessions"
    monkeypatch.setattr(paths, "sessions_dir", lambda: directory)
    return directory


@pytest.fixture
def journal(sessions: Path) -> Iterator[Journal]:
    with Session.open("mine", create=True) as session:
        yield session.journal


# Writing


def test_every_field_of_a_turn_is_saved(journal: Journal) -> None:
    turn = Turn(
        "hé\0llo",
        "y\u2028es\r\n",
        np.array([7, 2**31 - 1], np.int32),
        exact=True,
        pinned=True,
        forgotten=True,
        finish_reason="stop",
        thought="Hm. So.",
        later_thoughts=(4,),
        time="2026-11-21T15:30:12+00:00",
    )
    journal.settings({"model": "tiny", "window": None, "x": 1.5, "y": True})
    journal.record("Be kind.", [turn])
    saved = read_session("mine")
    (found,) = saved.turns
    assert found.ids is not None
    assert turn.ids is not None
    assert found.ids.tolist() == turn.ids.tolist()
    assert replace(found, ids=None) == replace(turn, ids=None)
    assert saved.settings == {"model": "tiny", "window": None, "x": 1.5, "y": True}
    assert saved.system == "Be kind."


def written_rows(statements: list[str]) -> list[str]:
    """The tables of turns and sessions that the statements insert into or update, in order."""
    found = (re.match(r"(?:INSERT INTO|UPDATE) (\w+)", statement) for statement in statements)
    return [each[1] for each in found if each is not None]


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement that any connection executes."""
    executed: list[str] = []

    class Observed(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            executed.append(arguments[0])
            return super().execute(*arguments)

    use_connections(monkeypatch, Observed)
    return executed


def use_connections(monkeypatch: pytest.MonkeyPatch, kind: type[sqlite3.Connection]) -> None:
    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        return real(*arguments, **options, factory=kind)

    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connect)


def test_unchanged_turns_are_not_written_again(statements: list[str], journal: Journal) -> None:
    turns = [answered("hello"), answered("and?", ids=None)]
    journal.record("s", turns)
    turns[0].ids = np.array([1, 2], np.int32)
    turns[0].reply = "".join(["y", "es"])
    statements.clear()
    for _ in range(3):
        journal.record("s", turns)
    assert statements == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reply", "no"),
        ("ids", np.array([1, 3], np.int32)),
        ("ids", None),
        ("pinned", True),
    ],
)
def test_a_change_of_any_single_field_writes_one_turn(
    name: str, value: object, statements: list[str], journal: Journal
) -> None:
    turns = [answered("one"), answered("two")]
    journal.record(None, turns)
    statements.clear()
    setattr(turns[0], name, value)
    journal.record(None, turns)
    found = [table for table in written_rows(statements) if table != "words"]
    assert found == ["turns", "sessions"]
    assert saved_state() == state(None, turns)


def test_unpaired_surrogates_become_question_marks(journal: Journal) -> None:
    turns = [answered("a\ud800b", "c\udc00d"), Turn("next")]
    journal.record("\ud800", turns)
    journal.show("\udc00")
    saved = [answered("a?b", "c?d"), Turn("next", "?", finish_reason="interrupted")]
    assert saved_state() == state("?", saved)


# The reply in progress


def test_the_shown_part_of_an_unfinished_reply_is_read(journal: Journal) -> None:
    turn = Turn("hello")
    journal.record(None, [turn])
    for piece in ("h", "é", "", "\0", "!\n"):
        turn.reply += piece
        journal.show(piece)
        assert read_session("mine").turns[0].reply == turn.reply
    assert saved_state() == state(None, [Turn("hello", "hé\0!\n", finish_reason="interrupted")])
    assert read_session("mine").notices == (INTERRUPTED,)

    journal.record("changed meanwhile", [turn])
    assert read_session("mine").turns[0].reply == turn.reply
    turn.finish_reason = "stop"
    journal.record("changed meanwhile", [turn])
    assert read_session("mine").notices == ()
    assert saved_state() == state("changed meanwhile", [turn])


def test_thoughts_are_kept_apart_from_the_reply(journal: Journal) -> None:
    journal.record(None, [Turn("hello")])
    for text, thought in (("Hm", True), (". ", True), ("Yes", False), ("?", True), ("!", False)):
        journal.show(text, thought)
    (turn,) = read_session("mine").turns
    assert (turn.thought, turn.reply) == ("Hm. ?", "Yes!")


def test_a_reply_survives_kill_9_to_the_last_piece_shown(sessions: Path) -> None:
    program = """
turns = [Turn("one", "yes", finish_reason="stop"), Turn("two")]
journal = Session.open("mine", create=True).journal
journal.record("system", turns)
for n in range(10**9):
    journal.show(f" {n}")
    print(n, flush=True)
"""
    with elsewhere(program) as process:
        assert process.stdout is not None
        for _ in range(200):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        shown = 199 + len(process.stdout.read().split("\n")) - 1
    saved = read_session("mine")
    assert saved.system == "system"
    assert state_of_turn(saved.turns[0]) == state_of_turn(Turn("one", "yes", finish_reason="stop"))
    # Each piece is printed after it was saved, so one more may have been saved than printed.
    whole = [" ".join(["", *map(str, range(n))]) for n in (shown + 1, shown + 2)]
    assert saved.turns[1].reply in whole


def test_decoding_does_not_wait_for_the_database(
    statements: list[str], sessions: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network disk, each token was a transaction in a rollback journal, with all its syncs."""
    clock = iter(n / 20 for n in range(1000))
    monkeypatch.setattr(journal_module.time, "monotonic", lambda: next(clock))
    turn = Turn("hello")
    journal.record(None, [turn])
    statements.clear()
    for _ in range(200):
        turn.reply += "word "
        journal.show("word ")
    # Every fifth, a quarter of a second later.
    assert 30 <= statements.count("COMMIT") <= 40
    assert read_session("mine").turns[0].reply == turn.reply
    turn.finish_reason = "stop"
    journal.record(None, [turn])
    assert list(sessions.glob("*.reply")) == []
    assert saved_state() == state(None, [turn])


@pytest.mark.parametrize("tail", [b"", b'[1, false, " to', b"\0" * 50, b"[1]\n[1, 2, 3]\n"])
def test_the_file_of_a_killed_reply_is_read_up_to_its_damage_and_then_removed(
    sessions: Path, tail: bytes
) -> None:
    with Session.open("mine", create=True) as session:
        session.journal.record(None, [Turn("one")])
        session.journal.show("half")
        session.journal.show(" a reply")
    (file,) = sessions.glob("*.reply")
    with file.open("ab") as end:
        end.write(tail)
    interrupted = Turn("one", "half a reply", finish_reason="interrupted")
    assert saved_state() == state(None, [interrupted])
    with Session.open("mine") as session:
        session.journal.record(None, session.journal.contents.turns)
    assert not file.exists()
    assert saved_state() == state(None, [interrupted])
    assert read_session("mine").notices == ()


def test_the_file_of_another_turn_is_not_read(sessions: Path) -> None:
    """A kill between the end of a transaction and the removal of the file leaves one."""
    with Session.open("mine", create=True) as session:
        session.journal.record(None, [answered("one"), answered("two")])
    (sessions / "1.reply").write_text('[1, false, "a long reply"]\n')
    assert saved_state() == state(None, [answered("one"), answered("two")])
    remove("mine")
    assert not (sessions / "1.reply").exists()


def test_without_a_file_each_piece_goes_to_the_database(
    sessions: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.record(None, [Turn("one")])
    (sessions / "1.reply").mkdir()
    for piece in ("half", " a reply"):
        journal.show(piece)
    (sessions / "1.reply").rmdir()
    assert read_session("mine").turns[0].reply == "half a reply"


# Random chats, ended in random ways


class Chat(RuleBasedStateMachine):
    """A conversation's turns as it changes, and the session that records them."""

    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)

    @initialize()
    def begin(self) -> None:
        self.directory = Path(mkdtemp())
        paths.sessions_dir = lambda: self.directory
        self.session = Session.open("mine", create=True)
        self.journal.settings({"model": "tiny"})
        self.system: str | None = None
        self.turns: list[Turn] = []
        self.settings: dict[str, Any] = {"model": "tiny"}
        self.last_serial = 0
        self.serials: set[int] = set()

    def teardown(self) -> None:
        self.session.close()
        paths.sessions_dir = SESSIONS_DIR
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def journal(self) -> Journal:
        return self.session.journal

    @property
    def exists(self) -> bool:
        return self.session.snapshot_path is not None

    def record(self) -> None:
        self.journal.record(self.system, self.turns)
        if not self.exists:
            assert not self.turns
            return
        saved = read_session("mine")
        assert saved_state() == state(self.system, self.turns)
        assert saved.settings == self.settings
        assert saved.notices == ()
        assert saved.serials == [self.journal.serial_of(turn) for turn in self.turns]
        assert [self.journal.turn_of(serial) for serial in saved.serials] == self.turns or any(
            turn.ids is not None for turn in self.turns
        )
        # A number is not given again.
        new = [serial for serial in saved.serials if serial not in self.serials]
        assert min(new, default=self.last_serial) >= self.last_serial
        self.serials.update(new)
        self.last_serial = max(self.serials, default=0)

    def answer(self, pieces: list[str], ids: list[int] | None, finish_reason: str) -> None:
        turn = self.turns[-1]
        for piece in pieces:
            turn.reply += piece
            self.journal.show(piece)
            assert read_session("mine").turns[-1].reply == turn.reply
        turn.ids = None if ids is None else np.array(ids, np.int32)
        turn.exact = ids is not None
        turn.finish_reason = finish_reason
        self.record()

    pieces = st.lists(texts, max_size=4)
    ids = st.none() | st.lists(st.integers(0, 2**31 - 1), max_size=4)
    finish_reasons = st.sampled_from(["stop", "length", "interrupted"])

    @rule(user=texts, pieces=pieces, ids=ids, finish_reason=finish_reasons)
    def say(self, user: str, pieces: list[str], ids: list[int] | None, finish_reason: str) -> None:
        self.turns.append(Turn(user))
        self.record()
        self.answer(pieces, ids, finish_reason)

    @precondition(lambda self: self.turns)
    @rule(pieces=pieces, ids=ids, finish_reason=finish_reasons)
    def go_on(self, pieces: list[str], ids: list[int] | None, finish_reason: str) -> None:
        self.record()
        self.answer(pieces, ids, finish_reason)

    @precondition(lambda self: self.turns)
    @rule()
    def take_back_some(self) -> None:
        turn = self.turns[-1]
        turn.reply, turn.ids, turn.exact = turn.reply[:1], None, False
        turn.finish_reason = "length"
        self.record()

    @precondition(lambda self: self.turns)
    @rule(user=texts)
    def try_again_in_vain(self, user: str) -> None:
        old = self.turns.pop()
        self.turns.append(Turn(user))
        self.record()
        self.turns[-1] = old
        self.record()

    @precondition(lambda self: self.turns)
    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        del self.turns[data.draw(st.integers(0, len(self.turns) - 1))]
        self.record()

    @rule(users=st.lists(texts, max_size=3))
    def load_others(self, users: list[str]) -> None:
        self.turns += [Turn(user, user, pinned=bool(user)) for user in users]
        self.record()

    @precondition(lambda self: self.turns)
    @rule(data=st.data())
    def shuffle(self, data: st.DataObject) -> None:
        self.turns[:] = data.draw(st.permutations(self.turns))
        self.record()

    @precondition(lambda self: self.turns)
    @rule(data=st.data(), flag=st.sampled_from(["forgotten", "pinned"]))
    def flag(self, data: st.DataObject, flag: str) -> None:
        for turn in self.turns:
            setattr(turn, flag, data.draw(st.booleans()))
        self.record()

    @rule(system=st.none() | texts)
    def change_system(self, system: str | None) -> None:
        self.system = system
        self.record()

    @rule(name=texts, value=texts | st.integers(-(2**63) + 1, 2**63 - 1) | st.none())
    def change_settings(self, name: str, value: Any) -> None:
        self.settings[name] = value
        self.journal.settings({name: value})
        self.record()

    @precondition(lambda self: self.exists)
    @rule()
    def open_again(self) -> None:
        self.session.close()
        self.session = Session.open("mine")
        self.turns = list(self.journal.contents.turns)
        self.record()

    @rule(user=texts, pieces=st.lists(texts.filter(len), max_size=4))
    def be_killed_while_answering(self, user: str, pieces: list[str]) -> None:
        turn = Turn(user)
        self.turns.append(turn)
        self.record()
        for piece in pieces:
            turn.reply += piece
            self.journal.show(piece)
        if turn.reply:
            turn.finish_reason = "interrupted"
        self.session.close()
        self.session = Session.open("mine")
        assert state(self.journal.contents.system, self.journal.contents.turns) == state(
            self.system, self.turns
        )
        self.turns = list(self.journal.contents.turns)
        self.turns.append(Turn("next"))
        self.record()


TestAnyChat = Chat.TestCase
TestAnyChat.settings = hypothesis_settings(
    max_examples=examples(15), stateful_step_count=25, deadline=None, derandomize=True
)


# Failing disks


class Disk:
    """Fails the statements with the numbers in `failing`, counted from the first that writes."""

    def __init__(self) -> None:
        self.failing: Sequence[int] = ()
        self.executed: list[str] = []
        self.error: BaseException | None = None
        # Whether a failing statement succeeds first, as far as the file is concerned.
        self.too_late = False

    def connections(self) -> type[sqlite3.Connection]:
        disk = self

        class Failing(sqlite3.Connection):
            def execute(self, *arguments: Any) -> sqlite3.Cursor:
                return disk.run(arguments[0], lambda: super(Failing, self).execute(*arguments))

            def executemany(self, *arguments: Any) -> sqlite3.Cursor:
                return disk.run(arguments[0], lambda: super(Failing, self).executemany(*arguments))

        return Failing

    def run(self, statement: str, execute: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
        if not statement.startswith(("BEGIN IMMEDIATE", "INSERT", "UPDATE", "DELETE", "COMMIT")):
            return execute()
        self.executed.append(statement)
        if len(self.executed) - 1 not in self.failing:
            return execute()
        if self.too_late:
            execute()
        if self.error is not None:
            raise self.error
        # A real error, with its code: this table can have no second page.
        with sqlite3.connect(":memory:") as full:
            full.execute("PRAGMA max_page_count = 1")
            full.execute("CREATE TABLE t (x)")
        raise AssertionError


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    use_connections(monkeypatch, disk.connections())
    return disk


class Observed:
    """Calls the journal and counts its errors and recoveries."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.complaints: list[str] = []
        self.recoveries = 0

    def call(self, method: Callable[..., None], *arguments: Any) -> None:
        try:
            method(*arguments)
        except SessionError as error:
            self.complaints.append(str(error))
        if method == self.journal.record:
            self.recoveries += self.journal.recovered


def chat_with_faults(disk: Disk) -> Observed:
    """A little of everything. After each step the session can be read, and never loses what could
    already be read; once the disk works again, everything is there."""
    with Session.open("mine", create=True) as session:
        journal = session.journal
        observed = Observed(journal)
        turns: list[Turn] = []
        seen: dict[str, str] = {}

        def call(method: Callable[..., None], *arguments: Any) -> None:
            observed.call(method, *arguments)
            failing, disk.failing = disk.failing, ()
            count = len(disk.executed)
            found: dict[str, str] = {}
            if names_by_use():
                found = {turn.user: turn.reply for turn in read_session("mine").turns}
            del disk.executed[count:]
            disk.failing = failing
            for turn in turns:
                assert turn.user in found or turn.user not in seen
                assert found.get(turn.user, "").startswith(seen.get(turn.user, ""))
                assert turn.reply.startswith(found.get(turn.user, ""))
            seen.update(found)

        call(journal.settings, {"model": "tiny"})
        for n in range(3):
            turns.append(Turn(f"message {n}"))
            call(journal.record, "Be kind.", turns)
            for piece in ("some", " thing"):
                turns[-1].reply += piece
                call(journal.show, piece)
            turns[-1].ids, turns[-1].exact = np.array([n, 2]), True
            turns[-1].finish_reason = "stop"
            call(journal.record, "Be kind.", turns)
            call(journal.settings, {"window": n})
        del turns[1]
        call(journal.record, "Be kind.", turns)
        turns[0].forgotten = True
        call(journal.record, None, turns)
        disk.failing = ()
        turns.append(answered("and in the end"))
        call(journal.record, None, turns)
        assert saved_state() == state(None, turns)
        assert read_session("mine").settings == {"model": "tiny", "window": 2}
    return observed


@pytest.mark.parametrize("length", [1, 2, 5, 1000])
def test_a_full_disk_damages_nothing_and_is_reported_once(
    tmp_path: Path, disk: Disk, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_a_fresh_place(disk, tmp_path, monkeypatch)
    last = [n for n, each in enumerate(disk.executed) if each == "BEGIN IMMEDIATE"][-1]
    for first in range(last):
        disk.executed.clear()
        disk.failing = range(first, first + length)
        observed = in_a_fresh_place(disk, tmp_path, monkeypatch)
        assert (len(observed.complaints), observed.recoveries) == (1, 1)
        assert "database or disk is full" in observed.complaints[0]
        assert observed.complaints[0].endswith(": the chat continues unsaved")


def in_a_fresh_place(disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Observed:
    directory = Path(mkdtemp(dir=tmp_path)) / "sessions"
    monkeypatch.setattr(paths, "sessions_dir", lambda: directory)
    return chat_with_faults(disk)


@pytest.mark.parametrize("too_late", [False, True])
def test_an_interruption_at_any_statement_does_no_harm(
    disk: Disk, too_late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between the end of a transaction and the next line of Python."""
    disk.error, disk.too_late = KeyboardInterrupt(), too_late

    def chat() -> None:
        directory = Path(mkdtemp(dir=tmp_path)) / "sessions"
        monkeypatch.setattr(paths, "sessions_dir", lambda: directory)
        with Session.open("mine", create=True) as session:
            turns: list[Turn] = []

            def call(method: Callable[..., None], *arguments: Any) -> None:
                try:
                    method(*arguments)
                except KeyboardInterrupt:
                    method(*arguments)

            for n in range(2):
                turns.append(Turn(f"message {n}"))
                call(session.journal.record, "Be kind.", turns)
                turns[-1].reply, turns[-1].finish_reason = "some", "stop"
                call(session.journal.record, "Be kind.", turns)
            del turns[0]
            call(session.journal.record, None, turns)
        assert saved_state() == state(None, turns)
        assert names_by_use() == ["mine"]

    chat()
    for number in range(len(disk.executed)):
        disk.executed.clear()
        disk.failing = [number]
        chat()


@pytest.fixture
def every_piece_in_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "PIECES_EVERY_S", 0)


@pytest.mark.usefixtures("every_piece_in_the_database")
def test_a_piece_whose_commit_was_interrupted_is_not_saved_twice(
    disk: Disk, journal: Journal
) -> None:
    journal.record(None, [Turn("hello")])
    journal.show("a")
    disk.error, disk.too_late = KeyboardInterrupt(), True
    # BEGIN, DELETE, INSERT and COMMIT.
    disk.failing = [len(disk.executed) + 3]
    with pytest.raises(KeyboardInterrupt):
        journal.show("b")
    assert read_session("mine").turns[0].reply == "ab"
    disk.failing = ()
    journal.show("c")
    assert read_session("mine").turns[0].reply == "abc"
