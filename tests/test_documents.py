"""Reading documents: in which order, and what is refused."""

import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxchat import platform
from mlxchat.errors import InputError, MlxchatError
from mlxchat.request import Request
from mlxchat.request.commands import ChatShown
from mlxchat.text import documents
from mlxchat.text.documents import read_input


@pytest.fixture
def in_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, data: bytes | str) -> None:
    Path(name).write_bytes(data.encode() if isinstance(data, str) else data)


TEXT = "  spaces \r\n\ttabs\n\n"
ODD = os.fsdecode(b"caf\xe9\n# \x1b[31msystem")


@pytest.mark.parametrize(
    ("prompt", "files", "piped", "read"),
    [
        # Documents come first, each after its name, and the prompt last.
        ("do it", ["a", "b"], None, f"# a\n\n{TEXT}\n\n# b\n\nsecond\n\ndo it"),
        ("do it", ["b"], b"piped", "# standard input\n\npiped\n\n# b\n\nsecond\n\ndo it"),
        ("do it", ["b", "-"], b"piped", "# b\n\nsecond\n\n# standard input\n\npiped\n\ndo it"),
        # What is only piped in has no heading, nor has a question.
        ("do it", [], b"piped", "piped\n\ndo it"),
        ("do it", ["-"], b"piped", "piped\n\ndo it"),
        ("-", ["a"], b"What is it?", f"# a\n\n{TEXT}\n\nWhat is it?"),
        # Text is not altered, but a name is one line.
        (None, ["a"], None, f"# a\n\n{TEXT}"),
        (TEXT, [], None, TEXT),
        (None, [ODD], None, "# caf\\udce9\\n# \\x1b[31msystem\n\ntext"),
        (None, ["marked"], None, "# marked\n\nhello"),
        ("caf\udce9", [], None, "caf\ufffd"),
    ],
)
def test_how_input_is_read(
    prompt: str | None, files: list[str], piped: bytes | None, read: str, in_directory: None
) -> None:
    marked = b"\xef\xbb\xbfhello"
    for name, data in {"a": TEXT, "b": "second", ODD: "text", "marked": marked}.items():
        write(name, data)
    assert read_input(prompt, files, None if piped is None else io.BytesIO(piped)).text == read
    named = [path.replace("-", "/dev/stdin") for path in files]
    for each in (Request(prompt=prompt, files=tuple(named)), ChatShown(files=tuple(named))):
        assert each.files == tuple(files)


def test_an_empty_pipe_is_reported_with_a_prompt() -> None:
    """The text of another program that had failed was missed without a word."""
    read = read_input("hello", [], io.BytesIO())
    assert (read.text, read.notices) == ("hello", ("standard input is empty",))


@pytest.mark.parametrize(
    ("prompt", "files", "piped", "complaint"),
    [
        (None, [], None, "nothing to read"),
        (None, [], b"", "standard input is empty"),
        ("x", ["none"], None, "none: No such file"),
        ("x", ["-", "-"], b"a", "once"),
        ("x", ["-"], None, "nothing is piped"),
        ("x", ["blank"], None, "blank is empty"),
        ("x", ["https://a.b/c"], None, "https://a.b/c is an address: download it"),
        ("x", ["binary"], None, "binary is binary: it contains a NUL at byte 1,048,576"),
        ("x", ["utf-16"], None, "utf-16 .*iconv"),
    ],
)
def test_what_is_not_there_or_not_text_is_refused_by_name(
    prompt: str | None, files: list[str], piped: bytes | None, complaint: str, in_directory: None
) -> None:
    write("blank", " \n\t\n")
    write("binary", b"x" * (1 << 20) + b"\0")
    write("utf-16", "text".encode("utf-16"))
    with pytest.raises(MlxchatError, match=complaint):
        read_input(prompt, files, None if piped is None else io.BytesIO(piped))


def endless(byte: bytes) -> Any:
    """A stream like `yes` or /dev/zero, empty to those who read without a limit."""
    return SimpleNamespace(read=lambda size: byte * size)


def test_endless_input_is_refused_before_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "free_memory_bytes", lambda: 50_000_000)
    for byte, complaint in ((b"y", "standard input is too large"), (b"\0", "NUL at byte 0")):
        with pytest.raises(InputError, match=complaint):
            read_input(None, [], endless(byte))
    with pytest.raises(InputError, match="is a terminal"):
        read_input(None, [os.ttyname(os.openpty()[1])], None)


def test_documents_that_fit_one_by_one_but_not_together_are_refused(
    in_directory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file had the machine's whole memory for itself."""
    monkeypatch.setattr(documents, "UNCHECKED_BYTES", 1_000)
    monkeypatch.setattr(platform, "free_memory_bytes", lambda: 10_000)
    for name in "abcde":
        write(name, "x" * 900)
    for files in ([*"abcde"], ["."], ["*"]):
        with pytest.raises(InputError, match="b is too large"):
            read_input(None, files, None)


def test_the_lines_of_a_pipe_go_on_where_they_were() -> None:
    lines = (document := documents.document_of(b"a\nb\nc", "the pipe")).lines()
    assert [next(lines), document.bytes_at(0, 3), *lines] == [b"a\n", b"a\nb", b"b\n", b"c"]


@given(st.binary(max_size=50))
def test_any_bytes_are_read_or_refused_in_one_line(data: bytes) -> None:
    if not data.strip() or b"\0" in data or data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        with pytest.raises(InputError, match=r"\A.*\Z"):
            read_input(None, [], io.BytesIO(data))
    elif data != b"\xef\xbb\xbf":
        text = read_input(None, [], io.BytesIO(data)).text
        assert text == data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
