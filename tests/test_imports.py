"""What scripts/import_chats.py writes is imported as sessions."""

import json
import sqlite3
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from mlxchat.sessions.listing import import_messages, read_session
from scripts import import_chats

Json = dict[str, Any]
TIME = 1_700_000_000.5
RESPONSES = """
CREATE TABLE conversations (id TEXT PRIMARY KEY, name TEXT, model TEXT);
CREATE TABLE responses (id TEXT PRIMARY KEY, model TEXT, prompt TEXT, system TEXT,
    prompt_json TEXT, response TEXT, conversation_id TEXT, datetime_utc TEXT, reasoning TEXT);
INSERT INTO conversations VALUES ('c1', 'Pelicans: all', 'm'), ('c2', 'Other', 'm');
INSERT INTO responses (id, prompt, system, response, reasoning, conversation_id, datetime_utc)
VALUES
    ('r2', 'and then?', NULL, 'It flew.', NULL, 'c1', '2023-09-01T10:05:00.123456'),
    ('r1', 'a story', 'Be brief.', 'A pelican.', NULL, 'c1', '2023-09-01T10:00:00.123456'),
    ('r3', 'hi', NULL, 'hello', NULL, 'c2', '2023-09-02T10:00:00'),
    ('r5', '', NULL, 'It is noon.', 'Hm.', 'c2', '2023-09-02T10:00:01'),
    ('r4', 'alone', NULL, 'yes', NULL, NULL, NULL);
CREATE TABLE fragments (id INTEGER PRIMARY KEY, content TEXT);
CREATE TABLE prompt_fragments (response_id TEXT, fragment_id INTEGER, "order" INTEGER);
CREATE TABLE system_fragments (response_id TEXT, fragment_id INTEGER, "order" INTEGER);
INSERT INTO fragments VALUES (1, 'second'), (2, 'first'), (3, 'Be kind.');
INSERT INTO prompt_fragments VALUES ('r1', 1, 1), ('r1', 2, 0);
INSERT INTO system_fragments VALUES ('r3', 3, 0);
"""


def message(role: str, *parts: Any, **more: Any) -> Json:
    content = {"content_type": "text", "parts": list(parts)}
    return {"author": {"role": role}, "create_time": TIME, "content": content, **more}


def tree(title: str, *messages: Json | None) -> Json:
    nodes = {
        f"n{n}": {"message": each, "parent": f"n{n - 1}" if n else None}
        for n, each in enumerate(messages)
    }
    # An edited message begins another branch.
    nodes["other"] = {"message": message("user", "edited"), "parent": "n0"}
    return {"title": title, "mapping": nodes, "current_node": f"n{len(messages) - 1}"}


def imported(export: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the sessions."""
    monkeypatch.setattr(sys, "argv", ["import_chats", str(export), str(folder)])
    import_chats.main()
    names = [path.stem for path in sorted(folder.iterdir())]
    for name in names:
        import_messages(folder / f"{name}.jsonl", name)
    return names


def test_the_conversations_of_an_archive_become_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    thoughts = {"content_type": "thoughts", "thoughts": [{"content": "Hm."}]}
    said = [
        None,
        message("system", "Be brief."),
        message("user", {"content_type": "image_asset_pointer"}, "Where to?"),
        {**message("assistant"), "content": thoughts},
        message("assistant", "search()", recipient="browser"),
        message("tool", "a page"),
        message("assistant", "Spain\ue200cite\ue202turn0\ue201."),
        message("assistant", "In \ud800 May."),
    ]
    with zipfile.ZipFile(tmp_path / "export.zip", "w") as archive:
        archive.writestr("data/conversations-000.json", json.dumps([tree("Trip: 1/2", *said)]))
        archive.writestr("data/conversations-001.json", json.dumps([tree("TRIP 1 2", *said)]))
    names = imported(tmp_path / "export.zip", tmp_path / "out", monkeypatch)
    assert names == ["TRIP 1 2-2", "Trip 1 2"]
    saved = read_session("Trip 1 2")
    (turn,) = saved.turns
    assert saved.system == "Be brief."
    assert (turn.user, turn.thought) == ("[image]\n\nWhere to?", "Hm.")
    assert turn.reply == "Spain.\n\nIn ? May."
    assert turn.time == "2023-11-14T22:13:20+00:00"
    left_out = "Trip 1 2.jsonl: 1 citation, 1 image, 1 tool call, 1 tool result"
    assert left_out in capsys.readouterr().err


def test_responses_of_llm_become_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = sqlite3.connect(tmp_path / "x")
    connection.executescript(RESPONSES)
    connection.close()
    names = imported(tmp_path / "x", tmp_path / "out", monkeypatch)
    assert names == ["Other", "Pelicans all", "llm"]
    assert {name: [(t.user, t.reply) for t in read_session(name).turns] for name in names} == {
        "llm": [("alone", "yes")],
        "Pelicans all": [("first\nsecond\na story", "A pelican."), ("and then?", "It flew.")],
        "Other": [("hi", "hello\n\nIt is noon.")],
    }
    assert read_session("Pelicans all").system == "Be brief."
    assert read_session("Other").turns[0].thought == "Hm."
    assert read_session("Other").system == "Be kind."


def test_another_file_is_refused_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content in ("nonsense", "{}", "[1]", '[{"mapping": 1}]'):
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(SystemExit, match=r"cannot import .*x\.json: [^\n]+$"):
            imported(tmp_path / "x.json", tmp_path / "out", monkeypatch)
