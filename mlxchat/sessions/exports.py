"""Conversations that other programs exported, recognized by the contents of the file."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from mlxchat.errors import SessionError
from mlxchat.files import open_to_read, reported_as
from mlxchat.sessions import chatgpt, llm_logs
from mlxchat.sessions.foreign import Foreign
from mlxchat.sessions.json_items import items

HEAD_BYTES = 1 << 16
SQLITE = b"SQLite format 3\0"
# Of an archive with files, and of one without.
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
# The files of an archive: one, or in large exports several.
MEMBER = re.compile(r"conversations(?:-\d+)?\.json", re.IGNORECASE)
MAX_UNPACKED_BYTES = 1 << 34
# Conversations are packed to a tenth or so; no text is packed to less than a 200th.
MAX_RATIO = 200
RATIO_FREE_BYTES = 1 << 20
# What Python raises for an archive that is damaged, encrypted or packed in another way.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


def conversations(path: Path) -> Iterator[Foreign] | None:
    """The conversations in the file, one at a time; None if it is not an export that we know.

    Raises SessionError, also while they are read: those before can be used.
    """
    with _reported(path), open_to_read(path) as file:
        head = file.read(HEAD_BYTES)
    if head.startswith(SQLITE):
        return llm_logs.conversations(path)
    if head.startswith(ZIP):
        return _in_archive(path)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    # A line of JSON Lines has a role or a format; other objects begin with something else.
    if text.startswith(b"[") or (text.startswith(b"{") and b'"mapping"' in text):
        return _in_file(path)
    return None


def _in_file(path: Path) -> Iterator[Foreign]:
    with _reported(path), open_to_read(path) as file:
        yield from _read(path, file, str(path))


def _in_archive(path: Path) -> Iterator[Foreign]:
    with _reported(path), open_to_read(path) as file, zipfile.ZipFile(file) as archive:
        members = [each for each in archive.infolist() if _is_member(each.filename)]
        if not members:
            raise SessionError(f"{path} is not ChatGPT's export: it has no conversations.json")
        for member in sorted(members, key=lambda each: each.filename):
            _check_size(path, member)
            with archive.open(member) as unpacked:
                yield from _read(path, unpacked, f"{path}, {PurePosixPath(member.filename).name}")


def _read(path: Path, file: IO[bytes], place: str) -> Iterator[Foreign]:
    number = 0
    values = items(file)
    while True:
        try:
            value = next(values, None)
        except ValueError as error:
            after = f" after conversation {number}" if number else ""
            raise SessionError(f"{place}{after}: {error}") from error
        if value is None:
            return
        number += 1
        if not chatgpt.is_conversation(value):
            raise SessionError(_refusal(path, value))
        yield chatgpt.conversation(value)


def _refusal(path: Path, value: Any) -> str:
    if isinstance(value, dict) and "chat_messages" in value:
        return f"{path} is an export of Claude, which mlxchat cannot import"
    return f"{path} is not ChatGPT's export: it has an entry without messages"


def _is_member(name: str) -> bool:
    path = PurePosixPath(name)
    return MEMBER.fullmatch(path.name) is not None and "__MACOSX" not in path.parts


def _check_size(path: Path, member: zipfile.ZipInfo) -> None:
    most = max(RATIO_FREE_BYTES, MAX_RATIO * member.compress_size)
    if member.file_size > min(most, MAX_UNPACKED_BYTES):
        raise SessionError(
            f"{path} is not an export: {PurePosixPath(member.filename).name} would be "
            f"{member.file_size:,} bytes, from {member.compress_size:,}"
        )


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        with reported_as(SessionError, f"read {path}"):
            yield
    except _ZIP_ERRORS as error:
        reason = str(error).partition("\n")[0] or "it is cut off"
        raise SessionError(f"{path} is a damaged archive: {reason}; download it again") from error
