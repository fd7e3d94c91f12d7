"""Rows of a batch in all their forms, well-formed and malformed."""

import errno
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxchat.errors import InputError, UsageError
from mlxchat.request import BatchInput
from mlxchat.request.batch import RowTemplate
from mlxchat.rows import read as reading
from mlxchat.rows.output import Result, read_finished
from mlxchat.rows.read import Rows
from mlxchat.rows.row import Row


def read(data: bytes | str, template: str | None = None, **source: Any) -> list[Row]:
    parsed = None if template is None else RowTemplate.parse(template)
    stream = io.BytesIO(data.encode() if isinstance(data, str) else data)
    return list(Rows(BatchInput(template=parsed, **source), stream)._rows)


def one(record: Any, template: str | None = None) -> Row:
    (row,) = read(json.dumps(record), template)
    return row


def chat(**body: Any) -> dict[str, Any]:
    return {
        "custom_id": "x",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "gpt", "messages": [{"role": "user", "content": "hi"}], **body},
    }


def test_a_line_has_a_prompt_and_its_own_options() -> None:
    options = {"temp": 1, "stop": "a", "max_tokens": 5, "seed": 2**64 - 1, "schema": {"a": 1}}
    row = one({"id": "a", "prompt": "hi", "top_k": None, **options})
    assert row == Row(1, "a", prompt="hi", options={**options, "temp": 1.0, "stop": ("a",)})


IDS = st.none() | st.integers(0, 3) | st.sampled_from(["", "0", "1", "a"])


@given(st.lists(IDS, min_size=2, max_size=8))
def test_an_id_is_kept_as_given_and_belongs_to_one_row(ids: list[Any]) -> None:
    """7 and "7" are two ids, and a row without one is not the row whose id is its number. A second
    row with an id is an error without it: its line would look as if the first row had failed."""
    rows = read("\r\n".join(json.dumps({"id": id_, "prompt": "a"}) for id_ in ids))
    for number, (id_, row) in enumerate(zip(ids, rows, strict=True), 1):
        is_used = id_ not in (None, "") and repr(id_) in map(repr, ids[: number - 1])
        error = f"id {json.dumps(id_)} is used by an earlier row" if is_used else None
        kept = "" if is_used else None if id_ == "" else id_
        assert (row.number, row.id, row.error) == (number, kept, error)
    results = [Result(row, finish_reason="stop") for row in rows if row.error is None]
    for result, line in zip(results, [json.loads(each.line()) for each in results], strict=True):
        row = result.row
        named = (row.number, row.number) if row.id is None else (row.id, None)
        assert (line["id"], line.get("row")) == named
    written = "".join(each.line() for each in results).encode()
    keys = {each.row.key for each in results}
    assert len(keys) == len(results)
    assert read_finished(io.BytesIO(written), Path()).rows == dict.fromkeys(keys, False)


def said(*messages: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text} for role, text in messages], **more}


USER = ("user", "a")
MALFORMED: list[tuple[Any, str]] = [
    ({"custom_id": "x", "prompt": "hi"}, "body must be a JSON object, got null"),
    (b'{"a":' * 100_000, "invalid JSON: recursion limit exceeded at column 1006"),
    (b'"\xff"', "not UTF-8: invalid byte 0xFF; convert the file to UTF-8"),
    ("x", "the line must be a JSON object; --lines reads text"),
    ({}, "prompt or messages is missing or empty"),
    ({"prompt": "a\0"}, "prompt contains a NUL character"),
    ({"prompt": "a", "id": [1]}, "id must be text or a whole number, got a list"),
    ({"prompt": "a", "tmep": 1}, "unknown field 'tmep'; did you mean temp?"),
    ({"prompt": "a", "temperature": 1}, "unknown field 'temperature'; did you mean temp?"),
    ({"prompt": "a", "temp": "0.5"}, "temp must be a valid number, got '0.5'"),
    (b'{"prompt":"a","temp":1e999}', "temp must be a finite number, got inf"),
    (said(USER, prompt="b"), "prompt and messages cannot be combined"),
    (said(USER, ("assistant", "b")), "the last message must be the user's"),
    (said(("system", "a"), USER, system="c"), "system and a system message cannot be combined"),
    (chat(tools=[{}]), "unknown field 'tools'"),
    ({"prompt": "a", "n": 1}, "unknown field 'n'"),
    (chat(stream=True), "stream can only be false"),
    (chat() | {"body": []}, "body must be a JSON object, got a list"),
]


@pytest.mark.parametrize(("line", "message"), MALFORMED, ids=[each for _, each in MALFORMED])
def test_a_malformed_line_is_an_error_and_the_rest_continues(line: Any, message: str) -> None:
    data = line if isinstance(line, bytes) else json.dumps(line).encode()
    wrong, right = read(data + b'\n{"id":"b","prompt":"hi"}\n')
    assert (wrong, right) == (Row(1, wrong.id, error=message), Row(2, "b", prompt="hi"))
    assert wrong.id == ("x" if b"custom_id" in data else wrong.id)


@given(st.lists(st.binary(max_size=40)))
def test_no_input_raises_and_every_line_is_counted(data: list[bytes]) -> None:
    whole = b"\n".join(data)
    rows = read(whole)
    assert all(row.error for row in rows)
    written = [n for n, line in enumerate(re.split(rb"\r\n?|\n", whole), 1) if line.strip()]
    assert set(written) >= {row.number for row in rows}


@pytest.mark.parametrize("form", ["lines", "csv", "json"])
def test_a_line_that_is_too_long_is_an_error_the_rest_continues(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the batch, again each time that it was continued."""
    monkeypatch.setattr(reading, "MAX_CHARS", 30)
    texts = ["b" * 9, "c" * 99, "d" * 39, "e" * 29, "f" * 9]
    if form == "json":
        texts = [json.dumps({"prompt": text[:8]}) + " " * len(text[30:]) for text in texts]
    source = BatchInput(lines=form == "lines", csv=form == "csv")
    rows = [*Rows(source, io.BytesIO("\n".join(["prompt"] * source.csv + texts).encode()))._rows]
    assert [row.error is None for row in rows] == [True, False, False, True, True]
    assert "the line is longer than 16,000,000 characters" in str(rows[1].error)


def test_a_file_that_is_open_is_read_from_where_it_is(tmp_path: Path) -> None:
    """What Python had read ahead was skipped."""
    (tmp_path / "a").write_text("head\none\ntwo\n")
    with (tmp_path / "a").open("rb") as file:
        file.readline()
        assert [row.prompt for row in Rows(BatchInput(lines=True), file)._rows] == ["one", "two"]


def test_a_line_in_openais_form_as_its_library_writes_it() -> None:
    """What the library writes besides, empty, was an unknown field."""
    nothing = {"refusal": None, "annotations": [], "audio": None, "name": None}
    said = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}], "name": None},
        {"role": "user", "content": "hi", **nothing},
        {"role": "assistant", "content": None, "tool_calls": [], "reasoning_content": "Hm."},
        {"role": "user", "content": [{"type": "text", "text": "well?", "annotations": []}]},
    ]
    given = {
        "temperature": 0.5,
        "max_completion_tokens": 9,
        "stop": ["a"],
        "tools": [],
        "stream": False,
        "logit_bias": {"50": -100, "51": 1.5},
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"x": 1}}},
    }
    options = {"temp": 0.5, "max_tokens": 9, "stop": ("a",), "logit_bias": ("50=-100", "51=1.5")}
    options |= {"schema": {"x": 1}, "system": "Be brief."}
    whole = (
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "well?"},
    )
    assert one(chat(messages=said, **given)) == Row(1, "x", messages=whole, options=options)
    assert one({"messages": said, "tools": None}).messages == whole


def test_lines_are_prompts_and_blank_ones_are_skipped() -> None:
    rows = read("\ufeffone\r\n\n \ntwo {x}", lines=True)
    assert rows == [Row(1, prompt="one"), Row(4, prompt="two {x}")]
    rows = read("one\ntwo", "Say {input}, {text}!", lines=True)
    assert [row.prompt for row in rows] == ["Say one, one!", "Say two, two!"]


def test_a_field_that_the_template_fills_in_is_no_option() -> None:
    """A column of bus stops would have ended the answers."""
    row = one({"id": 3, "n": 0.1, "t": "{n}", "tags": ["a"], "temp": 1}, "{n} {t} {tags}")
    assert row == Row(1, 3, prompt='0.1 {n} ["a"]', options={"temp": 1.0})
    assert one({"stop": "Main St"}, "Where is {stop}?") == Row(1, None, prompt="Where is Main St?")
    assert one({"a": None}, "{a}").error == "the template's field 'a' is missing or null"
    _, row = read('{"a": 1}\n{"b": 1}', "{a}")
    assert row.error == "the template's field 'a' is missing or null"
    with pytest.raises(UsageError, match="rows have no field 'a', only 'b': use those in "):
        one({"b": 1}, "{a}")
    assert one(chat() | {"body": "x"}, "{body}").prompt == "x"
    # An answer of an earlier batch is data, too.
    answer = Result(Row(1, "a", prompt="hi"), text="Yes", logprobs=[], finish_reason="stop")
    assert one(json.loads(answer.line()), "Why {text}?") == Row(1, "a", prompt="Why Yes?")


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_table_has_any_delimiter_any_line_ends_and_quoted_cells(
    delimiter: str, end: str, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of more than 16 MB that ended its lines with \\r was one line, without rows."""
    monkeypatch.setattr(reading, "MAX_CHARS", 30)
    cells = [["id", "the text", "x"], ["a", f'"one{end}""two"""', "1"], ["", " ", ""]]
    cells.append(["", "three", ""])
    text = mark + end.join(delimiter.join(each) for each in cells) + end * 2
    rows = read(text, "Read {the text}{x}", csv=True)
    assert rows == [Row(1, "a", prompt=f'Read one{end}"two"1'), Row(2, prompt="Read three")]


@pytest.mark.parametrize(
    ("table", "template", "message"),
    [
        ("a,b\nhi,1", None, "rows have no field 'prompt', only 'a', 'b': use those in --template"),
        ("a,a\nhi,1", "{a}", "the table has two columns named 'a'"),
        # The message contained a surrogate.
        ("a,Café\n1,b".encode("cp1252"), None, "the header of the table is not UTF-8"),
    ],
)
def test_a_table_lacking_columns_is_refused(table: Any, template: str | None, message: str) -> None:
    with pytest.raises((UsageError, InputError)) as error:
        read(table, template, csv=True)
    assert str(error.value).startswith(message)


def test_a_malformed_record_is_an_error_the_rest_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a quote that is not closed, the rest of the table would have become one prompt. Later
    it was lost, and the rows below a stray quote had other numbers than in the mended table."""
    rows = read(b'prompt,b\na,1\n"b"x,1\nc\n\xff,1\nd,1\n"e\nf', csv=True)
    assert [row.error for row in rows] == [
        None,
        f"malformed CSV: ',' expected after '\"'; {reading.RENUMBERED}",
        "1 cell, but the header has 2",
        "not UTF-8: invalid byte 0xFF; convert the file to UTF-8",
        None,
        f"malformed CSV: unexpected end of data; {reading.RENUMBERED}",
        "1 cell, but the header has 2",
    ]
    assert rows[4] == Row(5, prompt="d")
    monkeypatch.setattr(reading, "MAX_CHARS", 20)
    rows = read('prompt\n"a\n' + "b\n" * 12 + "c\n", csv=True)
    limit = "field larger than field limit (20)"
    assert rows[0].error == f"malformed CSV: {limit}; {reading.RENUMBERED}"
    assert rows[-1].prompt == "c"


def test_names_that_are_written_alike_are_one_id(tmp_path: Path) -> None:
    for name in (b"\xff", rb"\udcff"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text("hi")
    _, row = Rows(BatchInput(pattern=str(tmp_path)))._rows
    assert "is used by an earlier row" in str(row.error)


def test_each_file_is_a_row_with_its_path_as_id(tmp_path: Path) -> None:
    for name, data in {"b": b"two", "a": b"\xef\xbb\xbfone\n", "c": b"\xff", "e": b" "}.items():
        (tmp_path / f"{name}.txt").write_bytes(data)
    (tmp_path / "d.txt").mkdir()
    os.mkfifo(tmp_path / "f.txt")
    (tmp_path / "g.txt").symlink_to("g.txt")
    rows = Rows(BatchInput(pattern=f"{tmp_path}/*.txt", template=RowTemplate.parse("{input}|")))
    assert rows.count() == 6
    a, b, c, e, f, g = (str(tmp_path / f"{name}.txt") for name in "abcefg")
    assert list(rows._rows) == [
        Row(1, a, prompt="one\n|"),
        Row(2, b, prompt="two|"),
        Row(3, c, error="not UTF-8: invalid byte 0xFF; convert the file to UTF-8"),
        Row(4, e, error="the file is empty"),
        Row(5, f, error="cannot read the file: not a regular file"),
        Row(6, g, error=f"cannot read the file: {os.strerror(errno.ELOOP)}"),
    ]


def test_the_name_of_a_file_says_that_it_is_a_table(tmp_path: Path) -> None:
    for name in ("M.CSV", "m.tsv"):
        path = tmp_path / name
        path.write_text("id\tprompt\n1\tHello, world\n")
        with Rows(BatchInput(path)) as rows:
            assert rows.count() == 1
            assert [row.prompt for row in rows._rows] == ["Hello, world"]


# Templates of prompts: fields in braces, and nothing that is evaluated


def test_a_name_is_a_name_and_neither_it_nor_a_value_is_evaluated() -> None:
    """A value such as "{secret}" must not be filled in again."""
    template = RowTemplate.parse("{{a}} {a}{b}")
    assert template.fields == ("a", "b")
    assert template.fill({"a": "{b}", "b": "{{x}}"}) == "{a} {b}{{x}}"
    template = RowTemplate.parse("{text.__class__} {rows[0]} {text!r} {text:>9} { a b }")
    assert template.fields == ("text.__class__", "rows[0]", "text!r", "text:>9", "a b")
    with pytest.raises(KeyError):
        template.fill({"text": "x"})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{text", "has a single {: write {{ for it"),
        ("{ }{text}", "has an empty field: name it in the braces, as in {input}"),
        ("Hello {{text}}", "must contain a field of the row, such as {input}"),
    ],
)
def test_a_malformed_template_is_refused(source: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        RowTemplate.parse(source)
    assert str(error.value) == f"--template {message}"
