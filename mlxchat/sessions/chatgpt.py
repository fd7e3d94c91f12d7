"""Reads the conversations of ChatGPT's export: `conversations.json`, whole or in numbered parts.

Each is a tree of messages, of which only the branch that ends at `current_node` is imported. The
format has no public description: everything is optional, and nothing is trusted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mlxchat.sessions.foreign import MOST_TITLE_CHARS, Foreign, time_s, time_text

PROGRAM = "chatgpt"
TOOL_CALL, TOOL_RESULT, OTHER_BRANCH = "tool call", "tool result", "message of another branch"
CITATION, HIDDEN, UNKNOWN = "citation", "hidden message", "part of an unknown kind"
# What a part that is not text is called.
KINDS = {
    "image_asset_pointer": "image",
    "audio_asset_pointer": "recording",
    "real_time_user_audio_video_asset_pointer": "recording",
    "video_container_asset_pointer": "video",
}
# Kinds of messages that only say what was shown beside the conversation.
SILENT = ("reasoning_recap",)
# Instructions and memory, which ChatGPT adds to conversations by itself.
CONTEXT = ("user_editable_context", "model_editable_context")
CONTEXT_TEXTS = ("user_profile", "user_instructions", "model_set_context")
TEXTS = ("text", "result", "content")

# ChatGPT marks citations with characters for private use, and earlier with brackets.
_MARK = re.compile("\ue200([^\ue200\ue201]*)\ue201|【\\d+(?::\\d+)?†[^】]*】")
_ENTITY = re.compile('entity\ue202\\["[^"]*","((?:[^"\\\\]|\\\\.)*)"')

Json = Mapping[str, Any]


def is_conversation(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("mapping"), dict)


def conversation(value: Json) -> Foreign:
    """The conversation, without messages if it has none. Raises nothing, whatever the value is."""
    nodes: dict[str, Json] = {
        name: node for name, node in value["mapping"].items() if isinstance(node, dict)
    }
    times = (time_s(value.get("update_time")), time_s(value.get("create_time")))
    found = Foreign(
        PROGRAM,
        id=_string(value.get("conversation_id")) or _string(value.get("id")),
        title=_string(value.get("title"))[:MOST_TITLE_CHARS],
        updated_s=next((time for time in times if time is not None), None),
    )
    branch = _branch(nodes, value.get("current_node"))
    for name in branch:
        message = nodes[name].get("message")
        if isinstance(message, dict):
            _add(found, message)
    others = (node.get("message") for name, node in nodes.items() if name not in branch)
    found.left_out[OTHER_BRANCH] += sum(map(_is_shown, others))
    return found


def _branch(nodes: Mapping[str, Json], current: object) -> dict[str, None]:
    """The names of the nodes from the root to the current one; without that, to the latest."""
    name = current if isinstance(current, str) and current in nodes else _latest_leaf(nodes)
    path: dict[str, None] = {}
    while isinstance(name, str) and name in nodes and name not in path:
        path[name] = None
        name = nodes[name].get("parent")
    return dict.fromkeys(reversed(path))


def _latest_leaf(nodes: Mapping[str, Json]) -> str | None:
    parents = {node.get("parent") for node in nodes.values() if isinstance(node.get("parent"), str)}
    # Of nodes without a time, the last one.
    leaves = [(_node_time(node), n, name) for n, (name, node) in enumerate(nodes.items())]
    return max((leaf for leaf in leaves if leaf[2] not in parents), default=(0, 0, None))[2]


def _node_time(node: Json) -> float:
    message = node.get("message")
    return (time_s(message.get("create_time")) or 0.0) if isinstance(message, dict) else 0.0


def _add(found: Foreign, message: Json) -> None:
    role = _string(_object(message.get("author")).get("role"))
    content = _object(message.get("content"))
    text, left_out = _read(content, _object(message.get("metadata")))
    if _is_hidden(message):
        says_something = bool(text.strip()) or any(map(content.get, CONTEXT_TEXTS))
        found.left_out[HIDDEN] += says_something and role != "tool"
    elif role == "user":
        left_out += _files(message)
        if text.strip() or left_out:
            found.asks(text, time_text(message.get("create_time")), left_out)
    elif role == "assistant":
        _add_answer(found, message, content, text, left_out)
    elif role == "system":
        if text.strip():
            found.says(text)
        found.left_out += left_out
    elif text.strip() or left_out:
        # Of a tool; images are shown to the user.
        found.left_out += left_out
        found.left_out[TOOL_RESULT] += bool(text.strip())


def _add_answer(
    found: Foreign, message: Json, content: Json, text: str, left_out: Counter[str]
) -> None:
    kind = content.get("content_type")
    if kind == "thoughts":
        found.answers(thought=_thoughts(content))
    elif message.get("recipient") not in (None, "all"):
        found.left_out[TOOL_CALL] += 1
    elif kind not in SILENT:
        if kind == "code" and text.strip():
            language = re.sub(r"\W", "", _string(content.get("language")))
            text = f"```{'' if language == 'unknown' else language}\n{text}\n```"
        found.answers(text)
        found.left_out += left_out


def _read(content: Json, metadata: Json) -> tuple[str, Counter[str]]:
    """The text of a message, and what else it has."""
    left_out: Counter[str] = Counter()
    parts = content.get("parts")
    if isinstance(parts, list):
        texts = list(_part_texts(parts, left_out))
    else:
        texts = [text for key in TEXTS if (text := _string(content.get(key)))][:1]
    text = _without_citations("\n\n".join(filter(None, texts)), metadata, left_out)
    return text, left_out


def _part_texts(parts: Iterable[Any], left_out: Counter[str]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            text = part.get("text")
            if isinstance(text, str):
                # What was said in a voice chat.
                yield text
            else:
                left_out[KINDS.get(_string(part.get("content_type")), UNKNOWN)] += 1
        elif part is not None:
            left_out[UNKNOWN] += 1


def _without_citations(text: str, metadata: Json, left_out: Counter[str]) -> str:
    """Citations are replaced with their links, if they have one; marks mean nothing elsewhere."""
    links = {
        _string(each.get("matched_text")): _string(each.get("alt"))
        for each in map(_object, _list(metadata.get("content_references")))
    }

    def shown(mark: re.Match[str]) -> str:
        if links.get(mark[0]):
            return links[mark[0]]
        named = _ENTITY.match(mark[1] or "")
        if named is not None:
            return named[1]
        left_out[CITATION] += 1
        return ""

    return _MARK.sub(shown, text)


def _thoughts(content: Json) -> str:
    texts: list[str] = []
    for each in map(_object, _list(content.get("thoughts"))):
        texts.append(_string(each.get("content")) or _string(each.get("summary")))
    return "\n\n".join(filter(None, texts))


def _files(message: Json) -> Counter[str]:
    """Files that were attached; images are parts of the message as well."""
    attached = map(_object, _list(_object(message.get("metadata")).get("attachments")))
    files = [each for each in attached if not _string(each.get("mime_type")).startswith("image/")]
    return Counter({"attached file": len(files)}) if files else Counter()


def _is_hidden(message: Json) -> bool:
    if _object(message.get("metadata")).get("is_visually_hidden_from_conversation") is True:
        return True
    return _object(message.get("content")).get("content_type") in CONTEXT


def _is_shown(message: Any) -> bool:
    """Whether it is a message with a text, from the user or to the user."""
    if not isinstance(message, dict) or _is_hidden(message):
        return False
    content = _object(message.get("content"))
    role = _object(message.get("author")).get("role")
    if role not in ("user", "assistant") or message.get("recipient") not in (None, "all"):
        return False
    return content.get("content_type") not in SILENT and bool(_read(content, {})[0].strip())


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
