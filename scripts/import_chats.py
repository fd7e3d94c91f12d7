"""Write the conversations that ChatGPT exports, or the database of llm, as files of JSON Lines that
`mlxchat session import` reads, one per conversation.

    python scripts/import_chats.py conversations.json chats    # or the whole .zip
    python scripts/import_chats.py "$(llm logs path)" chats
    for file in chats/*.jsonl; do mlxchat session import "$file"; done

Only text is kept, of the branch that was shown last; stderr counts what is left out.
"""

import argparse
import json
import re
import sqlite3
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

# The files of ChatGPT's archive: one, or in large exports several.
MEMBER = re.compile(r"conversations(-\d+)?\.json")
# What ChatGPT writes in place of a citation.
CITATION = re.compile("\ue200[^\ue200\ue201]*\ue201|【\\d+(?::\\d+)?†[^】]*】")
# Instructions and memory, which ChatGPT adds by itself, and what was shown beside the conversation.
CONTEXT = ("user_editable_context", "model_editable_context", "reasoning_recap")


@dataclass
class Chat:
    """A conversation, message by message. `left_out` counts what is not text, by kind."""

    title: str
    left_out: Counter[str] = field(default_factory=Counter[str])
    system: str = ""
    messages: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    def add(self, role: str, text: str, time: Any = None, thought: str = "") -> None:
        """Successive replies are joined; the first system prompt counts."""
        if role == "system":
            self.system = self.system or text.strip()
        elif role == "user" and text:
            if isinstance(time, int | float):
                time = datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds")
            self.messages.append({"role": "user", "content": text, "time": string(time)})
        elif role == "assistant" and joined(text, thought):
            self.messages = self.messages or [{"role": "user", "content": ""}]
            if self.messages[-1]["role"] == "user":
                self.messages.append({"role": "assistant", "content": "", "reasoning_content": ""})
            answer = self.messages[-1]
            answer["content"] = joined(answer["content"], text)
            answer["reasoning_content"] = joined(answer["reasoning_content"], thought)


def joined(*texts: str) -> str:
    return "\n\n".join(text for text in texts if text.strip())


def string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def chats(path: Path) -> Iterator[Chat]:
    """The conversations in the file. Raises ValueError for another kind of file."""
    with path.open("rb") as file:
        head = file.read(16)
    if head.startswith(b"SQLite format 3"):
        address = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            yield from Logs(connection).chats()
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = sorted(n for n in archive.namelist() if MEMBER.fullmatch(PurePosixPath(n).name))
            if not names:
                raise ValueError("there is no conversations.json in it")
            for name in names:
                yield from of_chatgpt(json.loads(archive.read(name)))
    else:
        yield from of_chatgpt(json.loads(path.read_text("utf-8-sig")))


# ChatGPT


def of_chatgpt(value: Any) -> Iterator[Chat]:
    for each in value if isinstance(value, list) else [value]:
        if "mapping" not in mapping(each):
            raise ValueError("it is not ChatGPT's export: an entry has no messages")
        nodes, end = dict(each["mapping"]), each.get("current_node")
        chat = Chat(string(each.get("title")) or "chatgpt")
        # From the message that was shown last back to the first.
        branch: list[dict[str, Any]] = []
        while end in nodes:
            branch.append(mapping(nodes.pop(end)))
            end = branch[-1].get("parent")
        for node in reversed(branch):
            add_message(chat, mapping(node.get("message")))
        yield chat


def add_message(chat: Chat, message: dict[str, Any]) -> None:
    role = string(mapping(message.get("author")).get("role"))
    content, metadata = mapping(message.get("content")), mapping(message.get("metadata"))
    kind = content.get("content_type")
    if metadata.get("is_visually_hidden_from_conversation") or kind in CONTEXT:
        return
    if role == "tool" or message.get("recipient") not in (None, "all"):
        chat.left_out["tool result" if role == "tool" else "tool call"] += 1
    elif kind == "thoughts":
        thoughts = [string(mapping(each).get("content")) for each in content.get("thoughts") or []]
        chat.add(role, "", thought=joined(*thoughts))
    elif text := text_of(chat, content):
        chat.add(role, f"```\n{text}\n```" if kind == "code" else text, message.get("create_time"))


def text_of(chat: Chat, content: dict[str, Any]) -> str:
    texts = [string(content.get(key)) for key in ("text", "result", "content")]
    for part in content.get("parts") or []:
        # A part with a text is what was said in a voice chat.
        text = part if isinstance(part, str) else mapping(part).get("text")
        if isinstance(text, str):
            texts.append(text)
        else:
            kind = string(mapping(part).get("content_type")).removesuffix("_asset_pointer")
            chat.left_out[kind] += 1
            texts.append(f"[{kind}]")
    text, citations = CITATION.subn("", joined(*texts))
    chat.left_out["citation"] += citations
    return text


# llm

# What older versions lack.
TABLES = {
    "threads": "id, name, tip_message_hash",
    "conversations": "id, name",
    "responses": "id, conversation_id, prompt, system, response, datetime_utc",
    "fragments": "id, content",
    "prompt_fragments": 'response_id, fragment_id, "order"',
    "system_fragments": 'response_id, fragment_id, "order"',
}


class Logs:
    """The database of llm: threads of messages (since 0.32), and conversations of responses."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        tables = {row["name"] for row in self.rows("SELECT name FROM sqlite_master")}
        if not tables & {"threads", "responses"}:
            raise ValueError("it is a database, but not llm's: it has no responses")
        for name in TABLES.keys() - tables:
            connection.execute(f"CREATE TEMP TABLE {name} ({TABLES[name]})")

    def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self._connection.execute(query, values)
        names = [each[0] for each in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def chats(self) -> Iterator[Chat]:
        threads = self.rows("SELECT * FROM threads")
        yield from map(self.of_thread, threads)
        # A conversation that a later version continued is a thread, with all its messages.
        known = {thread["id"] for thread in threads}
        names = {row["id"]: row["name"] for row in self.rows("SELECT * FROM conversations")}
        found: dict[Any, Chat] = {}
        for row in self.rows("SELECT rowid, * FROM responses ORDER BY datetime_utc, rowid"):
            id_ = row["conversation_id"] or row["rowid"]
            if id_ not in known:
                self.add_response(found.setdefault(id_, Chat(names.get(id_) or "llm")), row)
        yield from found.values()

    def add_response(self, chat: Chat, row: dict[str, Any]) -> None:
        chat.add("system", joined(*self.fragments("system", row["id"]), string(row["system"])))
        prompt = "\n".join([*self.fragments("prompt", row["id"]), string(row["prompt"])])
        # llm sends the results of tools back without a prompt: the reply continues.
        chat.add("user", prompt, row["datetime_utc"])
        chat.add("assistant", string(row["response"]), thought=string(row.get("reasoning")))

    def fragments(self, kind: str, response: Any) -> list[str]:
        query = f'SELECT fragment_id FROM {kind}_fragments WHERE response_id = ? ORDER BY "order"'
        return [self.fragment(row["fragment_id"]) for row in self.rows(query, response)]

    def fragment(self, id_: Any) -> str:
        rows = self.rows("SELECT content FROM fragments WHERE id = ?", id_)
        return string(rows[0]["content"]) if rows else ""

    def of_thread(self, thread: dict[str, Any]) -> Chat:
        chat = Chat(thread["name"] or "llm")
        path: list[dict[str, Any]] = []
        end = thread["tip_message_hash"]
        while found := self.rows("SELECT * FROM messages WHERE hash = ?", end):
            path += found
            end = found[0]["parent_hash"]
        for message in reversed(path):
            texts = {"text": "", "reasoning": ""}
            query = "SELECT * FROM parts WHERE message_hash = ? ORDER BY position"
            for part in self.rows(query, message["hash"]):
                if part["type"] in texts:
                    texts[part["type"]] += part["text"] or self.resolved(part["payload"])
                else:
                    chat.left_out[part["type"].replace("_", " ")] += 1
            chat.add(message["role"], texts["text"], thought=texts["reasoning"])
        return chat

    def resolved(self, payload: Any) -> str:
        """A text that is put together from fragments."""
        pieces = mapping(json.loads(payload or "{}")).get("text_ref", [])
        return "".join(self.fragment(p.get("fragment")) + string(p.get("literal")) for p in pieces)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make files that `mlxchat session import` reads.")
    parser.add_argument("export", type=Path, help="ChatGPT's export, or llm's logs.db")
    parser.add_argument("folder", type=Path, help="where to write the conversations")
    given = parser.parse_args()
    taken: Counter[str] = Counter()
    try:
        given.folder.mkdir(parents=True, exist_ok=True)
        for chat in chats(given.export):
            if not chat.messages:
                continue
            name = re.sub(r"[^\w.-]+", " ", chat.title)[:90].strip(" .-") or "chat"
            taken[name.casefold()] += 1
            if (number := taken[name.casefold()]) > 1:
                name = f"{name}-{number}"
            path = given.folder / f"{name}.jsonl"
            system = [{"role": "system", "content": chat.system}] if chat.system else []
            with path.open("x", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(each)}\n" for each in [*system, *chat.messages])
            print(path)
            if left_out := ", ".join(f"{n} {kind}" for kind, n in chat.left_out.items() if n):
                print(f"left out of {path.name}: {left_out}", file=sys.stderr)
    except (OSError, ValueError, TypeError, sqlite3.Error, zipfile.BadZipFile) as error:
        sys.exit(f"cannot import {given.export}: {error}")


if __name__ == "__main__":
    main()
