"""Reads the conversations in the database of llm, https://llm.datasette.io: its `logs.db`.

Three generations of its tables: threads of messages (since 0.32), conversations of responses
(since 0.5), and a single table of logs. A database may have all of them, and any of their columns.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mlxchat.errors import SessionError
from mlxchat.sessions.foreign import MOST_TITLE_CHARS, Foreign, time_s, time_text

PROGRAM = "llm"
# How long to wait for llm to finish writing.
BUSY_S = 5.0
TOOL_CALL, TOOL_RESULT, UNKNOWN = "tool call", "tool result", "part of an unknown kind"
OTHER_BRANCH = "reply of another branch"
# The kinds of attachments, by the first part of their type.
KINDS = {"image": "image", "audio": "recording", "video": "video"}
MOST_ID = 2**63
TABLES = (
    *("threads", "turns", "messages", "parts", "part_attachments"),
    *("conversations", "responses", "prompt_attachments", "prompt_fragments", "system_fragments"),
    *("tool_calls", "tool_results", "attachments", "fragments", "logs", "log"),
)
BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

Row = tuple[Any, ...]


def conversations(path: Path) -> Iterator[Foreign]:
    """All conversations, one at a time; nothing is written. Raises SessionError."""
    try:
        with closing(_connected(path)) as connection:
            logs = _Logs(connection)
            if not logs.are_llms:
                raise SessionError(f"{path} is a database, but not llm's: it has no responses")
            yield from logs.conversations()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in BUSY:
            raise SessionError(f"{path} is in use by another program: try again later") from error
        raise SessionError(f"cannot read {path}: {error}") from error


def _connected(path: Path) -> sqlite3.Connection:
    address = f"file:{quote(str(path.absolute()))}?mode=ro"
    connection = sqlite3.connect(address, uri=True, timeout=BUSY_S)
    connection.text_factory = _text
    connection.execute("PRAGMA query_only = ON")
    # A schema can call functions.
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


class _Logs:
    """The tables of the database, of which any may be missing."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        # A view could compute anything.
        found = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE '%VIRTUAL%'"
        )
        self._columns = {
            name: [str(row[1]) for row in connection.execute(f"PRAGMA table_info({_id(name)})")]
            for (name,) in found.fetchall()
            if name in TABLES
        }

    @property
    def are_llms(self) -> bool:
        return (
            self._has("threads", "tip_message_hash")
            or self._has("responses", "prompt", "response", "conversation_id")
            or any(self._has(table, "prompt", "response") for table in ("logs", "log"))
        )

    def conversations(self) -> Iterator[Foreign]:
        threads = _Threads(self).turns_by_id() if self._has("threads", "tip_message_hash") else {}
        if self._has("responses", "prompt", "response", "conversation_id"):
            for found in _Responses(self).conversations():
                # A conversation that a later version continued is a thread, with all its messages.
                if len(found.turns) > threads.get(found.id, 0):
                    yield found
                    threads.pop(found.id, None)
        for table in ("log", "logs"):
            if self._has(table, "prompt", "response"):
                yield from _oldest(self, table)
        if threads:
            yield from _Threads(self).conversations(threads)

    def rows(self, table: str, columns: str, rest: str, values: Sequence[Any] = ()) -> list[Row]:
        """Columns of the table, separated by spaces, None if there are none of that name."""
        return list(self.each_row(table, columns, rest, values))

    def each_row(
        self, table: str, columns: str, rest: str, values: Sequence[Any] = ()
    ) -> Iterator[Row]:
        have = ("rowid", *self._columns.get(table, ()))
        if len(have) == 1:
            return iter(())
        chosen = [_id(name) if name in have else "NULL" for name in columns.split()]
        return self._connection.execute(
            f"SELECT {', '.join(chosen)} FROM {_id(table)} {rest}", values
        )

    def has(self, table: str, column: str) -> bool:
        return self._has(table, column)

    def _has(self, table: str, *columns: str) -> bool:
        return set(columns) <= set(self._columns.get(table, ()))

    def kind_of(self, attachment: object) -> str:
        rows = self.rows("attachments", "type", "WHERE id = ?", [attachment])
        kind = str(rows[0][0]).partition("/")[0] if rows else ""
        return KINDS.get(kind, "attachment")


class _Responses:
    """Prompts with their responses, of which each belongs to a conversation."""

    def __init__(self, logs: _Logs) -> None:
        self._logs = logs
        self._tool_calls = self._count("tool_calls")
        self._tool_results = self._count("tool_results")

    def conversations(self) -> Iterator[Foreign]:
        # The ids only: the texts may be large, and the tables have no index.
        order = "datetime_utc" if self._logs.has("responses", "datetime_utc") else "rowid"
        ids = self._logs.rows(
            "responses", "conversation_id rowid", f"ORDER BY conversation_id, {order}, rowid"
        )
        for id_, group in groupby(ids, key=itemgetter(0)):
            names = self._logs.rows("conversations", "name", "WHERE id = ?", [id_])
            title = str(names[0][0] or "") if names else ""
            numbers = [number for _, number in group]
            # Without a conversation, each response stands alone.
            for rowids in [numbers] if id_ is not None else [[number] for number in numbers]:
                yield self._conversation(id_, title, rowids)

    def _conversation(self, id_: object, title: str, rowids: Sequence[int]) -> Foreign:
        found = Foreign(PROGRAM, "" if id_ is None else str(id_), title[:MOST_TITLE_CHARS])
        for rowid in rowids:
            row = self._logs.rows(
                "responses",
                "id prompt system response reasoning datetime_utc",
                "WHERE rowid = ?",
                [rowid],
            )
            for id_of_response, prompt, system, response, thought, time in row:
                self._add_prompt(found, id_of_response, prompt, system, time)
                found.answers(_string(response), _string(thought))
                found.left_out[TOOL_CALL] += self._tool_calls[id_of_response]
                found.updated_s = time_s(time) or found.updated_s
        return found

    def _add_prompt(
        self, found: Foreign, id_: object, prompt: object, system: object, time: object
    ) -> None:
        system_texts = [*self._fragments("system_fragments", id_), _string(system)]
        if any(system_texts):
            found.says("\n\n".join(filter(None, system_texts)))
        text = "\n".join(filter(None, [*self._fragments("prompt_fragments", id_), _string(prompt)]))
        left_out = Counter(
            self._logs.kind_of(attachment)
            for (attachment,) in self._logs.rows(
                "prompt_attachments", "attachment_id", "WHERE response_id = ?", [id_]
            )
        )
        results = self._tool_results[id_]
        found.left_out[TOOL_RESULT] += results
        # llm sends the results of tools back without a prompt: the reply goes on.
        if text or left_out or not (results and found.turns):
            found.asks(text, time_text(time), left_out)

    def _fragments(self, table: str, id_: object) -> Iterator[str]:
        rows = self._logs.rows(table, "fragment_id order", "WHERE response_id = ?", [id_])
        for fragment, _ in sorted(rows, key=lambda row: _number(row[1])):
            for (content,) in self._logs.rows("fragments", "content", "WHERE id = ?", [fragment]):
                yield _string(content)

    def _count(self, table: str) -> Counter[object]:
        """How many of them each response has."""
        return Counter(id_ for (id_,) in self._logs.each_row(table, "response_id", ""))


class _Threads:
    """Messages, each with the one before, and threads that end at one of them."""

    def __init__(self, logs: _Logs) -> None:
        self._logs = logs

    def turns_by_id(self) -> dict[object, int]:
        """The threads, and how many messages of the user each has."""
        threads = self._logs.rows("threads", "id tip_message_hash", "ORDER BY rowid")
        return {
            id_: sum(role == "user" for _, role in self._chain(tip)) for id_, tip in threads if tip
        }

    def conversations(self, ids: dict[object, int]) -> Iterator[Foreign]:
        for id_ in ids:
            rows = self._logs.rows(
                "threads", "name tip_message_hash datetime_utc", "WHERE id = ?", [id_]
            )
            for name, tip, time in rows[:1]:
                yield self._conversation(str(id_), _string(name), tip, time)

    def _conversation(self, id_: str, title: str, tip: object, time: object) -> Foreign:
        found = Foreign(PROGRAM, id_, title[:MOST_TITLE_CHARS], time_s(time))
        columns = "parent_message_hash tip_message_hash datetime_utc"
        turns = self._logs.rows("turns", columns, "WHERE thread_id = ?", [id_])
        times = {parent: when for parent, _, when in turns}
        chain = self._chain(tip)
        for message, role in chain:
            self._add(found, message, role, times.get(message))
        said = {message for message, _ in chain}
        found.left_out[OTHER_BRANCH] += sum(end not in said for _, end, _ in turns if end)
        latest = (time_s(when) for when in times.values())
        found.updated_s = max(filter(None, latest), default=found.updated_s)
        return found

    def _chain(self, tip: object) -> list[tuple[object, str]]:
        """The messages that lead to this one, oldest first, with their roles."""
        found: dict[object, str] = {}
        while tip is not None and tip not in found:
            rows = self._logs.rows("messages", "parent_hash role", "WHERE hash = ?", [tip])
            if not rows:
                break
            found[tip] = _string(rows[0][1])
            tip = rows[0][0]
        return [*reversed(found.items())]

    def _add(self, found: Foreign, message: object, role: str, time: object) -> None:
        texts: list[str] = []
        thoughts: list[str] = []
        left_out: Counter[str] = Counter()
        parts = self._logs.rows(
            "parts", "position type text payload id", "WHERE message_hash = ?", [message]
        )
        for _, kind, text, payload, id_ in sorted(parts, key=lambda part: _number(part[0])):
            if kind in ("text", "reasoning"):
                said = texts if kind == "text" else thoughts
                said.append(_string(text) if text is not None else self._resolved(payload))
            elif kind in ("tool_call", "tool_result"):
                left_out[TOOL_CALL if kind == "tool_call" else TOOL_RESULT] += 1
            elif kind != "attachment":
                left_out[UNKNOWN] += 1
            for (attachment,) in self._logs.rows(
                "part_attachments", "attachment_id", "WHERE part_id = ?", [id_]
            ):
                left_out[self._logs.kind_of(attachment)] += 1
        text = "\n".join(filter(None, texts))
        if role == "user":
            found.asks(text, time_text(time), left_out)
            return
        if role == "system" and text:
            found.says(text)
        elif role == "assistant":
            found.answers("".join(texts), "".join(thoughts))
        found.left_out += left_out

    def _resolved(self, payload: object) -> str:
        """A text that is put together from fragments."""
        pieces: list[str] = []
        for piece in _pieces(payload):
            fragment = piece.get("fragment")
            if isinstance(fragment, int) and abs(fragment) < MOST_ID:
                rows = self._logs.rows("fragments", "content", "WHERE id = ?", [fragment])
                pieces += [_string(content) for (content,) in rows]
            else:
                pieces.append(_string(piece.get("literal")))
        return "".join(pieces)


def _oldest(logs: _Logs, table: str) -> Iterator[Foreign]:
    """The chats of a table of prompts with their responses, in which a chat has the id of its first
    row."""
    chat = "chat_id" if logs.has(table, "chat_id") else "rowid"
    ids = logs.rows(table, f"{chat} rowid", f"ORDER BY coalesce({chat}, rowid), rowid")
    chats = ((number if id_ is None else id_, number) for id_, number in ids)
    for id_, group in groupby(chats, key=itemgetter(0)):
        found = Foreign(PROGRAM, f"{table} {id_}")
        for _, number in group:
            columns = "prompt system response datetime_utc timestamp_utc timestamp"
            for prompt, system, response, *times in logs.rows(
                table, columns, "WHERE rowid = ?", [number]
            ):
                if system:
                    found.says(_string(system))
                time = next(filter(None, times), None)
                found.asks(_string(prompt), time_text(time))
                found.answers(_string(response))
                found.updated_s = time_s(time) or found.updated_s
        yield found


def _pieces(payload: object) -> list[dict[str, Any]]:
    try:
        value = json.loads(_string(payload))
        return [piece for piece in value["text_ref"] if isinstance(piece, dict)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def _id(name: object) -> str:
    return '"' + str(name).replace('"', '""') + '"'


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""
