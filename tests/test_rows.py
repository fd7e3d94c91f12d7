"""Rows of a batch in all their forms, well-formed and malformed."""

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
from mlxchat.options import INPUT_FORMS
from mlxchat.request import BatchInput
from mlxchat.request.batch import RowTemplate
from mlxchat.rows import read as reading
from mlxchat.rows.output import Result, read_finished
from mlxchat.rows.read import Rows
from mlxchat.rows.row import Row


def read(data: bytes | str, template: str | None = None, **source: Any) -> list[Row]:
    parsed = None if template is None else RowTemplate.parse(template)
    stream = io.BytesIO(data.encode() if isinstance(data, str) else data)
    return list(Rows(BatchInput(template=parsed, **source), stream))


def one(record: Any, template: str | None = None) -> Row:
    (row,) = read(json.dumps(record), template)
    return row


def chat(**body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hi"}]
    return {
        "custom_id": "x",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "gpt", "messages": messages, **body},
    }


def test_a_line_has_a_prompt_and_its_own_options() -> None:
    options = {"temp": 1, "stop": "a", "max_tokens": 5, "seed": 2**64 - 1, "schema": {"a": 1}}
    row = one({"id": "a", "prompt": "hi", "top_k": None, **options})
    checked = {**options, "temp": 1.0, "stop": ("a",)}
    assert row == Row(1, "a", prompt="hi", options=checked)


def test_ids_are_kept_as_given_and_a_row_without_one_is_not_the_row_whose_id_is_its_number() -> (
    None
):
    """One of two such rows was an error."""
    rows = read('{"id":3,"prompt":"a"}\n{"id":"3","prompt":"a"}\r\n{"id":null,"prompt":"a"}')
    assert [(row.number, row.id, row.error) for row in rows] == [
        (1, 3, None),
        (2, "3", None),
        (3, None, None),
    ]
    assert len({row.key for row in rows}) == 3
    results = [Result(row, finish_reason="stop") for row in rows]
    lines = [json.loads(each.line()) for each in results]
    assert [(each["id"], each.get("row")) for each in lines] == [(3, None), ("3", None), (3, 3)]
    written = "".join(each.line() for each in results).encode()
    assert read_finished(io.BytesIO(written), Path()).rows == {row.key for row in rows}


def test_an_id_used_twice_is_an_error_without_the_id() -> None:
    """A line with that id would look as if the first row had failed."""
    rows = read('{"id":2,"prompt":"a"}\n{"id":2,"prompt":"a"}\n{"id":"b"}\n{"id":"b","prompt":"a"}')
    errors = [
        None,
        "id 2 is used by an earlier row",
        "prompt or messages is missing",
        'id "b" is used by an earlier row',
    ]
    assert [row.error for row in rows] == errors
    assert [row.id for row in rows] == [2, None, "b", None]


MALFORMED = [
    ("[" * 100_000, "invalid JSON: recursion limit exceeded at column 202"),
    (b'"\xff"', "not UTF-8: invalid byte 0xFF; convert the file to UTF-8"),
    ('"x"', "the line must be a valid dictionary, got 'x'"),
    ("{}", "prompt or messages is missing"),
    ('{"prompt":"a\\u0000"}', "prompt contains a NUL character"),
    ('{"id":[1],"prompt":"a"}', "id must be text or a whole number, got a list"),
    ('{"prompt":"a","tmep":1}', "unknown field 'tmep'; did you mean temp?"),
    ('{"prompt":"a","temp":"0.5"}', "temp must be a valid number, got '0.5'"),
    ('{"prompt":"a","temp":1e999}', "--temp must be at least 0, got inf"),
    (
        '{"messages":[{"role":"user","content":"a"}],"prompt":"b"}',
        "prompt and messages cannot be combined",
    ),
    (
        '{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]}',
        "messages.0.content.0.type must be 'text', got 'image_url'",
    ),
    (
        '{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}',
        "the last message must be the user's",
    ),
    (
        '{"messages":[{"role":"system","content":"a"},{"role":"user","content":"b"}],"system":"c"}',
        "system and a system message cannot be combined",
    ),
]


@pytest.mark.parametrize(("line", "message"), MALFORMED, ids=[each for _, each in MALFORMED])
def test_a_malformed_line_is_an_error_and_the_rest_continues(
    line: str | bytes, message: str
) -> None:
    data = line if isinstance(line, bytes) else line.encode()
    wrong, right = read(data + b'\n{"id":"b","prompt":"hi"}\n')
    assert (wrong.number, wrong.error, wrong.prompt, wrong.messages) == (1, message, None, None)
    assert right == Row(2, "b", prompt="hi")


@given(st.lists(st.binary(max_size=40)))
def test_no_input_raises_and_every_line_is_counted(data: list[bytes]) -> None:
    whole = b"\n".join(data)
    rows = read(whole)
    assert all(row.error for row in rows)
    written = [n for n, line in enumerate(re.split(rb"\r\n?|\n", whole), 1) if line.strip()]
    assert set(written) >= {row.number for row in rows}


def test_a_line_that_is_too_long_ends_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_CHARS", 10)
    assert [row.prompt for row in read("a" * 9 + "\n" + "b" * 10, lines=True)] == [
        "a" * 9,
        "b" * 10,
    ]
    with pytest.raises(InputError, match=r"^line 2 of the input is longer than 16,000,000 char"):
        read("a" * 9 + "\n" + "b" * 11, lines=True)


def test_a_line_in_openais_form() -> None:
    record = chat(
        temperature=0.5,
        top_p=0.9,
        max_completion_tokens=9,
        stop=["a"],
        n=1,
        stream=False,
        user="me",
        presence_penalty=-0.5,
        logit_bias={"50": -100, "51": 1.5},
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {"x": 1}}},
    )
    record["body"]["messages"].insert(0, {"role": "developer", "content": "Be brief."})
    options = {
        "temp": 0.5,
        "top_p": 0.9,
        "max_tokens": 9,
        "stop": ("a",),
        "presence_penalty": -0.5,
        "logit_bias": ("50=-100", "51=1.5"),
        "schema": {"x": 1},
        "system": "Be brief.",
    }
    said = ({"role": "user", "content": "hi"},)
    assert one(record) == Row(1, "x", messages=said, options=options)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (chat(tools=[{}]), "unknown field 'tools'"),
        (chat(n=2), "unknown field 'n'"),
        (chat(temperature=-1), "--temp must be at least 0, got -1.0"),
        ({"custom_id": "x", "body": []}, "body must be a valid dictionary, got a list"),
    ],
)
def test_what_openais_form_may_not_have_is_named(record: Any, message: str) -> None:
    assert one(record).error == message


def test_lines_are_prompts_and_blank_ones_are_skipped() -> None:
    rows = read("\ufeffone\r\n\n \ntwo {x}", lines=True)
    assert rows == [Row(1, prompt="one"), Row(4, prompt="two {x}")]
    rows = read("one\ntwo", "Say {text}, {text}!", lines=True)
    assert [row.prompt for row in rows] == ["Say one, one!", "Say two, two!"]
    rows = read(b"\xff\nb\0\nok", lines=True)
    assert [row.error for row in rows] == [
        "not UTF-8: invalid byte 0xFF; convert the file to UTF-8",
        "prompt contains a NUL character",
        None,
    ]


def test_a_template_fills_in_the_fields_of_a_line() -> None:
    row = one({"id": 3, "n": 0.1, "t": "{n}", "tags": ["a"], "temp": 1}, "{n} {t} {tags}")
    assert row == Row(1, 3, prompt='0.1 {n} ["a"]', options={"temp": 1.0})


def test_a_field_that_the_template_uses_is_no_option() -> None:
    """A column of bus stops would have ended the answers."""
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


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_table_has_a_header_and_quoted_cells(delimiter: str, mark: str) -> None:
    cells = [["id", "the text", "x"], ["a", '"one\n""two"""', "1"], ["", "three", ""]]
    text = mark + "\r\n".join(delimiter.join(each) for each in cells) + "\r\n\r\n"
    rows = read(text, "Read {the text}{x}", csv=True)
    assert rows == [Row(1, "a", prompt='Read one\n"two"1'), Row(2, prompt="Read three")]


def test_without_a_template_a_table_needs_a_column_of_prompts() -> None:
    assert read("prompt,b\nhi,1\n", csv=True) == [Row(1, prompt="hi")]
    with pytest.raises(UsageError) as error:
        read("a,b\nhi,1\n", csv=True)
    assert str(error.value) == (
        "rows have no field 'prompt', only 'a', 'b': use those in --template"
    )
    with pytest.raises(UsageError, match="two columns named 'a'"):
        read("a,a\nhi,1\n", "{a}", csv=True)


def test_a_malformed_record_is_an_error_and_the_rest_continues() -> None:
    rows = read(b'prompt,b\na,1\n"b"x,1\nc\n\xff,1\nd,1\n', csv=True)
    assert [row.error for row in rows] == [
        None,
        "malformed CSV: ',' expected after '\"'",
        "1 cell, but the header has 2",
        "not UTF-8: invalid byte 0xFF; convert the file to UTF-8",
        None,
    ]
    assert rows[-1] == Row(5, prompt="d")


def test_a_quote_that_is_not_closed_is_an_error_in_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rest of the table would have become one prompt."""
    assert [row.error for row in read('prompt\n"a\nb\nc\n', csv=True)] == [
        "malformed CSV: unexpected end of data"
    ]
    monkeypatch.setattr(reading, "MAX_CHARS", 20)
    rows = read('prompt\n"a\n' + "b\n" * 12 + "c\n", csv=True)
    assert rows[0].error == "malformed CSV: field larger than field limit (20)"
    assert rows[-1].prompt == "c"


def test_each_file_is_a_row_with_its_path_as_id(tmp_path: Path) -> None:
    for name, data in {"b.txt": b"two", "a.txt": b"\xef\xbb\xbfone\n", "c.txt": b"\xff"}.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "d.txt").mkdir()
    (tmp_path / "e.txt").write_bytes(b" ")
    os.mkfifo(tmp_path / "f.txt")
    (tmp_path / "g.txt").write_bytes("UTF-16".encode("utf-16"))
    source = BatchInput(pattern=f"{tmp_path}/*.txt", template=RowTemplate.parse("{file}: {text}"))
    read_rows = Rows(source)
    assert read_rows.count() == 6
    rows = list(read_rows)
    ids = [str(tmp_path / f"{name}.txt") for name in "abcefg"]
    assert [row.id for row in rows] == ids
    assert [row.prompt for row in rows[:2]] == [f"{ids[0]}: one\n", f"{ids[1]}: two"]
    assert [row.error for row in rows[2:]] == [
        "not UTF-8: invalid byte 0xFF; convert the file to UTF-8",
        "the file is empty",
        "cannot read the file: not a regular file",
        "not UTF-8: invalid byte 0xFF; convert the file to UTF-8",
    ]


def test_what_can_be_known_before_reading_is_a_usage_error() -> None:
    with pytest.raises(UsageError) as error:
        read("a", "{txt}", lines=True)
    assert str(error.value) == (
        "rows have no field 'txt', only 'text', 'prompt': use those in --template"
    )


def test_messages_may_have_all_fields_that_openais_library_writes() -> None:
    """An answer of the library, or of a batch, was an unknown field."""
    nothing = {"refusal": None, "annotations": [], "audio": None, "name": None}
    calls = {"function_call": None, "tool_calls": []}
    said = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}], "name": None},
        {"role": "user", "content": "hi", **nothing},
        {"role": "assistant", "content": None, **nothing, **calls, "reasoning_content": "Hm."},
        {"role": "user", "content": [{"type": "text", "text": "well?", "annotations": []}]},
    ]
    whole = (
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "well?"},
    )
    for row in (
        one({"messages": said, "tools": None}),
        one(chat(messages=said, tools=[], stop=[])),
    ):
        assert (row.error, row.messages, row.options) == (None, whole, {"system": "Be brief."})
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}
    assert one({"messages": [call]}).error == "unknown field 'messages.0.tool_calls'"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_table_may_have_any_line_ends_and_empty_records(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of more than 16 MB that ended its lines with \\r was one line, without rows."""
    monkeypatch.setattr(reading, "MAX_CHARS", 20)
    text = end.join(["id,prompt", "1,Hello", ",", '2,"a', 'b"', "  ,", ""])
    for data in (text.encode(), b"\xef\xbb\xbf" + text.encode()):
        rows = read(data, csv=True)
        assert [(row.id, row.prompt) for row in rows] == [("1", "Hello"), ("2", f"a{end}b")]


def test_a_table_whose_header_is_not_utf_8_says_so() -> None:
    """It contained a surrogate."""
    with pytest.raises(InputError, match="the header of the table is not UTF-8"):
        read("id,prompt,Café\n1,a,b\n".encode("cp1252"), csv=True)


def test_the_name_of_a_file_says_that_it_is_a_table(tmp_path: Path) -> None:
    for name in ("M.CSV", "m.tsv"):
        path = tmp_path / name
        path.write_text("id\tprompt\n1\tHello, world\n")
        with Rows(BatchInput(path)) as rows:
            assert rows.count() == 1
            assert [row.prompt for row in rows] == ["Hello, world"]
    with Rows(BatchInput(path, lines=True)) as rows:
        assert [row.prompt for row in rows] == ["id\tprompt", "1\tHello, world"]


def test_each_option_that_names_a_form_has_a_reader() -> None:
    assert reading.FORMS.keys() == {"json", *INPUT_FORMS}


# Templates of prompts: fields in braces, and nothing that is evaluated


def test_values_are_never_searched_for_fields() -> None:
    """A value such as "{secret}" must not be filled in again."""
    template = RowTemplate.parse("{{a}} {a}{b}")
    assert template.fields == ("a", "b")
    assert template.fill({"a": "{b}", "b": "{{x}}"}) == "{a} {b}{{x}}"


def test_a_name_is_a_name_and_nothing_is_evaluated() -> None:
    template = RowTemplate.parse("{text.__class__} {rows[0]} {text!r} {text:>9} { a b }")
    assert template.fields == ("text.__class__", "rows[0]", "text!r", "text:>9", "a b")
    with pytest.raises(KeyError):
        template.fill({"text": "x"})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{text", "has a single {: write {{ for a literal brace"),
        ("text}", "has a single }: write }} for a literal brace"),
        ("{ }{text}", "has an empty field: write its name in the braces, as in {text}"),
        ("Hello {{text}}", "must contain a field of the row, such as {text}"),
    ],
)
def test_a_malformed_template_is_refused(source: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        RowTemplate.parse(source)
    assert str(error.value) == message
