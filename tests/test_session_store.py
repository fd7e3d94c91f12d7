"""Sessions: names, locks, lists, and that nothing outside their directory is ever touched."""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mlxchat.chat.state import Turn
from mlxchat.errors import InvalidName, SessionError, UsageError
from mlxchat.sessions import session as session_module
from mlxchat.sessions.database import Database, names_by_use
from mlxchat.sessions.listing import (
    import_messages,
    latest,
    listing,
    read_session,
    remove,
    rename,
    search,
)
from mlxchat.sessions.records import check_name, update_session
from mlxchat.sessions.session import Session, existing, snapshot_path
from mlxchat.store.snapshot import keep_latest


def make_session(name: str, *turns: Turn, used_s: int | None = None) -> None:
    """A closed session, last used that many seconds after 1970."""
    with Session.open(name, create=True) as session:
        session.settings({"model": "tiny"})
        session.record(None, turns or [Turn("hello", "yes", finish_reason="stop")])
    if used_s is not None:
        with Database() as database:
            record = replace(existing(database, name), updated=float(used_s))
            database.write(lambda connection: update_session(connection, record))


def snapshot_of(name: str) -> Path:
    with Database() as database:
        return snapshot_path(database, existing(database, name).id)


def files(sessions: Path) -> list[str]:
    return sorted(path.name for path in sessions.iterdir())


# Names

USES: list[Callable[[str], object]] = [Session.open, read_session, remove, lambda x: rename(x, "y")]


@pytest.mark.parametrize(
    "name",
    ["", "..", "a/b", "a\0b", ".hidden", "-x", "x ", "x.", "x\n", "a:b", "\ud800", "a" * 101],
)
def test_any_other_name_is_refused(sessions: Path, name: str) -> None:
    make_session("x")
    for valid in ("Über uns", "2026-11-21-153012", "日本語", "हिन्दी", "u\u0308", "_x", "a" * 100):
        check_name(valid)
    creates = [lambda name: Session.open(name, create=True), lambda name: rename("x", name)]
    for use in [*USES, *creates]:
        with pytest.raises(InvalidName, match=r"letters, digits, spaces[^\n]*$"):
            use(name)
    assert names_by_use() == ["x"]
    assert files(sessions) == ["sessions.db"]


def test_an_empty_chat_and_a_missing_one_leave_nothing_on_the_disk(sessions: Path) -> None:
    """A lock stayed for every chat that was killed before its first message."""
    for use in USES:
        with pytest.raises(SessionError, match="no session named 'mine'"):
            use("mine")
    (sessions / "name-killed.lock").touch()
    for session in (Session.new(), Session.open("named", create=True)):
        with session:
            session.settings({"model": "tiny"})
            session.record("Be kind.", [])
            session.show("nobody's")
            assert names_by_use() == []
    assert list(sessions.iterdir()) == []


def test_a_session_whose_turns_are_taken_back_is_deleted_unless_it_has_more() -> None:
    """An empty session without a name was listed for ever."""
    for others in ({}, {"remembered": '["Be kind."]'}):
        with Session.new() as session:
            session.record(None, [Turn("hello")], **others)
            session.record(None, [])
        assert names_by_use() == ([session.name] if others else [])
        assert latest() == (session.name if others else None)
    make_session("mine")
    for name in (session.name, "mine"):
        with Session.open(name) as session:
            session.record(None, [], remembered=None)
    assert names_by_use() == ["mine"]


def test_the_first_turn_creates_a_private_directory(sessions: Path) -> None:
    old = os.umask(0)
    try:
        with Session.open("mine", create=True) as session:
            assert session.snapshot_path is None
            session.record(None, [Turn("hello")])
            session.show("hi")
            assert session.snapshot_path == sessions / "1.safetensors"
            (lock,) = sessions.glob("name-*.lock")
            found = {path.name: path.stat().st_mode & 0o777 for path in sessions.iterdir()}
    finally:
        os.umask(old)
    names = ["sessions.db", "sessions.db-wal", "sessions.db-shm", lock.name, "1.reply"]
    assert found.keys() >= set(names)
    assert set(found.values()) == {0o600}
    assert sessions.stat().st_mode & 0o777 == 0o700
    assert files(sessions) == ["1.reply", "sessions.db"]


def test_new_sessions_are_named_after_the_time_and_never_collide(
    sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events announced one name, and a second later it was saved under another."""
    with Session.new() as first, Session.new() as second, Session.new() as third:
        announced = [third.name, second.name, first.name]
        assert len({*announced}) == 3
        monkeypatch.setattr(session_module, "_names", lambda: iter(["a-second-later"]))
        for session in (first, second, third):
            session.record(None, [Turn("hello")])
        assert names_by_use() == announced
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d{6}", announced[2])


def test_a_name_is_taken_when_opened_and_free_when_closed(sessions: Path, tmp_path: Path) -> None:
    """Two chats opened the same new name; the second one's turns were gone when it had left."""
    (tmp_path / "import.jsonl").write_text('{"role": "user", "content": "hello"}\n')
    make_session("other")
    with Session.open("mine", create=True), Session.new() as unnamed:
        for attempt in (
            lambda: Session.open("mine", create=True),
            lambda: Session.open("MINE", create=True),
            lambda: rename("other", "mine"),
            lambda: unnamed.rename("mine"),
            lambda: import_messages(tmp_path / "import.jsonl", "mine"),
        ):
            with pytest.raises(SessionError, match="is open elsewhere: "):
                attempt()
        assert names_by_use() == ["other"]
    rename("other", "mine")
    assert files(sessions) == ["sessions.db"]
    with Session.open("mine"):
        for attempt in (lambda: remove("mine"), lambda: rename("mine", "yours")):
            with pytest.raises(SessionError, match=f"'mine' is open in process {os.getpid()}: "):
                attempt()
        assert [info.open_in for info in listing()] == [os.getpid()]


def test_a_renamed_session_frees_the_name_it_was_opened_with(sessions: Path) -> None:
    with Session.open("first", create=True) as session:
        session.rename("First")
        session.rename("second")
        with pytest.raises(SessionError, match="is open elsewhere: "):
            Session.open("second", create=True)
        make_session("first")
        session.record(None, [Turn("hello")])
        session.show("half ")
        session.rename("Second")
        with pytest.raises(SessionError, match="already exists"):
            session.rename("FIRST")
        session.rename("third")
        make_session("second")
        session.show("a reply")
        assert read_session("third").turns[0].reply == "half a reply"
    assert sorted(names_by_use()) == ["first", "second", "third"]
    assert not list(sessions.glob("name-*"))


def test_sessions_are_listed_latest_used_first(sessions: Path) -> None:
    """Reading is no use. Three questions about a report began with the report, and looked alike."""
    assert (latest(), listing()) == (None, [])
    report = f"# Report\n\n{'Profits rose. ' * 50}\n\n"
    asked = Turn(f"{report}What does it cost?", forgotten=True, documents=len(report))
    make_session("old", asked, Turn("c"), used_s=1000)
    make_session("new", used_s=3000)
    make_session("in between", used_s=2000)
    snapshot_of("new").write_bytes(b"x" * 5000)
    new, _, old = listing()
    assert latest() == "new"
    assert (new.name, new.turns, new.forgotten, new.updated) == ("new", 1, 0, 3000.0)
    assert (new.bytes, new.first, new.model) == (5000 + len("helloyes"), "hello", "tiny")
    assert (new.open_in, new.error) == (None, None)
    assert (old.name, old.turns, old.forgotten) == ("old", 2, 1)
    assert (old.bytes, old.first) == (len(asked.user) + 1, "What does it cost?")
    Session.open("old").close()
    read_session("old")
    assert latest() == "new"
    make_session("old", Turn("more"))
    assert latest() == "old"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        *(("whale", ["b1", "a1", "c2"]), ("strasse", ["a2", "c1"]), ("STRASSE house", ["c1"])),
        *(("house stra", ["c1"]), ("小白", ["b2"]), ("a", ["c2", "c1"])),
        *((none, []) for none in ("stra whale", "白小", '"z"', "z*", "a OR b", "NEAR(x)", "z\0")),
    ],
)
def test_the_turn_that_says_all_the_words_most_comes_first_in_any_script(
    sessions: Path, words: str, found: list[str]
) -> None:
    one = Turn("One whale among many other animals of the wide and open sea.")
    make_session("a", one, Turn("Straße?", "Not here.\n  In the STRASSE, there\n"))
    make_session("b", Turn("Whales, whales, whales."), Turn("我的狗叫小白", "好名字"))
    make_session("c", Turn("x", "A strasse of houses", forgotten=True), Turn("Whale " + "a " * 900))
    assert [f"{each.name}{each.turn}" for each in search(words)] == found
    with pytest.raises(UsageError, match="letters or digits"):
        search('" * 🐻 \0')


def test_what_was_undone_or_deleted_is_not_found(sessions: Path) -> None:
    """Nor in the file: the index only marked words as deleted."""
    make_session("gone", Turn("whale zanzibar"))
    with Session.open("mine", create=True) as session:
        turns = [Turn("whale zulu"), Turn("dolphin", "whale", finish_reason="stop")]
        session.record(None, turns)
        remove("gone")
        assert [f.name for f in sessions.iterdir() if b"zanzibar" in f.read_bytes()] == []
        session.record(None, turns[1:])
        assert [(each.turn, each.role) for each in search("whale")] == [(1, "assistant")]
        turns[1] = replace(turns[1], reply="Zululand", finish_reason="stop")
        session.record(None, turns[1:])
        turns[1] = replace(turns[1], reply="One.\n  A shark, then\n")
        session.record(None, turns[1:])
        assert search("whale") == []
        assert [each.line for each in search("shark")] == ["A shark, then"]
    assert [f.name for f in sessions.iterdir() if b"zulu" in f.read_bytes()] == []


def test_a_session_whose_database_is_gone_does_not_write_into_another(sessions: Path) -> None:
    """A new database numbers its sessions from the beginning."""
    with Session.open("gone", create=True) as session:
        session.record(None, [Turn("a")])
        shutil.rmtree(sessions)
        make_session("new", Turn("b"))
        with pytest.raises(SessionError, match="no longer exists"):
            session.record(None, [Turn("a", "more")])
    assert [turn.user for turn in read_session("new").turns] == ["b"]


def test_all_but_the_latest_snapshots_are_pruned(sessions: Path) -> None:
    for n in range(5):
        make_session(f"s{n}")
        if n != 1:
            snapshot_of(f"s{n}").write_bytes(b"x")
            os.utime(snapshot_of(f"s{n}"), (1000 * n, 1000 * n))
    keep_latest(sessions, "[0-9]*.safetensors", 2)
    assert [f"s{n}" for n in range(5) if snapshot_of(f"s{n}").exists()] == ["s3", "s4"]
    assert len(listing()) == 5


def test_a_session_is_removed_with_its_files_but_no_links(sessions: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("keep me")
    with Session.open("mine", create=True):
        (lock,) = sessions.glob("name-*.lock")
    make_session("mine")
    snapshot_of("mine").symlink_to(target)
    lock.symlink_to(target)
    with pytest.raises(SessionError, match="cannot open session 'mine'"):
        Session.open("mine")
    lock.unlink()
    (sessions / ".1.safetensors.x1").touch()
    remove("mine")
    assert files(sessions) == ["sessions.db"]
    make_session("mine")
    assert snapshot_of("mine").name == "2.safetensors"
    (sessions / "sessions.db").unlink()
    (sessions / "sessions.db").symlink_to(target)
    with pytest.raises(SessionError, match="cannot list the sessions"):
        listing()
    assert target.read_text() == "keep me"
