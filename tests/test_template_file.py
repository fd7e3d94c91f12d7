"""`--chat-template`: a file instead of the model's template, and what is wrong with it."""

import json
from pathlib import Path

import pytest

from mlxchat.errors import UsageError
from mlxchat.models.tokenizer_files import read_template
from mlxchat.text.template import ChatTemplate
from scripts.tiny_model import write_tiny_model
from tests.in_process import run_in_process

TURNS = (
    "{% for each in messages %}<|im_start|>{{ each.role }}:{{ each.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("turns.jinja").write_text(TURNS)


def test_the_template_of_the_file_is_used_as_if_it_were_the_models(tmp_path: Path) -> None:
    own, bare = (
        str(write_tiny_model(tmp_path / name, chat_template=template))
        for name, template in (("own", TURNS), ("bare", None))
    )
    how = ("generate", "--json", "-n", "5", "--temp", "0", "Why?", "-m")
    given = run_in_process(*how, bare, "--chat-template", "turns.jinja").stdout.splitlines()
    expected = run_in_process(*how, own).stdout.splitlines()
    for at, key in ((0, "prompt_tokens"), (-1, "text")):
        assert json.loads(given[at])[key] == json.loads(expected[at])[key]
    assert "no chat template" in run_in_process(*how, bare).stderr


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("a\n{% if %}", "cannot parse b.j2, line 2: Expected an expression"),
        ("{{" + "(" * 3_000, "cannot parse b.j2"),
        ("a\n\n{{ 1/0 }}", "b.j2, line 3 rejects this: division by zero"),
        ("{{ ''.__class__.__mro__ }}", "b.j2, line 1 rejects this: access to attribute"),
        ("{% include '/etc/passwd' %}", "b.j2, line 1 rejects this: no loader"),
        ("\n{{ range(10**9) | list }}", "b.j2, line 2 rejects this: Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}\n{{ f() }}", "rejects this: maximum recursion"),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "does not write the user's"),
    ],
)
def test_a_broken_template_is_refused_in_one_line_before_the_weights_are_read(
    source: str, error: str, unthinking_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("b.j2").write_text(source)
    monkeypatch.setattr("mlxchat.models.load.arrays_of", None)
    done = run_in_process("generate", "-m", str(unthinking_model), "--chat-template", "b.j2", "a")
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert done.stderr.startswith("mlxchat: error: ")
    assert error in done.stderr
    assert done.stderr.count("\n") == 1


def test_files_that_cannot_be_templates_are_refused(tmp_path: Path) -> None:
    Path("latin.jinja").write_bytes(b"caf\xe9")
    Path("empty.jinja").write_bytes(b" ")
    for name, error in {
        "none.jinja": "cannot read none.jinja: No such file",
        "latin.jinja": "cannot read latin.jinja: not UTF-8 text",
        "empty.jinja": "empty.jinja is empty",
        str(tmp_path): "cannot read",
    }.items():
        with pytest.raises(UsageError, match=f"--chat-template: {error}"):
            read_template(Path(name))
    # It may escape the message: its own check once looked for a text with an apostrophe.
    for escaped in ("each.content|e", "each.content|tojson"):
        Path("escapes.jinja").write_text(TURNS.replace("each.content", escaped))
        ChatTemplate(read_template(Path("escapes.jinja")).source, {}).check()
