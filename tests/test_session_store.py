"""Sessions: names, locks, and that nothing outside their directories is ever touched."""

import fcntl
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mlxchat import paths
from mlxchat.chat.turn import Turn
from mlxchat.errors import SessionError
from mlxchat.files import Lock, holder
from mlxchat.files import lock as lock_module
from mlxchat.store import session as session_module
from mlxchat.store.session import SNAPSHOT, Session
from mlxchat.store.session_list import (
    Find,
    Unreadable,
    latest,
    listing,
    prune_snapshots,
    read_session,
    remove,
    rename,
    search,
)
from mlxchat.store.session_names import TRANSCRIPT, check_name, directory_of, names_by_use

OPEN_ELSEWHERE = """
import sys
from mlxchat.chat.turn import Turn
from mlxchat.store.session import Session

session = Session.open(sys.argv[1], create=True)
session.journal.record(None, [*session.journal.contents.turns, Turn("from elsewhere")])
session.journal.show("half a reply")
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "data" / "sessions"
    monkeypatch.setattr(paths, "sessions_dir", lambda: directory)
    return directory


@contextmanager
def open_elsewhere(name: str) -> "Generator[subprocess.Popen[str], None, None]":
    """Another process that has the session open until it is killed."""
    program = OPEN_ELSEWHERE.replace("session = ", _SAME_PLACE + "session = ", 1)
    with subprocess.Popen(
        [sys.executable, "-c", program, name, str(paths.sessions_dir())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "open\n"
            yield process
        finally:
            process.kill()


_SAME_PLACE = """
from pathlib import Path
from mlxchat import paths
paths.sessions_dir = lambda: Path(sys.argv[2])
"""


def make_session(name: str, *turns: Turn, used_s: int | None = None) -> Path:
    """A closed session, last used that many seconds after 1970."""
    with Session.open(name, create=True) as session:
        session.journal.settings({"model": "tiny"})
        session.journal.record(None, turns or [Turn("hello", "yes", finish_reason="stop")])
        if used_s is not None:
            os.utime(session.journal.path, (used_s, used_s))
        return session.directory


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# Names


@pytest.mark.parametrize(
    "name", ["a", "Über uns", "2026-11-21-153012", "a.b", "日本語", "_x", "a" * 100, "a..b", "x-"]
)
def test_letters_digits_spaces_and_some_punctuation_are_valid_names(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "/a",
        "a\0b",
        ".hidden",
        "-x",
        " x",
        "x ",
        "x.",
        "a\nb",
        "x\n",
        "a\\b",
        "a:b",
        "a*",
        "~",
        "\ud800",
        "\u202ex",
        "a" * 101,
        "日" * 90,
    ],
)
def test_any_other_name_is_refused_before_it_is_used_as_a_path(sessions: Path, name: str) -> None:
    make_session("x")
    for attempt in (
        lambda: Session.open(name, create=True),
        lambda: read_session(name),
        lambda: remove(name),
        lambda: rename(name, "y"),
        lambda: rename("x", name),
        lambda: Session.new().rename(name),
    ):
        with pytest.raises(SessionError, match="letters, digits, spaces") as raised:
            attempt()
        assert "\n" not in str(raised.value)
    assert names_by_use() == ["x"]
    assert os.listdir(sessions) == ["x"]  # noqa: PTH208


# Opening


def test_an_empty_chat_leaves_nothing_on_the_disk(sessions: Path) -> None:
    for session in (Session.new(), Session.open("named", create=True)):
        with session:
            session.journal.settings({"model": "tiny"})
            session.journal.record("Be kind.", [])
            session.journal.show("nobody's")
            assert not sessions.parent.exists()
    assert not sessions.parent.exists()


def test_the_first_turn_creates_a_private_directory(sessions: Path) -> None:
    old = os.umask(0)
    try:
        with Session.open("mine", create=True) as session:
            session.journal.record(None, [Turn("hello")])
            session.journal.show("hi")
            assert session.directory == sessions / "mine"
            assert session.snapshot_path == sessions / "mine" / "snapshot.safetensors"
            found = {path.name: mode_of(path) for path in session.directory.iterdir()}
    finally:
        os.umask(old)
    assert found == dict.fromkeys(["transcript.jsonl", "reply.unfinished", "lock"], 0o600)
    assert mode_of(sessions) == mode_of(sessions / "mine") == 0o700


def test_a_session_continues_where_it_was_left(sessions: Path) -> None:
    make_session("mine")
    with Session.open("mine") as session:
        turns = session.journal.contents.turns
        assert [turn.user for turn in turns] == ["hello"]
        session.journal.record(None, [*turns, Turn("more")])
    saved = read_session("mine")
    assert [turn.user for turn in saved.turns] == ["hello", "more"]
    assert saved.settings == {"model": "tiny"}


def test_a_missing_session_is_created_only_on_request(sessions: Path) -> None:
    for attempt in (
        lambda: Session.open("mine"),
        lambda: read_session("mine"),
        lambda: remove("mine"),
        lambda: rename("mine", "yours"),
    ):
        with pytest.raises(SessionError, match="no session named 'mine'"):
            attempt()
    assert not sessions.exists()


def test_new_sessions_are_named_after_the_time_and_never_collide(sessions: Path) -> None:
    with Session.new() as first, Session.new() as second, Session.new() as third:
        for session in (first, second):
            session.journal.record(None, [Turn("hello")])
        assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d{6}", first.name)
        assert second.name.startswith(first.name[:10])
        assert first.name != second.name
        third.journal.record(None, [Turn("hello")])
        assert sorted(os.listdir(sessions)) == sorted(  # noqa: PTH208
            [first.name, second.name, third.name]
        )
    check_name(second.name)


def test_a_new_session_keeps_its_name_until_its_first_turn(
    sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events announced one name, and a second later it was saved under another."""
    with Session.new() as session:
        announced = session.name
        monkeypatch.setattr(session_module, "_names", lambda: iter(["a-second-later"]))
        session.journal.record(None, [Turn("hello")])
        assert session.name == announced
    assert names_by_use() == [announced]


def test_a_name_taken_in_the_meantime_is_not_shared(sessions: Path) -> None:
    with Session.open("mine", create=True) as late:
        with Session.open("mine", create=True) as early:
            early.journal.record(None, [Turn("early")])
            with pytest.raises(SessionError, match=rf"open in process {os.getpid()}: .*unsaved"):
                late.journal.record(None, [Turn("late")])
        late.journal.record(None, [Turn("late")])
    assert [turn.user for turn in read_session("mine").turns] == ["early"]
    with Session.open("mine", create=True) as session:
        assert [turn.user for turn in session.journal.contents.turns] == ["early"]


def test_a_chosen_name_taken_in_the_meantime_is_refused(
    sessions: Path,
) -> None:
    with Session.open("mine", create=True) as late:
        directory = make_session("mine")
        with pytest.raises(SessionError, match="another process has started session 'mine': "):
            late.journal.record(None, [Turn("late")])
        Session.open("mine").close()
        remove("mine")
        assert not directory.exists()
        late.journal.record(None, [Turn("late")])
        assert late.journal.recovered
    assert [turn.user for turn in read_session("mine").turns] == ["late"]


def test_a_directory_without_a_transcript_is_reused(sessions: Path) -> None:
    (sessions / "mine").mkdir(parents=True)
    assert listing() == []
    with pytest.raises(SessionError, match="no session named"):
        Session.open("mine")
    make_session("mine")
    assert names_by_use() == ["mine"]


def test_a_damaged_session_is_not_left_locked(sessions: Path) -> None:
    path = make_session("mine") / "transcript.jsonl"
    good = path.read_bytes()
    path.write_text("nonsense\n")
    with pytest.raises(SessionError, match="line 1"):
        Session.open("mine")
    path.write_bytes(good)
    Session.open("mine").close()


def test_a_session_that_recorded_nothing_leaves_nothing(
    sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with Session.open("mine", create=True) as session, monkeypatch.context() as context:
        context.setattr("mlxchat.files.AppendFile.create", fail)
        with pytest.raises(
            SessionError, match="No space left on device: the chat continues unsaved"
        ):
            session.journal.record(None, [Turn("hello")])
    assert list(sessions.iterdir()) == []


def test_leftovers_of_a_killed_snapshot_are_removed(sessions: Path) -> None:
    directory = make_session("mine")
    (directory / ".snapshot.safetensors.a1b2").write_bytes(b"half")
    Session.open("mine").close()
    assert sorted(path.name for path in directory.iterdir()) == ["lock", "transcript.jsonl"]


def test_a_directory_that_cannot_be_created_is_reported(sessions: Path) -> None:
    sessions.parent.mkdir()
    sessions.write_text("a file")
    with Session.new() as session, pytest.raises(SessionError, match="continues unsaved"):
        session.journal.record(None, [Turn("hello")])
    with pytest.raises(SessionError, match="cannot list"):
        listing()


# Locks


def test_a_session_is_open_in_one_process_at_a_time(sessions: Path) -> None:
    make_session("mine")
    with open_elsewhere("mine") as process:
        message = rf"session 'mine' is open in process {process.pid}: "
        for attempt in (
            lambda: Session.open("mine"),
            lambda: remove("mine"),
            lambda: rename("mine", "yours"),
        ):
            with pytest.raises(SessionError, match=message):
                attempt()
        assert [info.open_in for info in listing()] == [process.pid]
        assert read_session("mine").turns[-1].reply == "half a reply"
    assert names_by_use() == ["mine"]


def test_a_killed_process_leaves_no_lock_and_loses_nothing_shown(sessions: Path) -> None:
    with open_elsewhere("mine") as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (sessions / "mine" / "lock").read_text() == f"{process.pid}\n"
        assert [info.open_in for info in listing()] == [None]
        with Session.open("mine") as session:
            turns = session.journal.contents.turns
            assert [(turn.user, turn.reply) for turn in turns] == [
                ("from elsewhere", "half a reply")
            ]
            assert (sessions / "mine" / "lock").read_text() == f"{os.getpid()}\n"


def test_a_closed_session_can_be_opened_immediately(sessions: Path) -> None:
    directory = make_session("mine")
    for _ in range(3):
        with Session.open("mine") as session:
            assert holder(directory / "lock") == os.getpid()
            session.close()
        assert holder(directory / "lock") is None
        assert (directory / "lock").read_text() == ""


def test_child_processes_do_not_keep_the_lock(sessions: Path) -> None:
    make_session("mine")
    with Session.open("mine") as session:
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
        session.close()
        Session.open("mine").close()
        child.kill()
        child.wait()


@pytest.mark.parametrize("put_back", [True, False])
def test_a_lock_removed_while_it_is_taken_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put_back: bool
) -> None:
    """Otherwise two processes could hold two locks with the same name."""
    path = tmp_path / "lock"
    calls: list[int] = []

    def flock(descriptor: int, operation: int) -> None:
        if not calls:
            path.unlink()
            if put_back:
                path.write_text("")
        calls.append(descriptor)
        real(descriptor, operation)

    real = fcntl.flock
    monkeypatch.setattr(lock_module.fcntl, "flock", flock)
    lock = Lock(path, "mine")
    assert len(calls) == 2
    assert path.read_text() == f"{os.getpid()}\n"
    assert holder(path) == os.getpid()
    with pytest.raises(SessionError, match="is open in process"):
        Lock(path, "mine")
    lock.release()
    lock.release()
    Lock(path, "mine").release()


@pytest.mark.parametrize("content", ["", "0\n", "-1\n", "12", "x" * 100, "9" * 400 + "\n"])
def test_a_lock_without_a_process_id_still_locks(tmp_path: Path, content: str) -> None:
    path = tmp_path / "lock"
    lock = Lock(path, "mine")
    path.write_text(content)
    assert holder(path) is None
    with pytest.raises(SessionError, match="is open in another process: "):
        Lock(path, "mine")
    lock.release()


def test_a_file_system_without_locks_is_reported(
    sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_session("mine")

    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(lock_module.fcntl, "flock", refuse)
    with pytest.raises(SessionError, match="cannot open session 'mine': No locks available"):
        Session.open("mine")


# All sessions


def test_sessions_are_listed_latest_first(sessions: Path) -> None:
    assert (latest(), listing()) == (None, [])
    make_session("old", Turn("a\nb", forgotten=True), Turn("c"), used_s=1000)
    newer = make_session("new", used_s=3000)
    broken = make_session("broken", used_s=2000)
    (newer / SNAPSHOT).write_bytes(b"x" * 5000)
    (broken / "transcript.jsonl").write_text("nonsense\n")
    os.utime(broken / "transcript.jsonl", (2000, 2000))
    (sessions / ".hidden").mkdir()
    (sessions / "a file").write_text("")
    (sessions / "empty").mkdir()

    new, in_between, old = listing()
    assert latest() == "new"
    assert (new.name, new.turns, new.forgotten, new.updated) == ("new", 1, 0, 3000.0)
    assert new.bytes == 5000 + (newer / "transcript.jsonl").stat().st_size
    assert (new.first, new.model, new.open_in, new.error) == ("hello", "tiny", None, None)
    assert (old.name, old.turns, old.forgotten, old.first) == ("old", 2, 1, "a\nb")
    assert (in_between.name, in_between.turns, in_between.updated) == ("broken", 0, 2000.0)
    assert in_between.error is not None
    assert "line 1" in in_between.error


def test_a_session_about_a_document_is_listed_by_its_question(sessions: Path) -> None:
    """Three questions about a report looked alike: each row began with the report."""
    make_session("report", Turn(f"# Report\n\n{'Profits rose. ' * 50}\n\nWhat does it cost?"))
    make_session("poem", Turn("Roses are red.\n\nGo on."))
    make_session("long", Turn("Go on. " * 100))
    first = {each.name: each.first for each in listing()}
    assert first["report"] == "… What does it cost?"
    assert first["poem"] == "Roses are red.\n\nGo on."
    assert first["long"].startswith("Go on. Go on.")


def test_reading_a_session_does_not_make_it_the_latest(sessions: Path) -> None:
    make_session("one", used_s=1000)
    make_session("two", used_s=2000)
    Session.open("one").close()
    read_session("one")
    assert latest() == "two"
    with Session.open("one") as session:
        session.journal.record(None, [*session.journal.contents.turns, Turn("more")])
    assert latest() == "one"


def test_a_word_is_found_in_all_sessions(sessions: Path) -> None:
    make_session("old", Turn("Straße?", "Not here.\n  In the STRASSE, there\n"), used_s=1000)
    make_session("new", Turn("hello"), Turn("x", "strasse", forgotten=True), used_s=3000)
    (make_session("broken") / "transcript.jsonl").write_text("nonsense\n")
    os.utime(sessions / "broken" / "transcript.jsonl", (2000, 2000))
    first, broken, *rest = search("strasse")
    assert first == Find("new", 2, "assistant", "strasse")
    assert isinstance(broken, Unreadable)
    assert broken.name == "broken"
    assert rest == [
        Find("old", 1, "user", "Straße?"),
        Find("old", 1, "assistant", "In the STRASSE, there"),
    ]


def test_all_but_the_latest_snapshots_are_pruned(sessions: Path) -> None:
    for n in range(5):
        directory = make_session(f"s{n}", used_s=1000 * n)
        if n != 1:
            (directory / SNAPSHOT).write_bytes(b"x")
            (directory / ".snapshot.safetensors.x").write_bytes(b"x")
    with open_elsewhere("s0") as process:
        os.utime(sessions / "s0" / "transcript.jsonl", (0, 0))
        assert prune_snapshots(keep=2) == 1
        process.kill()
        process.wait()
    left = sorted(path.parent.name for path in sessions.glob(f"*/{SNAPSHOT}"))
    assert left == ["s0", "s3", "s4"]
    assert not (sessions / "s2" / ".snapshot.safetensors.x").exists()
    assert prune_snapshots() == 0
    assert prune_snapshots(keep=0) == 3
    assert len(listing()) == 5


def test_a_snapshot_that_cannot_be_pruned_is_skipped(sessions: Path) -> None:
    (make_session("odd", used_s=1000) / SNAPSHOT).mkdir()
    (make_session("good", used_s=500) / SNAPSHOT).write_bytes(b"x")
    assert prune_snapshots(keep=0) == 1


# Renaming and removing


def test_a_session_is_renamed(sessions: Path) -> None:
    make_session("old")
    make_session("taken")
    with pytest.raises(SessionError, match="session 'taken' already exists"):
        rename("old", "taken")
    (sessions / "empty").mkdir()
    with pytest.raises(SessionError, match="session 'empty' already exists"):
        rename("old", "empty")
    rename("old", "new")
    assert sorted(names_by_use()) == ["new", "taken"]
    assert read_session("new").turns[0].user == "hello"


@pytest.mark.parametrize(("saved", "asked"), [("Night", "night"), ("Über uns", "über UNS")])
def test_names_that_differ_only_in_case_are_one_session(
    saved: str, asked: str, sessions: Path
) -> None:
    """On a Mac they share a directory, so one session had two names and could not be renamed from
    one to the other."""
    make_session(saved)
    make_session("other")
    with Session.open(asked, create=True) as session:
        assert session.name == saved
        assert session.journal.contents.turns[0].user == "hello"
    assert read_session(asked).turns[0].user == "hello"
    with pytest.raises(SessionError, match=f"session '{saved}' already exists"):
        rename("other", asked)
    rename(saved, asked)
    assert sorted(names_by_use()) == sorted([asked, "other"])
    rename(asked, saved)
    remove(asked)
    assert names_by_use() == ["other"]


def test_a_name_can_change_in_case_on_a_case_insensitive_file_system(
    sessions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exists(path: Path) -> bool:
        """As on macOS."""
        names = {each.name.casefold() for each in path.parent.iterdir()}
        return path.name.casefold() in names

    make_session("night")
    monkeypatch.setattr(session_module, "_exists", exists)
    with Session.open("NIGHT") as session:
        session.rename("Night")
        assert session.name == "Night"
    assert names_by_use() == ["Night"]


def test_existing_sessions_with_such_names_stay_separate(sessions: Path) -> None:
    """A case-sensitive file system may have both, from another version."""
    for name in ("Night", "night"):
        (sessions / name).mkdir(parents=True)
        (sessions / name / TRANSCRIPT).write_text("")
    assert directory_of("Night").name == "Night"
    assert directory_of("night").name == "night"


def test_an_open_session_continues_under_its_new_name(sessions: Path) -> None:
    make_session("taken")
    with Session.open("old", create=True) as session:
        turns = [Turn("one")]
        session.journal.record(None, turns)
        session.journal.show("half ")
        with pytest.raises(SessionError, match="already"):
            session.rename("taken")
        session.rename("new")
        session.journal.show("a reply")
        assert session.directory == sessions / "new"
        assert read_session("new").turns[0].reply == "half a reply"
        turns[0].reply, turns[0].finish_reason = "half a reply", "stop"
        session.journal.record(None, turns)
        with pytest.raises(SessionError, match="is open in process"):
            Session.open("new")
    assert sorted(names_by_use()) == ["new", "taken"]
    assert not (sessions / "new" / "reply.unfinished").exists()
    Session.open("new").close()


def test_a_session_can_be_renamed_before_anything_is_said(sessions: Path) -> None:
    make_session("taken")
    with Session.new() as session:
        with pytest.raises(SessionError, match="already"):
            session.rename("taken")
        session.rename("mine")
        session.journal.record(None, [Turn("hello")])
        assert session.name == "mine"
    assert sorted(names_by_use()) == ["mine", "taken"]


def test_a_session_is_removed_with_all_its_files(sessions: Path) -> None:
    directory = make_session("mine")
    for name in (SNAPSHOT, "reply.unfinished", ".snapshot.safetensors.x1"):
        (directory / name).write_bytes(b"x")
    remove("mine")
    assert list(sessions.iterdir()) == []


def test_a_session_with_other_files_in_its_directory_is_not_removed(sessions: Path) -> None:
    directory = make_session("mine")
    (directory / "notes.txt").write_text("keep me")
    with pytest.raises(SessionError, match=r"is not deleted.*'notes.txt'"):
        remove("mine")
    assert sorted(path.name for path in directory.iterdir()) == [
        "lock",
        "notes.txt",
        "transcript.jsonl",
    ]


def test_a_directory_instead_of_a_file_is_reported(sessions: Path) -> None:
    (make_session("mine") / SNAPSHOT).mkdir()
    with pytest.raises(SessionError, match="cannot remove session 'mine': "):
        remove("mine")


def test_a_link_is_not_a_session_and_its_target_is_not_touched(
    sessions: Path, tmp_path: Path
) -> None:
    make_session("mine").rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / SNAPSHOT).write_bytes(b"x")
    (sessions / "mine").symlink_to(tmp_path / "elsewhere")
    (sessions / "dangling").symlink_to(tmp_path / "nowhere")
    before = sorted((tmp_path / "elsewhere").iterdir())
    for attempt in (
        lambda: Session.open("mine", create=True),
        lambda: read_session("mine"),
        lambda: remove("mine"),
        lambda: rename("mine", "yours"),
    ):
        with pytest.raises(SessionError, match="is a symbolic link, so it is not a session"):
            attempt()
    session = Session.open("dangling", create=True)
    with session, pytest.raises(SessionError, match="is a symbolic link"):
        session.journal.record(None, [Turn("hello")])
    assert latest() is None
    assert [(info.name, bool(info.error)) for info in listing()] == [("mine", True)]
    assert prune_snapshots(keep=0) == 0
    assert sorted((tmp_path / "elsewhere").iterdir()) == before


def test_links_in_a_session_are_removed_but_not_their_targets(
    sessions: Path, tmp_path: Path
) -> None:
    target = tmp_path / "precious"
    target.write_text("keep me")
    directory = make_session("mine")
    for name in (SNAPSHOT, "reply.unfinished"):
        (directory / name).symlink_to(target)
    remove("mine")
    assert target.read_text() == "keep me"
    directory = make_session("mine")
    (directory / "lock").unlink()
    (directory / "lock").symlink_to(target)
    with pytest.raises(SessionError, match="cannot open session 'mine'"):
        Session.open("mine")
    assert target.read_text() == "keep me"
