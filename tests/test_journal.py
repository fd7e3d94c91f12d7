"""Whatever happens to the process or the disk, a journal reads back what was recorded in it."""

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from mlxchat.chat import transcript
from mlxchat.chat.turn import Turn
from mlxchat.errors import SessionError
from mlxchat.store.journal import Journal
from mlxchat.store.saved import Saved, read, read_messages
from tests.conftest import examples
from tests.failing_disk import FailingDisk

HEADER: dict[str, Any] = {
    "format": "mlxchat session",
    "version": 1,
    "mlxchat": "0.1.0",
    "created": None,
}
USER: dict[str, Any] = {
    "role": "user",
    "turn": 1,
    "content": "hello",
    "time": "2026-11-21T15:30:12Z",
}
INTERRUPTED = "the last reply was interrupted: kept what had been shown"

State = tuple[Any, ...]


def state_of_turn(turn: Turn) -> State:
    ids = None if turn.ids is None else turn.ids.tolist()
    flags = (turn.exact, turn.pinned, turn.forgotten)
    return (turn.user, turn.reply, ids, *flags, turn.finish_reason)


def state(system: str | None, turns: list[Turn]) -> State:
    return (system, *(state_of_turn(turn) for turn in turns))


def saved_state(path: Path) -> State:
    saved = read(path)
    return state(saved.system, saved.turns)


def answered(user: str, reply: str = "yes", ids: tuple[int, ...] | None = (1, 2)) -> Turn:
    array = None if ids is None else np.array(ids, np.int32)
    return Turn(user, reply, array, ids is not None, finish_reason="stop")


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a power cut could show the difference."""

    def fsync(_: int) -> None:
        pass

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "transcript.jsonl"


@pytest.fixture
def part(path: Path) -> Path:
    return path.with_name("reply.unfinished")


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, *lines: object) -> None:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


# Writing


def test_a_chat_is_written_line_by_line(path: Path) -> None:
    journal = Journal.create(path, {"model": "tiny", "window": 512})
    turns = [Turn("hello")]
    journal.record("Be kind.", turns)
    turns[0].reply, turns[0].ids, turns[0].finish_reason = "hé", np.array([7, 8]), "stop"
    turns[0].exact = True
    journal.record("Be kind.", turns)
    turns[0].pinned = True
    journal.record(None, turns)
    journal.settings({"window": 1024, "model": "tiny"})
    turns.clear()
    journal.record(None, turns)

    header, *rest = lines_of(path)
    assert header.keys() == {"format", "version", "mlxchat", "created"}
    assert rest.pop(2).pop("time")[:2] == "20"
    assert rest == [
        {"settings": {"model": "tiny", "window": 512}},
        {"role": "system", "content": "Be kind."},
        {
            "role": "assistant",
            "turn": 1,
            "content": "hé",
            "ids": [7, 8],
            "exact": True,
            "finish_reason": "stop",
        },
        {"role": "system", "content": None},
        {"pinned": [1]},
        {"settings": {"window": 1024}},
        {"undo": [1]},
    ]


def test_nothing_is_created_before_the_first_turn(path: Path) -> None:
    with_prepare: list[str] = []

    def prepare() -> Path:
        with_prepare.append("called")
        return path

    journal = Journal.create(path, {}, prepare)
    journal.record("Be kind.", [])
    journal.settings({"model": "tiny"})
    journal.show("lost")
    journal.close()
    assert not with_prepare
    assert list(path.parent.iterdir()) == []
    journal.record("Be kind.", [Turn("hello")])
    assert saved_state(path) == state("Be kind.", [Turn("hello")])
    assert read(path).settings == {"model": "tiny"}


def test_an_existing_file_is_never_overwritten(path: Path) -> None:
    path.write_text("mine")
    journal = Journal.create(path)
    with pytest.raises(SessionError, match=r"exists: the chat continues unsaved"):
        journal.record(None, [Turn("hello")])
    assert path.read_text() == "mine"


def test_the_files_are_private_to_their_owner(path: Path, part: Path) -> None:
    old = os.umask(0)
    try:
        journal = Journal.create(path)
        journal.record(None, [Turn("hello")])
        journal.show("hi")
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(part.stat().st_mode) == 0o600


def test_unchanged_turns_are_not_written_again(path: Path) -> None:
    journal = Journal.create(path)
    turns = [answered("hello"), answered("and?", ids=None)]
    journal.record("s", turns)
    before = path.read_bytes()
    turns[0].ids = np.array([1, 2], np.int32)
    turns[0].reply = "".join(["y", "es"])
    for _ in range(3):
        journal.record("s", turns)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reply", "no"),
        ("ids", np.array([1, 3], np.int32)),
        ("ids", None),
        ("exact", False),
        ("finish_reason", "length"),
        ("pinned", True),
        ("forgotten", True),
    ],
)
def test_a_change_of_any_single_field_is_written(path: Path, name: str, value: object) -> None:
    journal = Journal.create(path)
    turns = [answered("one"), answered("two")]
    journal.record(None, turns)
    before = len(lines_of(path))
    setattr(turns[0], name, value)
    journal.record(None, turns)
    assert len(lines_of(path)) == before + 1
    assert saved_state(path) == state(None, turns)


def test_only_changes_of_flags_are_written(path: Path) -> None:
    journal = Journal.create(path)
    turns = [answered(str(n)) for n in range(4)]
    journal.record(None, turns)
    before = len(lines_of(path))
    turns[0].forgotten = turns[1].forgotten = turns[3].pinned = True
    journal.record(None, turns)
    turns[1].forgotten = turns[3].pinned = False
    journal.record(None, turns)
    assert lines_of(path)[before:] == [
        {"forgot": [1, 2]},
        {"pinned": [4]},
        {"remembered": [2]},
        {"unpinned": [4]},
    ]


def test_a_restored_turn_gets_a_new_serial(path: Path) -> None:
    journal = Journal.create(path)
    turns = [answered("one"), answered("two")]
    journal.record(None, turns)
    retried = turns.pop()
    turns.append(Turn("two"))
    journal.record(None, turns)
    turns[-1] = retried
    journal.record(None, turns)
    assert saved_state(path) == state(None, turns)
    assert read(path).serials == [1, 4]
    assert journal.serial_of(retried) == 4
    assert journal.turn_of(4) is retried
    assert journal.turn_of(2) is None
    assert journal.turn_of(5) is None
    assert journal.serial_of(Turn("two")) is None


def test_equal_turns_are_distinguished(path: Path) -> None:
    journal = Journal.create(path)
    turns = [Turn("again", "yes"), Turn("again", "yes")]
    journal.record(None, turns)
    del turns[0]
    journal.record(None, turns)
    assert read(path).serials == [2]


def test_unpaired_surrogates_become_question_marks(path: Path) -> None:
    journal = Journal.create(path)
    journal.record(None, [answered("a\ud800b", "c\udc00d")])
    assert saved_state(path) == state(None, [answered("a?b", "c?d")])
    write_lines(path, HEADER, {**USER, "content": "a\ud800b"})
    assert read(path).turns[0].user == "a?b"


# The reply in progress


def test_the_shown_part_of_an_unfinished_reply_is_read(path: Path, part: Path) -> None:
    journal = Journal.create(path)
    turn = Turn("hello")
    journal.record(None, [turn])
    for piece in ("h", "é", "", "!\n"):
        turn.reply += piece
        journal.show(piece)
        assert read(path).turns[0].reply == turn.reply
    assert part.read_bytes() == b'{"turn": 1, "so_far": 0}\nh\xc3\xa9!\n'
    saved = read(path)
    assert saved_state(path) == state(None, [Turn("hello", "hé!\n", finish_reason="interrupted")])
    assert saved.notices == (INTERRUPTED,)

    journal.record("changed meanwhile", [turn])
    assert part.exists()
    turn.finish_reason = "stop"
    journal.record("changed meanwhile", [turn])
    assert not part.exists()
    assert saved_state(path) == state("changed meanwhile", [turn])


def test_a_continued_reply_starts_with_the_existing_text(path: Path, part: Path) -> None:
    journal = Journal.create(path)
    turn = replace(answered("hello", "one"), finish_reason="length")
    journal.record(None, [turn])
    journal.record(None, [turn])
    turn.reply += " two"
    journal.show(" two")
    assert part.read_text() == '{"turn": 1, "so_far": 3}\none two'
    assert state_of_turn(read(path).turns[0])[1:3] == ("one two", None)
    turn.finish_reason = "stop"
    journal.record(None, [turn])
    assert saved_state(path) == state(None, [turn])


def test_half_a_character_and_trailing_zeros_are_dropped(path: Path, part: Path) -> None:
    Journal.create(path).record(None, [Turn("hello")])
    for tail in (b"\xc3", b"\0\0\0", b"\xf0\x9f\x98\0"):
        part.write_bytes(b'{"turn": 1, "so_far": 0}\nhi' + tail)
        assert read(path).turns[0].reply == "hi"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"turn": 1, "so_far": 0}',
        b'{"turn": 1}\nhi there',
        b'{"turn": 2, "so_far": 0}\nhi there',
        b'{"turn": true, "so_far": 0}\nhi there',
        b'{"turn": 1, "so_far": NaN}\nhi there',
        b"[1]\nhi there",
        b'{"turn": 1, "so_far": 0}\nyes',
        b"[" * 100_000 + b"\nhi there",
        b"\xff\xfe\n",
        b"\0" * 100,
    ],
)
def test_an_unfinished_reply_that_adds_nothing_is_ignored(
    path: Path, part: Path, data: bytes
) -> None:
    Journal.create(path).record(None, [answered("hello")])
    part.write_bytes(data)
    assert saved_state(path) == state(None, [answered("hello")])
    assert read(path).notices == ()


def test_an_unfinished_reply_that_is_not_a_file_is_ignored(path: Path, part: Path) -> None:
    Journal.create(path).record(None, [answered("hello")])
    os.mkfifo(part)
    assert saved_state(path) == state(None, [answered("hello")])


def test_an_unfinished_reply_applies_only_to_the_last_turn(path: Path, part: Path) -> None:
    Journal.create(path).record(None, [answered("one"), answered("two")])
    part.write_text('{"turn": 1, "so_far": 0}\na longer reply')
    assert saved_state(path) == state(None, [answered("one"), answered("two")])
    part.write_text('{"turn": 2, "so_far": 0}\na longer reply')
    assert read(path).turns[1].reply == "a longer reply"


def test_an_interrupted_reply_is_recorded_before_its_file_is_removed(
    path: Path, part: Path
) -> None:
    journal = Journal.create(path)
    journal.record(None, [Turn("one")])
    journal.show("half a rep")
    journal.close()

    again = Journal.open(path)
    assert part.exists()
    turns = [*again.contents.turns, Turn("two")]
    again.record(None, turns)
    assert not part.exists()
    again.show("new")
    assert saved_state(path) == state(
        None,
        [
            Turn("one", "half a rep", finish_reason="interrupted"),
            Turn("two", "new", finish_reason="interrupted"),
        ],
    )


def test_a_reply_survives_kill_9_to_the_last_piece_shown(path: Path) -> None:
    program = """
import sys
from pathlib import Path
from mlxchat.chat.turn import Turn
from mlxchat.store.journal import Journal
from tests.conftest import examples

turns = [Turn("one", "yes", finish_reason="stop"), Turn("two")]
journal = Journal.create(Path(sys.argv[1]))
journal.record("system", turns)
for n in range(10**9):
    journal.show(f" {n}")
    print(n, flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(200):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        shown = 199 + len(process.stdout.read().split("\n")) - 1
    saved = read(path)
    assert saved.system == "system"
    assert state_of_turn(saved.turns[0]) == state_of_turn(Turn("one", "yes", finish_reason="stop"))
    # Each piece is printed after it was saved, so one more may have been saved than printed.
    whole = [" ".join(["", *map(str, range(n))]) for n in (shown + 1, shown + 2)]
    assert saved.turns[1].reply in whole


# Random chats, ended in random ways


class Chat(RuleBasedStateMachine):
    """A conversation's turns as it changes, and the file that records them."""

    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    # Zeros at the end of an unfinished reply come from a power cut.
    spoken = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)

    @initialize()
    def begin(self) -> None:
        self.directory = Path(mkdtemp())
        self.path = self.directory / "transcript.jsonl"
        self.journal = Journal.create(self.path, {"model": "tiny"})
        self.system: str | None = None
        self.turns: list[Turn] = []
        self.settings: dict[str, Any] = {"model": "tiny"}
        self.last_serial = 0

    def teardown(self) -> None:
        self.journal.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def record(self) -> None:
        self.journal.record(self.system, self.turns)
        if not self.path.exists():
            assert not self.turns
            return
        saved = read(self.path)
        assert saved_state(self.path) == state(self.system, self.turns)
        assert saved.settings == self.settings
        assert saved.notices == ()
        assert saved.serials == [self.journal.serial_of(turn) for turn in self.turns]
        assert [self.journal.turn_of(serial) for serial in saved.serials] == self.turns or any(
            turn.ids is not None for turn in self.turns
        )
        assert saved.last_serial >= self.last_serial
        self.last_serial = saved.last_serial

    def answer(self, pieces: list[str], ids: list[int] | None, finish_reason: str) -> None:
        turn = self.turns[-1]
        for piece in pieces:
            turn.reply += piece
            self.journal.show(piece)
            assert read(self.path).turns[-1].reply == turn.reply
        turn.ids = None if ids is None else np.array(ids, np.int32)
        turn.exact = ids is not None
        turn.finish_reason = finish_reason
        self.record()

    pieces = st.lists(spoken, max_size=4)
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

    @precondition(lambda self: self.path.exists())
    @rule()
    def open_again(self) -> None:
        self.journal.close()
        self.journal = Journal.open(self.path)
        self.turns = list(self.journal.contents.turns)
        self.record()

    @rule(user=texts, pieces=st.lists(spoken.filter(len), max_size=4), cut=st.integers(0, 3))
    def be_killed_while_answering(self, user: str, pieces: list[str], cut: int) -> None:
        turn = Turn(user)
        self.turns.append(turn)
        self.record()
        for piece in pieces:
            turn.reply += piece
            self.journal.show(piece)
        if turn.reply:
            turn.finish_reason = "interrupted"
        with self.path.open("ab") as file:
            file.write(b'{"torn'[:cut])
        self.journal.close()
        self.journal = Journal.open(self.path)
        assert state(self.journal.contents.system, self.journal.contents.turns) == state(
            self.system, self.turns
        )
        self.turns = list(self.journal.contents.turns)
        # The torn line is removed when the next thing is said.
        self.turns.append(Turn("next"))
        self.record()


TestAnyChat = Chat.TestCase
TestAnyChat.settings = hypothesis_settings(
    max_examples=examples(15), stateful_step_count=25, deadline=None, derandomize=True
)


# Torn files


def small_file(path: Path) -> bytes:
    journal = Journal.create(path, {"model": "tiny"})
    turns = [Turn("hello")]
    journal.record("Be kind.", turns)
    turns[0] = replace(answered("hello", "héllo"), forgotten=True)
    journal.record("Be kind.", turns)
    turns.append(answered("more"))
    journal.record(None, turns)
    return path.read_bytes()


@pytest.mark.parametrize("tail", [b"", b"\0" * 5000, b"\0\0\n"])
def test_a_file_cut_off_anywhere_loses_at_most_its_last_line(path: Path, tail: bytes) -> None:
    data = small_file(path)
    for cut in range(len(data) + 1):
        whole = data[: data.rfind(b"\n", 0, cut) + 1]
        # A line that has its closing brace lacks at most its line end.
        if not tail and data[cut : cut + 1] == b"\n":
            whole = data[: cut + 1]
        path.write_bytes(whole)
        expected = saved_state(path)
        path.write_bytes(data[:cut] + tail)
        saved = read(path)
        assert state(saved.system, saved.turns) == expected
        is_torn = len(data[:cut] + tail) > len(whole)
        assert len(saved.notices) == is_torn

        journal = Journal.open(path)
        turns = [*journal.contents.turns, Turn("next")]
        journal.record("new", turns)
        assert saved_state(path) == state("new", turns)
        assert read(path).notices == ()
        assert path.read_bytes().startswith(whole)


def test_a_damaged_line_in_the_middle_is_refused_with_its_number(path: Path) -> None:
    lines = small_file(path).splitlines(keepends=True)
    for n in range(len(lines) - 1):
        for damaged in (b"\0" * 20 + b"\n", lines[n][:-5] + b"\n", b"\xff\xfe\n", b"\n", b"null\n"):
            path.write_bytes(b"".join([*lines[:n], damaged, *lines[n + 1 :]]))
            with pytest.raises(SessionError, match=rf"transcript.jsonl, line {n + 1}: "):
                read(path)


def test_a_chat_continues_after_a_half_written_header(path: Path) -> None:
    path.write_text('{"format": "mlx')
    journal = Journal.open(path)
    journal.record("s", [Turn("hello")])
    assert saved_state(path) == state("s", [Turn("hello")])
    assert lines_of(path)[0]["version"] == 1


# Hostile files


@pytest.mark.parametrize(
    "line",
    [
        "1",
        "[]",
        '"text"',
        "null",
        "{}",
        '{"unknown": 1}',
        '{"role": "user", "content": "no turn"}',
        '{"role": "tool", "turn": 2, "content": ""}',
        '{"role": null}',
        '{"role": ["user"], "turn": 2, "content": ""}',
        '{"role": "user", "turn": 2}',
        '{"role": "user", "turn": 2, "content": null}',
        '{"role": "user", "turn": 1, "content": "again"}',
        '{"role": "user", "turn": 0, "content": ""}',
        '{"role": "user", "turn": -1, "content": ""}',
        '{"role": "user", "turn": 2.0, "content": ""}',
        '{"role": "user", "turn": true, "content": ""}',
        '{"role": "user", "turn": "2", "content": ""}',
        '{"role": "user", "turn": [2], "content": ""}',
        f'{{"role": "user", "turn": {2**53}, "content": ""}}',
        f'{{"role": "user", "turn": {"9" * 4000}, "content": ""}}',
        f'{{"role": "user", "turn": {"9" * 5000}, "content": ""}}',
        '{"role": "system", "content": 1}',
        '{"role": "assistant", "turn": 1}',
        '{"role": "assistant", "turn": 7, "content": ""}',
        '{"role": "assistant", "turn": 1, "content": "", "exact": 1}',
        '{"role": "assistant", "turn": 1, "content": "", "finish_reason": null}',
        '{"role": "assistant", "turn": 1, "content": "", "ids": {}}',
        '{"role": "assistant", "turn": 1, "content": "", "ids": "12"}',
        '{"role": "assistant", "turn": 1, "content": "", "ids": [NaN]}',
        '{"role": "assistant", "turn": 1, "content": "", "ids": [1.5]}',
        '{"role": "assistant", "turn": 1, "content": "", "ids": [-1]}',
        '{"role": "assistant", "turn": 1, "content": "", "ids": [2147483648]}',
        '{"role": "assistant", "turn": 1, "content": "", "ids": [true]}',
        '{"role": "assistant", "turn": 1, "content": "", "ids": [[1]]}',
        '{"settings": 1}',
        '{"settings": {"a": []}}',
        '{"settings": {"a": Infinity}}',
        '{"settings": {"a": 1e999}}',
        '{"settings": {"a": 9223372036854775808}}',
        '{"undo": 1}',
        '{"undo": [2]}',
        '{"undo": [1, 1]}',
        '{"undo": ["1"]}',
        '{"undo": [[1]]}',
        '{"forgot": {"1": 1}}',
        '{"forgot": [3]}',
        '{"pinned": null}',
        '{"unpinned": [1.0]}',
        "[" * 200_000,
        '{"a":' * 200_000,
        '{"role": "user", "turn": 2, "content": "\x01"}',
    ],
)
def test_an_invalid_line_is_refused_with_its_number(path: Path, line: str) -> None:
    write_lines(path, HEADER, USER)
    with path.open("a") as file:
        file.write(f"{line}\n" + '{"role": "system", "content": "x"}\n')
    with pytest.raises(SessionError, match=r"transcript.jsonl, line 3: ") as raised:
        read(path)
    assert "\n" not in str(raised.value)
    with pytest.raises(SessionError):
        Journal.open(path)


@pytest.mark.parametrize(
    "header",
    [
        {"format": "another", "version": 1},
        {"format": None},
        {"format": "mlxchat session"},
        {"format": "mlxchat session", "version": "1"},
        {"format": "mlxchat session", "version": True},
        {"format": "mlxchat session", "version": 0},
        {"settings": {}},
        {"undo": []},
        {"name": "package", "dependencies": {}},
    ],
)
def test_another_kind_of_file_is_refused(path: Path, header: dict[str, Any]) -> None:
    write_lines(path, header, USER)
    with pytest.raises(SessionError, match="line 1"):
        read(path)


def _part_headed(value: object) -> bytes:
    return json.dumps(value).encode() + b"\nlong"


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
ANSWER = {"role": "assistant", "turn": 1, "content": "", "ids": [1], "exact": True}
KEYS = [*HEADER, *USER, *ANSWER, "finish_reason", "settings", "undo", "forgot", "unpinned"]


@given(
    first=st.sampled_from([HEADER, USER, {"role": "user", "content": "hello"}]),
    second=st.sampled_from([USER, ANSWER, {}]),
    changes=st.lists(st.dictionaries(st.sampled_from(KEYS), anything, max_size=2), max_size=3),
    part=st.binary() | anything.map(_part_headed),
)
@hypothesis_settings(deadline=None)
def test_any_json_anywhere_is_read_or_refused(
    first: dict[str, Any], second: dict[str, Any], changes: list[dict[str, Any]], part: bytes
) -> None:
    directory = Path(mkdtemp())
    path = directory / "transcript.jsonl"
    lines = [first, second, *({**second, **change} for change in changes)]
    write_lines(path, *lines)
    path.with_name("reply.unfinished").write_bytes(part)
    try:
        turns = read(path).turns
    except SessionError:
        turns = None
    if turns is not None:
        journal = Journal.open(path)
        journal.record(None, [*journal.contents.turns, Turn("next")])
        assert len(read(path).turns) == len(turns) + 1
    shutil.rmtree(directory)


def test_a_newer_version_is_refused_by_number(path: Path) -> None:
    write_lines(path, {**HEADER, "version": 2})
    with pytest.raises(SessionError, match=r"newer mlxchat, in version 2 .* reads version 1"):
        read(path)


def test_unknown_keys_are_ignored(path: Path) -> None:
    write_lines(path, {**HEADER, "x": 1}, {**USER, "y": [1]}, {"undo": [1], "z": None})
    assert saved_state(path) == (None,)


def test_a_file_that_is_too_large_is_not_read(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**30 + 1)
    with pytest.raises(SessionError, match="too large"):
        read(path)


def test_a_missing_file_a_directory_and_a_pipe_are_refused(path: Path) -> None:
    with pytest.raises(SessionError, match=r"does not exist$"):
        read(path)
    path.mkdir()
    with pytest.raises(SessionError, match="not a regular file"):
        read(path)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(SessionError, match="not a regular file"):
        read(path)


# The older format


def test_a_saved_conversation_is_read_and_continued(path: Path) -> None:
    old = [Turn("one", "yes"), Turn("two", "no")]
    transcript.save(path, "Be kind.", old)
    before = path.read_bytes()
    journal = Journal.open(path)
    assert state(journal.contents.system, journal.contents.turns) == state("Be kind.", old)
    assert journal.contents.serials == [1, 2]
    turns = [*journal.contents.turns, answered("three")]
    turns[0].forgotten = True
    journal.record("Be kind.", turns)
    assert saved_state(path) == state("Be kind.", turns)
    assert path.read_bytes().startswith(before)
    assert read(path).serials == [1, 2, 3]


def test_a_saved_file_may_contain_unicode_line_separators(path: Path) -> None:
    """`/load` had a second reader, which cut lines at U+2028 and refused what `/save` wrote."""
    said = Turn("one\u2028two\x85three\x0cfour", "a\r\nb", thought="c\u2029d")
    transcript.save(path, "e\x1ef", [said])
    saved = read_messages(path)
    assert (saved.system, saved.turns) == ("e\x1ef", [said])


def test_a_new_conversation_takes_only_the_texts_of_a_session(path: Path) -> None:
    journal = Journal.create(path, {"model": "tiny"})
    turn = replace(answered("one"), forgotten=True, pinned=True, thought="hm")
    journal.record("Be kind.", [turn])
    saved = read_messages(path)
    assert (saved.system, saved.turns) == ("Be kind.", [Turn("one", "yes", thought="hm")])


def test_a_missing_newline_at_the_end_loses_nothing(path: Path) -> None:
    transcript.save(path, None, [Turn("one", "yes")])
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    journal = Journal.open(path)
    assert journal.contents.notices == ()
    turns = [*journal.contents.turns, Turn("two")]
    journal.record(None, turns)
    assert saved_state(path) == state(None, turns)
    assert b"\n\n" not in path.read_bytes()


def test_a_reply_without_a_message_is_refused_in_the_older_format(path: Path) -> None:
    write_lines(path, {"role": "assistant", "content": "yes"})
    with pytest.raises(SessionError, match="line 1: a reply without a message"):
        read(path)
    two = {"role": "assistant", "content": "yes"}
    thought = {"role": "assistant", "content": "", "reasoning_content": "hm"}
    for answer in (two, thought):
        write_lines(path, {"role": "user", "content": "one"}, answer, answer)
        with pytest.raises(SessionError, match="line 3"):
            read(path)


# Failing disks


@pytest.fixture
def disk(path: Path) -> Iterator[FailingDisk]:
    with FailingDisk(path.parent, kinds=("write", "sync")).used() as disk:
        yield disk


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


def chat_with_faults(path: Path, disk: FailingDisk) -> Observed:
    """A little of everything. After each step the file can be read, and never loses what could
    already be read; once the disk works again, everything is there."""
    observed = Observed(Journal.create(path, {"model": "tiny"}))
    journal = observed.journal
    turns: list[Turn] = []
    seen: dict[str, str] = {}

    def call(method: Callable[..., None], *arguments: Any) -> None:
        observed.call(method, *arguments)
        found = {turn.user: turn.reply for turn in read(path).turns} if path.exists() else {}
        for turn in turns:
            assert turn.user in found or turn.user not in seen
            assert found.get(turn.user, "").startswith(seen.get(turn.user, ""))
            assert turn.reply.startswith(found.get(turn.user, ""))
        seen.update(found)

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
    assert saved_state(path) == state(None, turns)
    assert read(path).settings == {"model": "tiny", "window": 2}
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    return observed


def test_without_a_fault_nothing_is_reported(path: Path, disk: FailingDisk) -> None:
    observed = chat_with_faults(path, disk)
    assert (observed.complaints, observed.recoveries) == ([], 0)


@pytest.mark.parametrize("length", [1, 2, 5, 1000])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_failure_damages_nothing_and_is_reported_once(
    tmp_path: Path, disk: FailingDisk, length: int, error: int
) -> None:
    chat_with_faults(_fresh(tmp_path), disk)
    disk.error = error
    # The last two calls are made when the disk works again.
    for first in range(len(disk.calls) - 2):
        disk.calls.clear()
        disk.failing = range(first, first + length)
        observed = chat_with_faults(_fresh(tmp_path), disk)
        assert (len(observed.complaints), observed.recoveries) == (1, 1)
        assert os.strerror(error) in observed.complaints[0]
        assert observed.complaints[0].endswith(": the chat continues unsaved")


def _fresh(tmp_path: Path) -> Path:
    return Path(mkdtemp(dir=tmp_path)) / "transcript.jsonl"


@pytest.mark.parametrize("max_bytes", [1, 3, 100])
def test_short_writes_are_continued(path: Path, disk: FailingDisk, max_bytes: int) -> None:
    disk.max_bytes = max_bytes
    observed = chat_with_faults(path, disk)
    assert (observed.complaints, observed.recoveries) == ([], 0)


def test_a_system_that_writes_nothing_is_not_retried_forever(path: Path, disk: FailingDisk) -> None:
    disk.max_bytes = 0
    with pytest.raises(SessionError, match="no more data can be written"):
        Journal.create(path).record(None, [Turn("hello")])


def test_data_that_may_not_have_reached_the_disk_is_written_and_synced_again(
    path: Path, disk: FailingDisk
) -> None:
    """After a failure, the system considers data synced that it could not sync."""
    journal = Journal.create(path)
    turns = [answered("one")]
    journal.record(None, turns)
    before = path.read_bytes()
    turns.append(answered("two"))
    disk.failing, disk.error = [len(disk.calls) + 1], errno.EIO
    with pytest.raises(SessionError, match="Input/output error: the chat continues unsaved"):
        journal.record(None, turns)
    assert saved_state(path) == state(None, turns)
    disk.written.clear()
    journal.record(None, turns)
    assert journal.recovered
    assert before + b"".join(disk.written) == path.read_bytes()
    calls = len(disk.calls)
    journal.record(None, turns)
    assert len(disk.calls) == calls


def test_a_file_system_without_fsync_is_not_an_outage(path: Path, disk: FailingDisk) -> None:
    journal = Journal.create(path)
    disk.failing, disk.error = [1], errno.EINVAL
    journal.record(None, [Turn("hello")])
    assert saved_state(path) == state(None, [Turn("hello")])


def test_an_interrupted_write_is_not_repeated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.create(path)
    turns = [answered("one")]
    journal.record(None, turns)
    turns.append(Turn("two"))

    pwrite = os.pwrite

    def write_and_be_interrupted(descriptor: int, data: memoryview, offset: int) -> int:
        pwrite(descriptor, data, offset)
        raise KeyboardInterrupt

    def fsync_and_be_interrupted(_: int) -> None:
        raise KeyboardInterrupt

    for name, replacement in (
        ("pwrite", write_and_be_interrupted),
        ("fsync", fsync_and_be_interrupted),
    ):
        with monkeypatch.context() as context:
            context.setattr(os, name, replacement)
            with pytest.raises(KeyboardInterrupt):
                journal.record(None, turns)
        assert len(read(path).turns) in (1, 2)
    journal.record(None, turns)
    assert saved_state(path) == state(None, turns)
    assert read(path).serials == [1, 2]

    turns[-1].reply = "abc"
    with monkeypatch.context() as context:
        context.setattr(os, "pwrite", write_and_be_interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.show("a")
    journal.show("bc")
    assert read(path).turns[1].reply == "abc"


def test_a_removed_directory_is_reported_and_not_recreated(tmp_path: Path) -> None:
    path = tmp_path / "session" / "transcript.jsonl"
    path.parent.mkdir()
    journal = Journal.create(path)
    turns = [answered("one")]
    journal.record(None, turns)
    shutil.rmtree(path.parent)
    turns.append(Turn("two"))
    with pytest.raises(SessionError, match=r"cannot save .*No such file or directory: the chat"):
        journal.record(None, turns)
    journal.show("unsaved")
    journal.record(None, turns)
    assert not path.parent.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_directory_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    tmp_path.chmod(0o500)
    journal = Journal.create(path)
    with pytest.raises(SessionError, match="Permission denied: the chat continues unsaved"):
        journal.record(None, [Turn("hello")])
    journal.record(None, [Turn("hello")])
    tmp_path.chmod(0o700)
    journal.record(None, [Turn("hello")])
    assert journal.recovered
    assert saved_state(path) == state(None, [Turn("hello")])


@pytest.mark.parametrize("change", ["longer", "shorter"])
def test_a_file_changed_by_another_program_is_left_alone(path: Path, change: str) -> None:
    journal = Journal.create(path)
    turns = [answered("one")]
    journal.record(None, turns)
    data = path.read_bytes()
    path.write_bytes(data + b"theirs" if change == "longer" else data[:-10])
    theirs = path.read_bytes()
    turns.append(Turn("two"))
    with pytest.raises(SessionError, match="another program has changed it"):
        journal.record(None, turns)
    journal.record(None, turns)
    assert path.read_bytes() == theirs
    path.write_bytes(data)
    journal.record(None, turns)
    assert journal.recovered
    assert saved_state(path) == state(None, turns)


def test_links_are_not_followed_when_writing(path: Path, part: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    journal = Journal.create(path)
    turns = [Turn("one")]
    journal.record(None, turns)
    elsewhere.write_text("")
    part.symlink_to(elsewhere)
    with pytest.raises(SessionError, match=r"cannot save .*reply.unfinished"):
        journal.show("hello")
    assert elsewhere.read_text() == ""
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    turns[0].finish_reason = "stop"
    journal.record(None, turns)
    assert elsewhere.read_bytes() == before


def test_a_reply_that_could_not_be_saved_is_saved_later(path: Path, disk: FailingDisk) -> None:
    journal = Journal.create(path)
    journal.record(None, [Turn("hello")])
    disk.failing = range(len(disk.calls), len(disk.calls) + 2)
    with pytest.raises(SessionError, match=r"reply.unfinished: No space left"):
        journal.show("one")
    journal.show(" two")
    journal.show(" three")
    assert read(path).turns[0].reply == "one two three"


def test_removing_an_unfinished_reply_is_retried(
    path: Path, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it stayed, it would bring back a continuation that was taken back."""
    journal = Journal.create(path)
    turn = Turn("hello")
    journal.record(None, [turn])
    journal.show("a long reply")
    turn.reply, turn.finish_reason = "a long reply", "stop"

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "bad disk")

    with monkeypatch.context() as context:
        context.setattr(Path, "unlink", refuse)
        journal.record(None, [turn])
    assert part.exists()
    turn.reply = "short"
    journal.record(None, [turn])
    assert not part.exists()
    assert saved_state(path) == state(None, [turn])


def test_an_outage_keeps_the_contents_recorded_before_it(path: Path) -> None:
    Journal.create(path, {"a": 1, "b": None}).record("s", [answered("one")])
    contents: Saved = Journal.open(path).contents
    assert contents.settings == {"a": 1, "b": None}
    assert lines_of(path)[0]["created"].endswith("Z")
    assert contents.updated_s == path.stat().st_mtime
