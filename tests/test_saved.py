"""Conversations in files: what is exported is imported, and anything else is refused."""

import json
import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxchat.chat.state import State, Turn
from mlxchat.errors import SessionError
from mlxchat.sessions import transcript
from mlxchat.sessions.database import names_by_use
from mlxchat.sessions.listing import import_messages, read_session
from mlxchat.sessions.records import NOTE
from mlxchat.sessions.transcript import read_messages

USER: dict[str, Any] = {"role": "user", "content": "hello", "time": "2026-11-21T15:30:12Z"}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "yes", "reasoning_content": "hm"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "talk.jsonl"


def write_lines(path: Path, *lines: object) -> None:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


texts = st.text(st.characters(exclude_categories=["Cs"]))
notes = texts.filter(len)
with_files = st.builds(Turn, texts.map("abc".__add__), documents=st.integers(0, 3))
turns = st.builds(Turn, texts, texts, thought=texts) | with_files


@given(st.none() | texts, st.none() | notes, st.lists(turns, min_size=1), st.lists(texts))
def test_a_conversation_is_the_same_after_export_and_import(
    system: str | None, note: str | None, said: list[Turn], lines: list[str]
) -> None:
    """`/load` had a second reader, which cut lines at U+2028 and refused what `/save` wrote."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "talk.jsonl"
        exported = State(system, note, tuple(said), remembered=tuple(lines))
        transcript.export(path, exported)
        # Nothing is lost without the last line end.
        path.write_bytes(path.read_bytes().rstrip(b"\n"))
        assert read_messages(path).state == exported


def test_an_import_makes_a_new_session_of_what_can_be_encoded(path: Path) -> None:
    write_lines(path, {**USER, "content": "a\ud800b", "unknown": [1]}, ANSWER)
    assert import_messages(path, "Über uns") == 1
    (turn,) = read_session("über UNS").turns
    assert turn == Turn("a?b", "yes", thought="hm", time=USER["time"])
    with pytest.raises(SessionError, match="session 'Über uns' already exists"):
        import_messages(path, "ÜBER uns")


@pytest.mark.parametrize(
    "line",
    [
        "1",
        '{"role": "tool", "content": ""}',
        '{"role": "user", "content": null}',
        '{"role": "assistant", "content": "again"}',
        '{"role": "user", "content": "cut of',
        "[" * 200_000,
    ],
)
def test_an_invalid_line_is_refused_with_its_number(path: Path, line: str) -> None:
    write_lines(path, USER, ANSWER)
    with path.open("a") as file:
        file.write(f" \n{line}\n")
    with pytest.raises(SessionError, match=r"talk.jsonl, line 4: [^\n]*$"):
        import_messages(path, "mine")
    assert names_by_use() == []


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
anything = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=3), scalars)


@given(st.lists(st.dictionaries(st.sampled_from([*USER, *ANSWER, "name"]), anything, max_size=2)))
def test_any_json_anywhere_is_read_or_refused(changes: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "talk.jsonl"
        write_lines(path, USER, *({**ANSWER, **change} for change in changes))
        with suppress(SessionError):
            assert set(read_messages(path).settings) <= {NOTE}


def test_a_file_that_is_missing_or_a_directory_is_refused(path: Path) -> None:
    with pytest.raises(SessionError, match=r"No such file or directory$"):
        read_messages(path)
    with pytest.raises(SessionError, match=r"Is a directory$"):
        read_messages(path.parent)


def test_a_pipe_is_read_to_its_end() -> None:
    pipe, writer = os.pipe()
    os.write(writer, json.dumps(USER).encode())
    os.close(writer)
    assert len(read_messages(Path(f"/dev/fd/{pipe}")).turns) == 1
