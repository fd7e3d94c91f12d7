"""Conversations of other programs become sessions; what a session cannot hold is named."""

import json
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import pytest

from mlxchat.chat.turn import Turn
from mlxchat.errors import SessionError
from mlxchat.sessions.chatgpt import conversation
from mlxchat.sessions.database import Database, names_by_use
from mlxchat.sessions.exports import conversations
from mlxchat.sessions.imports import Imported, import_file
from mlxchat.sessions.json_items import items
from mlxchat.sessions.listing import listing, read_session
from mlxchat.sessions.session import Session
from tests.in_process import run_in_process

Json = dict[str, Any]
TIME = 1_700_000_000.5


def message(role: str, *parts: Any, **more: Any) -> Json:
    content = {"content_type": "text", "parts": list(parts)}
    return {"author": {"role": role}, "create_time": TIME, "content": content, **more}


def chain(*messages: Json | None, **more: Any) -> Json:
    """A conversation without branches."""
    nodes = {
        f"n{n}": {
            "id": f"n{n}",
            "message": each,
            "parent": f"n{n - 1}" if n else None,
            "children": [f"n{n + 1}"],
        }
        for n, each in enumerate(messages)
    }
    last = f"n{len(messages) - 1}"
    return {"id": "c", "title": "Trip", "mapping": nodes, "current_node": last, **more}


TRIP = chain(
    None,
    message("system", ""),
    message("user", "Where to?"),
    message("assistant", "Spain."),
    message("user", "When?"),
    message("assistant", "In May."),
    create_time=TIME,
    update_time=TIME + 60,
)

SECOND = {**TRIP, "id": "d", "title": "Second"}


def export(path: Path, *found: Json) -> Path:
    path.write_text(json.dumps(found))
    return path


def texts(name: str) -> list[tuple[str, str]]:
    return [(turn.user, turn.reply) for turn in read_session(name).turns]


# ChatGPT


def test_a_conversation_becomes_a_session_with_its_title_and_times(tmp_path: Path) -> None:
    imported = import_file(export(tmp_path / "conversations.json", TRIP), None)
    assert imported == Imported(["Trip"], turns=2)
    assert texts("Trip") == [("Where to?", "Spain."), ("When?", "In May.")]
    assert read_session("Trip").turns[0].time == "2023-11-14T22:13:20+00:00"
    assert listing()[0].updated == TIME + 60


def test_a_name_that_an_empty_chat_has_opened_is_not_taken_from_it(tmp_path: Path) -> None:
    with Session.open("trip", create=True) as session:
        imported = import_file(export(tmp_path / "conversations.json", TRIP), None)
        assert imported == Imported(["Trip-2"], turns=2)
        session.journal.record(None, [Turn("mine")])
    assert texts("trip") == [("mine", "")]


@pytest.mark.parametrize("name", ["conversations.json", "export.md", "export.jsonl", "x"])
def test_the_format_is_recognized_by_the_contents(name: str, tmp_path: Path) -> None:
    assert import_file(export(tmp_path / name, TRIP), None).names == ["Trip"]


def test_one_conversation_outside_a_list_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "trip.json"
    path.write_text("\ufeff \n" + json.dumps(TRIP))
    assert import_file(path, "spain").names == ["spain"]


def test_an_archive_is_read_in_one_part_or_several(tmp_path: Path) -> None:
    path = tmp_path / "export"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/conversations-001.json", json.dumps([SECOND]))
        archive.writestr("data/conversations-000.json", json.dumps([TRIP]))
        archive.writestr("__MACOSX/data/conversations-000.json", b"\0")
        archive.writestr("chat.html", "<html>")
    assert import_file(path, None).names == ["Trip", "Second"]


def test_only_the_branch_of_the_current_message_is_imported() -> None:
    tree = chain(message("user", "a"), message("assistant", "old"), message("user", "b"))
    tree["mapping"]["new"] = {"message": message("assistant", "new"), "parent": "n0"}
    tree["current_node"] = "new"
    found = conversation(tree)
    assert [(turn.user, turn.reply) for turn in found.turns] == [("a", "new")]
    assert found.omissions == "2 messages of another branch"


def test_without_a_current_message_the_latest_branch_is_imported() -> None:
    tree = chain(message("user", "a"), message("assistant", "old"))
    later = message("assistant", "new", create_time=TIME + 1)
    tree["mapping"] = {"new": {"message": later, "parent": "n0"}} | tree["mapping"]
    del tree["current_node"]
    assert conversation(tree).turns[0].reply == "new"


def test_what_is_not_text_is_counted_and_marked() -> None:
    image = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://x"}
    spoken = {"content_type": "audio_transcription", "text": "hello there"}
    files = {"attachments": [{"mime_type": "application/pdf"}, {"mime_type": "image/png"}]}
    found = conversation(
        chain(
            message("user", image, image),
            message("assistant", "Nice."),
            message("user", image, "What is this?", metadata=files),
            message("assistant", "search(spain)", recipient="browser"),
            message("tool", "a page"),
            message("tool", image),
            message("assistant", "It is", ""),
            message("assistant", "Spain."),
            message("user", spoken, {"content_type": "audio_asset_pointer"}),
        )
    )
    assert [(turn.user, turn.reply) for turn in found.turns] == [
        ("[2 images]", "Nice."),
        ("What is this?", "It is\n\nSpain."),
        ("hello there", ""),
    ]
    assert found.omissions == "1 attached file, 4 images, 1 recording, 1 tool call, 1 tool result"


def test_thoughts_code_and_citations_are_read() -> None:
    link = "\ue200cite\ue202turn0search0\ue201"
    named = '\ue200entity\ue202["city","Madrid"]\ue201'
    references = {"content_references": [{"matched_text": link, "alt": "([El País](https://e))"}]}
    cited = f"In {named} {link}, yes【1†source】 \ue200cite\ue202turn9\ue201."
    thoughts = {"content_type": "thoughts", "thoughts": [{"summary": "s", "content": "Hm."}, 1]}
    code = {"content_type": "code", "language": "python", "text": "print(1)"}
    found = conversation(
        chain(
            message("user", "a"),
            message("assistant", content=thoughts),
            message("assistant", content={"content_type": "reasoning_recap", "content": "4s"}),
            message("assistant", content=code, recipient="all"),
            message("assistant", cited, metadata=references),
        )
    )
    (turn,) = found.turns
    assert turn.thought == "Hm."
    assert turn.reply == "```python\nprint(1)\n```\n\nIn Madrid ([El País](https://e)), yes ."
    assert found.omissions == "2 citations"


def test_hidden_messages_are_left_out_and_counted() -> None:
    hidden = {"is_visually_hidden_from_conversation": True}
    context = {"content_type": "user_editable_context", "user_profile": "I am Ada"}
    found = conversation(
        chain(
            message("system", "", metadata=hidden),
            message("user", content=context),
            message("system", "secret", metadata=hidden),
            message("system", "Be kind."),
            message("user", "a"),
        )
    )
    assert found.system == "Be kind."
    assert [turn.user for turn in found.turns] == ["a"]
    assert found.omissions == "2 hidden messages"


@pytest.mark.parametrize(
    "damage",
    [
        {"mapping": {"a": {"parent": "b"}, "b": {"parent": "a"}}, "current_node": "a"},
        {"mapping": {"a": {"parent": "a", "message": message("user", "x")}}},
        {"mapping": {"a": None, "b": 1, "c": {"message": []}}, "current_node": ["a"]},
        {"mapping": {"a": {"parent": ["a"], "message": {"author": 1, "content": "x"}}}},
        {"mapping": {"a": {"message": message("user", None, 1, [], {"content_type": []})}}},
        {"title": None, "update_time": 1e300, "create_time": float("nan")},
        {"title": 1, "id": None, "update_time": [], "create_time": "x"},
        {"mapping": {"a": {"message": {"author": {"role": []}, "metadata": 1, "content": None}}}},
        {"mapping": {"a": {"message": message("assistant", "x", metadata={"attachments": [1]})}}},
    ],
)
def test_no_value_in_the_tree_is_trusted(damage: Json, tmp_path: Path) -> None:
    import_file(export(tmp_path / "x", {**TRIP, **damage}), None)


def test_a_conversation_of_very_many_messages_is_read() -> None:
    assert len(conversation(chain(*[message("user", "a")] * 50_000)).turns) == 50_000


def test_escape_sequences_in_a_title_do_not_reach_the_terminal(tmp_path: Path) -> None:
    image = message("user", {"content_type": "image_asset_pointer"})
    path = export(tmp_path / "x", chain(image, title="\x1b]0;gone\x07../../etc\0/passwd\n.\ud800"))
    done = run_in_process("session", "import", str(path))
    assert done.stdout == "imported 1 turn as 0 gone ..etc passwd\n".replace("..etc", ".. .. etc")
    assert done.stderr == "mlxchat: left out of '0 gone .. .. etc passwd': 1 image\n"


def test_names_that_are_taken_get_a_number(tmp_path: Path) -> None:
    trips = [chain(message("user", f"{n}"), title="TRIP" if n == 2 else "Trip") for n in range(3)]
    assert import_file(export(tmp_path / "x", *trips), None).names == ["Trip", "Trip-2", "TRIP-3"]
    untitled = [chain(message("user", title or "x"), title=title) for title in ("", "…")]
    assert import_file(export(tmp_path / "x", *untitled), None).names == ["chatgpt", "chatgpt-2"]


def test_importing_a_file_again_imports_only_what_is_new(tmp_path: Path) -> None:
    path = export(tmp_path / "x", TRIP)
    import_file(path, None)
    assert import_file(path, None) == Imported(present=1)
    longer = chain(*[each["message"] for each in TRIP["mapping"].values()], message("user", "?"))
    again = import_file(export(path, TRIP, longer), None)
    assert (again.names, again.present) == (["Trip-2"], 1)
    done = run_in_process("session", "import", str(path))
    assert (done.stdout, done.stderr) == (
        "imported nothing\n",
        "mlxchat: 2 conversations had been imported before\n",
    )


def test_the_list_of_what_was_left_out_is_bounded(tmp_path: Path) -> None:
    image = {"content_type": "image_asset_pointer"}
    many = [chain(message("user", f"{n}", image), title=f"Chat {n}") for n in range(50)]
    path = export(tmp_path / "x", *many, chain(None))
    done = run_in_process("session", "import", str(path))
    assert done.stdout == "imported 50 sessions with 50 turns\n"
    lines = done.stderr.splitlines()
    assert lines[0] == "mlxchat: left out of 'Chat 0': 1 image"
    assert lines[20:] == [
        "mlxchat: and of 30 other sessions; in all: 50 images",
        "mlxchat: left out 1 conversation without messages",
    ]


def test_an_import_that_cannot_be_forced_to_the_disk_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reported success, although the disk had refused the last write."""
    write = Database.write

    def full(self: Database, work: Any, *, forced: bool = True) -> Any:
        if forced:
            raise OSError("disk I/O error")
        return write(self, work, forced=forced)

    monkeypatch.setattr(Database, "write", full)
    done = run_in_process("session", "import", str(export(tmp_path / "x", TRIP)))
    assert done.returncode == 1
    assert done.stderr.endswith("may not survive a power cut: disk I/O error\n")
    assert "imported" in done.stdout


# Damaged and hostile files


def test_what_precedes_a_cut_is_imported_and_the_cut_reported(tmp_path: Path) -> None:
    path = tmp_path / "x"
    text = json.dumps([TRIP, SECOND])
    path.write_text(text[:-50])
    done = run_in_process("session", "import", str(path))
    assert done.returncode == 1
    assert done.stdout == "imported 2 turns as Trip\n"
    assert done.stderr == f"mlxchat: error: {path} after conversation 1: it is cut off\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[", ": it is cut off"),
        ("[1]", " is not ChatGPT's export"),
        ("[" * 200_000, "nested too deeply"),
        ('[{"mapping": {"a": ' + '{"a":' * 200_000, "nested too deeply"),
        ('[{"mapping": {}} oops, more text follows]', "it is damaged"),
        ('[{"mapping": {}}] {', "something follows"),
        ('[{"mapping": oops and much more text}]', "it is damaged"),
        ('[{"mapping": {}, "n": ' + "1" * 5000 + "}]", "it is damaged"),
        ('[{"chat_messages": []}]', "is an export of Claude"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    found = conversations(path)
    assert found is not None
    with pytest.raises(SessionError) as error:
        list(found)
    assert reason in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_items_are_read_across_the_chunks_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [{"a": 'é[]{}\\"😀' * n, "b": [n, -1.5e10, True, None]} for n in range(30)]
    path = tmp_path / "x"
    path.write_text(json.dumps([*values, 12345], ensure_ascii=False, indent=1))
    for size in (1, 2, 3, 7, 64):
        monkeypatch.setattr("mlxchat.sessions.json_items.CHUNK_BYTES", size)
        with path.open("rb") as file:
            assert list(items(file)) == [*values, 12345]


def test_an_item_without_end_is_refused_at_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxchat.sessions.json_items.CHUNK_BYTES", 100)
    monkeypatch.setattr("mlxchat.sessions.json_items.MAX_ITEM_CHARS", 1000)
    path = tmp_path / "x"
    path.write_text('[{"mapping": {"a": "' + "x" * 10_000)
    with path.open("rb") as file, pytest.raises(ValueError, match="more than 1,000 characters"):
        list(items(file))


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole.zip"
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", json.dumps([TRIP]))
    data = whole.read_bytes()
    path = tmp_path / "x.zip"
    for damaged in (data[: len(data) // 2], data[:80] + b"\xff\xff\xff\xff" + data[84:], data[:4]):
        path.write_bytes(damaged)
        with pytest.raises(SessionError, match="is a damaged archive"):
            import_file(path, None)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("user.json", "{}")
    with pytest.raises(SessionError, match=r"it has no conversations\.json"):
        import_file(path, None)


def test_an_archive_that_unpacks_to_a_multiple_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", b"[" + b" " * 10_000_000)
    with pytest.raises(SessionError, match="would be 10,000,001 bytes"):
        import_file(path, None)


# llm


RESPONSES = """
CREATE TABLE conversations (id TEXT PRIMARY KEY, name TEXT, model TEXT);
CREATE TABLE responses (id TEXT PRIMARY KEY, model TEXT, prompt TEXT, system TEXT,
    prompt_json TEXT, response TEXT, conversation_id TEXT, datetime_utc TEXT{more});
INSERT INTO conversations VALUES ('c1', 'Pelicans: all', 'm'), ('c2', 'Other', 'm');
INSERT INTO responses (id, prompt, system, response, conversation_id, datetime_utc) VALUES
    ('r2', 'and then?', NULL, 'It flew.', 'c1', '2023-09-01T10:05:00.123456'),
    ('r1', 'a story', 'Be brief.', 'A pelican.', 'c1', '2023-09-01T10:00:00.123456'),
    ('r3', 'hi', NULL, 'hello', 'c2', '2023-09-02T10:00:00'),
    ('r4', 'alone', NULL, 'yes', NULL, NULL);
"""
LATER_TABLES = """
CREATE TABLE attachments (id TEXT PRIMARY KEY, type TEXT, content BLOB);
CREATE TABLE prompt_attachments (response_id TEXT, attachment_id TEXT, "order" INTEGER);
CREATE TABLE fragments (id INTEGER PRIMARY KEY, content TEXT);
CREATE TABLE prompt_fragments (response_id TEXT, fragment_id INTEGER, "order" INTEGER);
CREATE TABLE system_fragments (response_id TEXT, fragment_id INTEGER, "order" INTEGER);
CREATE TABLE tool_calls (id INTEGER PRIMARY KEY, response_id TEXT, name TEXT);
CREATE TABLE tool_results (id INTEGER PRIMARY KEY, response_id TEXT, output TEXT);
INSERT INTO attachments VALUES ('a', 'image/png', x'00'), ('b', 'application/pdf', x'00');
INSERT INTO prompt_attachments VALUES ('r1', 'a', 0), ('r1', 'b', 1), ('r2', 'gone', 0);
INSERT INTO fragments VALUES (1, 'second'), (2, 'first'), (3, 'Be kind.');
INSERT INTO prompt_fragments VALUES ('r1', 1, 1), ('r1', 2, 0);
INSERT INTO system_fragments VALUES ('r3', 3, 0);
INSERT INTO tool_calls VALUES (1, 'r3', 'now');
INSERT INTO tool_results VALUES (1, 'r5', '12:00');
INSERT INTO responses (id, prompt, response, reasoning, conversation_id, datetime_utc) VALUES
    ('r5', '', 'It is noon.', 'Hm.', 'c2', '2023-09-02T10:00:01');
"""
THREADS = """
CREATE TABLE messages (hash TEXT PRIMARY KEY, parent_hash TEXT, role TEXT);
CREATE TABLE parts (id INTEGER PRIMARY KEY, message_hash TEXT, position INTEGER, type TEXT,
    tool_name TEXT, text TEXT, payload TEXT);
CREATE TABLE part_attachments (part_id INTEGER, attachment_id TEXT, "order" INTEGER);
CREATE TABLE attachments (id TEXT PRIMARY KEY, type TEXT, content BLOB);
CREATE TABLE fragments (id INTEGER PRIMARY KEY, content TEXT);
CREATE TABLE threads (id TEXT PRIMARY KEY, name TEXT, tip_message_hash TEXT, datetime_utc TEXT);
CREATE TABLE turns (id TEXT PRIMARY KEY, thread_id TEXT, parent_message_hash TEXT,
    tip_message_hash TEXT, datetime_utc TEXT);
INSERT INTO attachments VALUES ('a', 'audio/wav', x'00');
INSERT INTO fragments VALUES (7, 'FRAGMENT');
INSERT INTO messages VALUES ('s', NULL, 'system'), ('u', 's', 'user'), ('a', 'u', 'assistant'),
    ('t', 'a', 'tool'), ('b', 't', 'assistant'), ('x', 'u', 'assistant');
INSERT INTO parts VALUES (1, 's', 0, 'text', NULL, 'Be brief.', NULL),
    (3, 'u', 1, 'attachment', NULL, NULL, '{"attachment": {"id": "a"}}'),
    (2, 'u', 0, 'text', NULL, NULL,
     '{"text_ref": [{"fragment": 7}, {"literal": " and this"}, {"fragment": [1]}, 5]}'),
    (4, 'a', 0, 'reasoning', NULL, 'Hm.', NULL),
    (5, 'a', 1, 'tool_call', 'now', NULL, '{"arguments": {}}'),
    (6, 't', 0, 'tool_result', 'now', NULL, '{"output": "12:00"}'),
    (7, 'b', 0, 'text', NULL, 'Noon.', NULL), (8, 'x', 0, 'text', NULL, 'No.', NULL);
INSERT INTO part_attachments VALUES (3, 'a', 0);
INSERT INTO threads VALUES ('t1', 'Time', 'b', '2026-08-01 10:00:00+00:00');
INSERT INTO turns VALUES ('1', 't1', 'u', 'x', '2026-08-01T10:00:00+00:00'),
    ('2', 't1', 'u', 'a', '2026-08-01T10:00:05+00:00'),
    ('3', 't1', 't', 'b', '2026-08-01T10:00:06+00:00');
"""


def database(path: Path, script: str) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()
    return path


def test_conversations_of_responses_are_read(tmp_path: Path) -> None:
    path = database(tmp_path / "x.json", RESPONSES.format(more=""))
    assert import_file(path, None).names == ["llm", "Pelicans all", "Other"]
    assert texts("Pelicans all") == [("a story", "A pelican."), ("and then?", "It flew.")]
    saved = read_session("Pelicans all")
    assert saved.system == "Be brief."
    assert saved.turns[0].time == "2023-09-01T10:00:00+00:00"
    assert texts("llm") == [("alone", "yes")]


def test_fragments_thoughts_and_the_results_of_tools_are_read(tmp_path: Path) -> None:
    script = RESPONSES.format(more=", reasoning TEXT") + LATER_TABLES
    done = run_in_process("session", "import", str(database(tmp_path / "x", script)))
    assert done.stdout == "imported 3 sessions with 4 turns\n"
    assert done.stderr.splitlines() == [
        "mlxchat: left out of 'Pelicans all': 2 attachments, 1 image",
        "mlxchat: left out of 'Other': 1 tool call, 1 tool result",
    ]
    assert texts("Pelicans all")[0] == ("first\nsecond\na story", "A pelican.")
    assert texts("Other") == [("hi", "hello\n\nIt is noon.")]
    assert read_session("Other").turns[0].thought == "Hm."
    assert read_session("Other").system == "Be kind."


def test_threads_of_messages_are_read(tmp_path: Path) -> None:
    omissions: list[tuple[str, str]] = []
    path = database(tmp_path / "x", THREADS)
    import_file(path, None, lambda name, what: omissions.append((name, what)))
    (turn,) = read_session("Time").turns
    assert (turn.user, turn.thought, turn.reply) == ("FRAGMENT and this", "Hm.", "Noon.")
    assert turn.time == "2026-08-01T10:00:05+00:00"
    assert read_session("Time").system == "Be brief."
    assert omissions == [
        ("Time", "1 recording, 1 reply of another branch, 1 tool call, 1 tool result")
    ]


def test_a_conversation_that_became_a_thread_is_imported_once(tmp_path: Path) -> None:
    script = RESPONSES.format(more="") + THREADS.replace("'t1'", "'c2'")
    assert import_file(database(tmp_path / "x", script), None).names == [
        *("llm", "Pelicans all", "Time")
    ]


@pytest.mark.parametrize(("table", "time"), [("log", "timestamp"), ("logs", "datetime_utc")])
def test_the_single_table_of_the_first_versions_is_read(
    table: str, time: str, tmp_path: Path
) -> None:
    script = f"""
    CREATE TABLE {table} (id INTEGER PRIMARY KEY, model TEXT, {time} TEXT, prompt TEXT,
        system TEXT, response TEXT, chat_id INTEGER);
    INSERT INTO {table} VALUES (1, 'm', '2023-06-01 10:00:00', 'a', 'sys', 'A', NULL),
        (2, 'm', '2023-06-01 10:01:00', 'b', NULL, 'B', NULL),
        (3, 'm', '2023-06-01 10:02:00', 'c', NULL, 'C', 1);
    """
    assert import_file(database(tmp_path / "x", script), None).names == ["llm", "llm-2"]
    assert texts("llm") == [("a", "A"), ("c", "C")]


def test_the_database_is_not_changed(tmp_path: Path) -> None:
    path = database(tmp_path / "x", RESPONSES.format(more=""))
    path.chmod(0o400)
    tmp_path.chmod(0o500)
    before = path.read_bytes()
    try:
        import_file(path, None)
    finally:
        tmp_path.chmod(0o700)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("CREATE TABLE other (a)", "is a database, but not llm's"),
        ("CREATE VIEW responses AS SELECT 1 prompt, 2 response, 3 conversation_id", "not llm's"),
    ],
)
def test_another_database_is_refused(script: str, reason: str, tmp_path: Path) -> None:
    path = database(tmp_path / "x", script)
    with pytest.raises(SessionError, match=reason):
        import_file(path, None)


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    path = database(tmp_path / "x", RESPONSES.format(more=""))
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 5000)
    with pytest.raises(SessionError, match="cannot read"):
        import_file(path, None)


def test_a_locked_database_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxchat.sessions.llm_logs.BUSY_S", 0.1)
    path = database(tmp_path / "x", RESPONSES.format(more=""))
    connection = sqlite3.connect(path)
    connection.execute("BEGIN EXCLUSIVE")
    with pytest.raises(SessionError, match="in use by another program"):
        import_file(path, None)
    connection.close()


def test_values_of_other_types_are_not_trusted(tmp_path: Path) -> None:
    """SQLite stores any type in any column."""
    script = RESPONSES.format(more="") + (
        "UPDATE responses SET prompt = x'ff', response = 5, datetime_utc = 1e300, system = x'00';"
        "UPDATE conversations SET name = 7;"
        "INSERT INTO responses (id, prompt, conversation_id) VALUES (NULL, 'x', x'00'), (2, '', 9)"
    )
    import_file(database(tmp_path / "x", script), None)
    script = THREADS + (
        "UPDATE messages SET parent_hash = 'b' WHERE hash = 's';"
        "UPDATE parts SET payload = '[[', position = 'x', text = CAST(x'ffff' AS TEXT)"
    )
    import_file(database(tmp_path / "y", script), None)


def test_a_name_and_a_missing_file_are_checked_first(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="invalid session name"):
        import_file(export(tmp_path / "x", TRIP), "../x")
    with pytest.raises(SessionError, match="No such file"):
        import_file(tmp_path / "missing", None)
    with pytest.raises(SessionError, match="not a regular file"):
        import_file(tmp_path, None)
    assert names_by_use() == []
