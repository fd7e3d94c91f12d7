"""Conversations in files: what is exported, and sessions as earlier versions kept them."""

import json
import os
import shutil
import sqlite3
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mlxchat import paths
from mlxchat.chat import transcript
from mlxchat.chat.turn import Turn
from mlxchat.errors import SessionError
from mlxchat.sessions.database import names_by_use
from mlxchat.sessions.earlier import insert_saved
from mlxchat.sessions.listing import import_messages, listing, read_session, remove
from mlxchat.sessions.saved import Saved, read_earlier, read_messages
from mlxchat.sessions.session import Session
from mlxchat.sessions.tables import SCHEMA

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
ANSWER: dict[str, Any] = {
    "role": "assistant",
    "turn": 1,
    "content": "",
    "ids": [1],
    "exact": True,
}
INTERRUPTED = "the last reply was interrupted: kept what had been shown"

# What an earlier version wrote, line by line.
LINES: list[dict[str, Any]] = [
    HEADER,
    {"settings": {"model": "tiny", "window": 512}},
    {"role": "system", "content": "Be kind."},
    USER,
    {**ANSWER, "content": "héllo", "ids": [7, 8], "finish_reason": "stop"},
    {"role": "user", "turn": 2, "content": "undone", "time": "2026-11-21T15:31:00Z"},
    {"undo": [2]},
    {"role": "user", "turn": 3, "content": "more", "time": "2026-11-21T15:32:00Z"},
    {
        "role": "assistant",
        "turn": 3,
        "content": "yes",
        "thought": "Hm. So.",
        "later_thoughts": [4],
        "ids": None,
        "exact": False,
        "finish_reason": "length",
    },
    {"forgot": [1, 3]},
    {"remembered": [3]},
    {"pinned": [1, 3]},
    {"unpinned": [1]},
    {"settings": {"window": 1024}},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "transcript.jsonl"


@pytest.fixture
def part(path: Path) -> Path:
    return path.with_name("reply.unfinished")


def write_lines(path: Path, *lines: object) -> None:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def check_all(saved: Saved) -> None:
    """That it is the conversation of LINES."""
    assert saved.system == "Be kind."
    assert saved.settings == {"model": "tiny", "window": 1024}
    assert (saved.serials, saved.last_serial) == ([1, 3], 3)
    one, two = saved.turns
    assert one.ids is not None
    assert one.ids.tolist() == [7, 8]
    one.ids = None
    time = "2026-11-21T15:3{}Z"
    assert one == Turn(
        "hello",
        "héllo",
        exact=True,
        forgotten=True,
        finish_reason="stop",
        time=time.format("0:12"),
    )
    assert two == Turn(
        "more",
        "yes",
        pinned=True,
        finish_reason="length",
        thought="Hm. So.",
        later_thoughts=(4,),
        time=time.format("2:00"),
    )


# Sessions of earlier versions


def test_a_session_of_an_earlier_version_is_read_completely(path: Path) -> None:
    write_lines(path, *LINES)
    check_all(read_earlier(path))


@pytest.mark.parametrize("tail", [b"", b"\0" * 5000, b"\0\0\n"])
def test_a_file_cut_off_anywhere_loses_at_most_its_last_line(path: Path, tail: bytes) -> None:
    write_lines(path, *LINES)
    data = path.read_bytes()
    for cut in range(len(data) + 1):
        whole = data[: data.rfind(b"\n", 0, cut) + 1]
        # A line that has its closing brace lacks at most its line end.
        if not tail and data[cut : cut + 1] == b"\n":
            whole = data[: cut + 1]
        path.write_bytes(whole)
        expected = read_earlier(path)
        path.write_bytes(data[:cut] + tail)
        saved = read_earlier(path)
        assert [turn.user for turn in saved.turns] == [turn.user for turn in expected.turns]
        assert [turn.reply for turn in saved.turns] == [turn.reply for turn in expected.turns]
        assert (saved.system, saved.settings) == (expected.system, expected.settings)
        is_torn = len(data[:cut] + tail) > len(whole)
        assert len(saved.notices) == is_torn


def test_a_damaged_line_in_the_middle_is_refused_with_its_number(path: Path) -> None:
    write_lines(path, *LINES)
    lines = path.read_bytes().splitlines(keepends=True)
    for n in range(len(lines) - 1):
        for damaged in (b"\0" * 20 + b"\n", lines[n][:-5] + b"\n", b"\xff\xfe\n", b"\n", b"null\n"):
            path.write_bytes(b"".join([*lines[:n], damaged, *lines[n + 1 :]]))
            with pytest.raises(SessionError, match=rf"transcript.jsonl, line {n + 1}: "):
                read_earlier(path)


def test_unpaired_surrogates_become_question_marks(path: Path) -> None:
    write_lines(path, HEADER, {**USER, "content": "a\ud800b"})
    assert read_earlier(path).turns[0].user == "a?b"


def test_an_unfinished_reply_replaces_a_shorter_one(path: Path, part: Path) -> None:
    write_lines(path, *LINES)
    for tail in (b"", b"\xc3", b"\0\0\0", b"\xf0\x9f\x98\0"):
        part.write_bytes('{"turn": 3, "so_far": 0}\n\ufdd0thought\ufdd0hi you'.encode() + tail)
        saved = read_earlier(path)
        turn = saved.turns[1]
        assert (turn.thought, turn.reply, turn.finish_reason) == (
            "thought",
            "hi you",
            "interrupted",
        )
        assert (turn.ids, turn.exact) == (None, False)
        assert saved.notices == (INTERRUPTED,)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"turn": 3, "so_far": 0}',
        b'{"turn": 3}\nhi there you all',
        b'{"turn": 1, "so_far": 0}\nhi there you all',
        b'{"turn": true, "so_far": 0}\nhi there you all',
        b'{"turn": 3, "so_far": NaN}\nhi there you all',
        b"[1]\nhi there",
        b'{"turn": 3, "so_far": 0}\nyes',
        b"[" * 100_000 + b"\nhi there",
        b"\xff\xfe\n",
        b"\0" * 100,
    ],
)
def test_an_unfinished_reply_that_adds_nothing_is_ignored(
    path: Path, part: Path, data: bytes
) -> None:
    write_lines(path, *LINES)
    part.write_bytes(data)
    check_all(read_earlier(path))


def test_an_unfinished_reply_that_is_not_a_file_is_ignored(path: Path, part: Path) -> None:
    write_lines(path, *LINES)
    os.mkfifo(part)
    check_all(read_earlier(path))


# Taking them over


def earlier_session(name: str, *lines: object) -> Path:
    directory = paths.sessions_dir() / name
    directory.mkdir(parents=True)
    write_lines(directory / "transcript.jsonl", *lines)
    os.utime(directory / "transcript.jsonl", (1000, 1000))
    return directory


def test_earlier_sessions_are_taken_over_once_and_left_alone() -> None:
    directory = earlier_session("Über uns", *LINES)
    before = (directory / "transcript.jsonl").read_bytes()
    (info,) = listing()
    assert (info.name, info.turns, info.forgotten, info.updated) == ("Über uns", 2, 1, 1000.0)
    check_all(read_session("über uns"))
    with Session.open("Über uns") as session:
        turns = session.journal.contents.turns
        session.journal.record("Be kind.", [*turns, Turn("next")])
        assert session.journal.serial_of(turns[1]) == 3
    assert read_session("Über uns").serials == [1, 3, 4]
    assert (directory / "transcript.jsonl").read_bytes() == before
    remove("Über uns")
    assert listing() == []


def test_an_earlier_session_that_is_damaged_is_listed_with_the_reason() -> None:
    earlier_session("good", *LINES)
    directory = earlier_session("bad", HEADER, "nonsense", USER)
    assert {each.name for each in listing()} == {"good", "bad"}
    (bad,) = (each for each in listing() if each.name == "bad")
    assert bad.error is not None
    assert bad.error.startswith(f"{directory / 'transcript.jsonl'}, line 2: ")
    for attempt in (Session.open, read_session):
        with pytest.raises(SessionError, match="line 2"):
            attempt("bad")


def test_what_is_not_a_session_is_not_taken_over(tmp_path: Path) -> None:
    directory = earlier_session("good", *LINES)
    directory.rename(tmp_path / "elsewhere")
    directory.symlink_to(tmp_path / "elsewhere")
    (paths.sessions_dir() / "empty").mkdir()
    (paths.sessions_dir() / "a file").write_text("")
    earlier_session(".hidden", *LINES)
    assert listing() == []


def test_names_that_differ_only_in_case_are_kept_apart() -> None:
    """A case-sensitive file system may have both."""
    earlier_session("Night", *LINES)
    earlier_session("night", HEADER, USER)
    assert sorted(names_by_use()) == ["Night", "night-2"]
    assert [len(read_session(name).turns) for name in ("Night", "night-2")] == [2, 1]


# Exporting and importing


def test_a_conversation_is_the_same_after_export_and_import(tmp_path: Path) -> None:
    turns = [Turn("one\ntwo", "yes\n\n> quoted", thought="hm"), Turn("", "no"), Turn("last")]
    file = tmp_path / "talk.jsonl"
    transcript.save(file, "Be kind.", turns)
    assert import_messages(file, "talk") == 3
    saved = read_session("talk")
    assert saved.system == "Be kind."
    assert [(each.user, each.reply, each.thought) for each in saved.turns] == [
        (each.user, each.reply, each.thought) for each in turns
    ]
    with pytest.raises(SessionError, match="session 'talk' already exists"):
        import_messages(file, "TALK")


def test_a_file_that_cannot_be_imported_makes_no_session(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("nonsense\n")
    for name, reason in (("a.jsonl", "line 1"), ("b.jsonl", "does not exist")):
        with pytest.raises(SessionError, match=reason):
            import_messages(tmp_path / name, "mine")
    with pytest.raises(SessionError, match="invalid session name"):
        import_messages(tmp_path / "a.jsonl", "a/b")
    assert names_by_use() == []


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
        read_earlier(path)
    assert "\n" not in str(raised.value)


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
        read_earlier(path)


def _part_headed(value: object) -> bytes:
    return json.dumps(value).encode() + b"\nlong"


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
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
        saved = read_earlier(path)
    except SessionError:
        pass
    else:
        # Whatever was read can be written.
        with sqlite3.connect(":memory:") as connection:
            for statement in SCHEMA:
                connection.execute(statement)
            insert_saved(connection, "mine", saved)
    shutil.rmtree(directory)


def test_a_newer_version_is_refused_by_number(path: Path) -> None:
    write_lines(path, {**HEADER, "version": 2})
    with pytest.raises(SessionError, match=r"newer mlxchat, in version 2 .* reads version 1"):
        read_earlier(path)


def test_unknown_keys_are_ignored(path: Path) -> None:
    write_lines(path, {**HEADER, "x": 1}, {**USER, "y": [1]}, {"undo": [1], "z": None})
    assert read_earlier(path).turns == []


def test_a_file_that_is_too_large_is_not_read(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**30 + 1)
    with pytest.raises(SessionError, match="too large"):
        read_earlier(path)


def test_a_missing_file_a_directory_and_a_pipe_are_refused(path: Path) -> None:
    with pytest.raises(SessionError, match=r"does not exist$"):
        read_earlier(path)
    path.mkdir()
    with pytest.raises(SessionError, match="not a regular file"):
        read_earlier(path)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(SessionError, match="not a regular file"):
        read_earlier(path)


# The older format


def test_a_saved_file_may_contain_unicode_line_separators(path: Path) -> None:
    """`/load` had a second reader, which cut lines at U+2028 and refused what `/save` wrote."""
    said = Turn("one\u2028two\x85three\x0cfour", "a\r\nb", thought="c\u2029d")
    transcript.save(path, "e\x1ef", [said])
    saved = read_messages(path)
    assert (saved.system, saved.turns) == ("e\x1ef", [said])


def test_a_new_conversation_takes_only_the_texts_of_a_session(path: Path) -> None:
    answer = {**ANSWER, "content": "yes", "thought": "hm", "finish_reason": "stop"}
    write_lines(
        path, HEADER, {"settings": {"a": 1}}, USER, answer, {"forgot": [1]}, {"pinned": [1]}
    )
    saved = read_messages(path)
    assert saved.turns == [Turn("hello", "yes", thought="hm", time=USER["time"])]


def test_a_missing_newline_at_the_end_loses_nothing(path: Path) -> None:
    transcript.save(path, None, [Turn("one", "yes")])
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    saved = read_messages(path)
    assert (saved.turns, saved.notices) == ([Turn("one", "yes")], ())


def test_a_reply_without_a_message_is_refused_in_the_older_format(path: Path) -> None:
    write_lines(path, {"role": "assistant", "content": "yes"})
    with pytest.raises(SessionError, match="line 1: a reply without a message"):
        read_earlier(path)
    two = {"role": "assistant", "content": "yes"}
    thought = {"role": "assistant", "content": "", "reasoning_content": "hm"}
    for answer in (two, thought):
        write_lines(path, {"role": "user", "content": "one"}, answer, answer)
        with pytest.raises(SessionError, match="line 3"):
            read_earlier(path)
