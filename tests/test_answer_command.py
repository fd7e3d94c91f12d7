"""Constrained answers: stdout has what exists, and the status says whether it is complete."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mlxchat.app.events import value_of
from mlxchat.constraint.constraint import Constraint
from mlxchat.sessions.listing import read_session
from mlxchat.terminal.worker import Stop
from mlxchat.text.extract import closing_fence, extract_code
from tests import chat_templates
from tests.in_process import run_in_process
from tests.reply_formats import MISTRAL
from tests.scripted_model import Scripted
from tests.scripted_program import say_scripts

Run = Callable[..., Any]


@pytest.fixture
def ask(unthinking_model: Path) -> Run:
    return partial(run_in_process, "chat", "-m", str(unthinking_model), "--no-save")


PAIR = {"type": "array", "items": {"enum": ["a"]}, "minItems": 2, "maxItems": 2}
NOT_UNIQUE = "the answer is not valid: $: ['a', 'a'] has non-unique elements"


def test_a_piped_line_constrains_its_answer_and_an_invalid_one_does_not_end_it(ask: Run) -> None:
    said: list[dict[str, Any]] = [
        {"schema": PAIR | {"uniqueItems": True}},
        {"choice": ["left", "right"]},
        {"schema": {"enum": [5]}},
        {"regex": "[0-9]{4}"},
        {"grammar": 'start: "yes"'},
    ]
    lines = [json.dumps({"role": "user", "content": "which?", **each}) for each in said]
    run = ask("--json", stdin="\n".join(lines))
    invalid, *done = [json.loads(line) for line in run.stdout.splitlines() if '"done"' in line]
    assert (run.returncode, invalid["text"], invalid["value"]) == (4, '["a", "a"]', None)
    assert (invalid["complete"], invalid["error"]) == (False, NOT_UNIQUE)
    # What no grammar can enforce is named before, and checked after.
    named, problem = run.stderr.splitlines()[:2]
    assert "uniqueItems" in named
    assert NOT_UNIQUE in problem
    assert all(each["complete"] for each in done)
    assert done[0]["text"] in ("left", "right")
    assert (done[1]["value"], done[0]["value"]) == (5, None)
    assert done[2]["text"].isdecimal()
    assert done[3]["text"] == "yes"


@pytest.mark.parametrize("wrong", [{"regx_multi": 0}, {"choice": [1]}, {"schema": {}, "regex": ""}])
def test_a_wrong_field_of_a_line_is_refused(ask: Run, wrong: dict[str, Any]) -> None:
    run = ask(stdin=json.dumps({"role": "user", "content": "which?", **wrong}))
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert run.stderr.startswith(f"mlxchat: error: {next(iter(wrong))}")


CODE = "Sure!\n```sh\nls | wc -l\n```\nOr:\n```python\nprint(1)\n```\nBye."
ENDLESS = f"{CODE}{'And so on. ' * 500}"


@pytest.mark.parametrize("command", [["generate"], ["chat", "--no-save"]])
def test_only_the_first_code_block_is_written_and_if_cut_off_it_has_its_own_status(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell would have run half a script, or an explanation; or waited for one."""
    say_scripts(monkeypatch)
    for text, tokens, expected in (
        (ENDLESS, len(ENDLESS), (0, "ls | wc -l\n")),
        (ENDLESS, CODE.index("| wc"), (4, "ls \n")),
        (ENDLESS, CODE.index("Or:"), (0, "ls | wc -l\n")),
        ("Sorry, I cannot.", 9, (4, "")),
        ("Sorry, I cannot.", 99, (4, "")),
    ):
        script = Scripted(chat_templates.CHATML, (), f"{text}<|im_end|>", ends=("<|im_end|>",))
        how = ("-x", "--stats", "-n", str(tokens), "A bash line.")
        run = run_in_process(*command, "-m", str(script.write(tmp_path / text[:5])), *how)
        assert (run.returncode, run.stdout) == expected
        assert run.stderr.count("mlxchat: the answer ") == (run.returncode == 4)
        assert "interrupted" not in run.stderr
        generated = re.search(r"(\d+) (generated|tokens)", run.stderr)
        assert generated is not None
        assert int(generated[1]) < len(CODE)
        if command == ["generate"]:
            out = tmp_path / f"{tokens}.sh"
            run_in_process(*command, "-m", str(tmp_path / text[:5]), "-o", str(out), *how)
            assert out.exists() == bool(expected[1])


def test_a_question_stopped_early_has_no_code(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stop, "requested", lambda stop: setattr(stop, "status", 130) or True)
    run = ask("-x", "A bash line.")
    assert (run.returncode, run.stdout) == (130, ""), "a shell's loop ends, too"
    assert "the answer is not complete (finish reason: interrupted)" in run.stderr


def test_a_thought_alone_is_not_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say_scripts(monkeypatch)
    for command in (["generate"], ["chat", "--no-save"]):
        how = (*command, "-m", str(MISTRAL.write(tmp_path)), "--choice", "left", "--json", "Which?")
        # What is said to the template counts more.
        for thinking in ((), ("--think", "off", "--template-arg", "enable_thinking=true")):
            cut_off = run_in_process(*how, "-n", "5", *thinking)
            done = json.loads(cut_off.stdout.splitlines()[-1])
            assert (cut_off.returncode, done["complete"], done["value"]) == (4, False, None)
            assert "the answer is not complete (finish reason: length)" in cut_off.stderr
        unthinking = run_in_process(*how, "--think", "off")
        done = json.loads(unthinking.stdout.splitlines()[-1])
        assert (unthinking.returncode, done["complete"], done["thought"]) == (0, True, "")


def test_the_schema_can_be_added_to_the_system_prompt(ask: Run) -> None:
    plain = ask("--json", "--schema", "age int", "Who?")
    described = ask("--json", "--schema", "age int", "--schema-prompt", "Who?")
    done = [json.loads(run.stdout.splitlines()[-1]) for run in (plain, described)]
    tokens = [each["prompt_tokens"] for each in done]
    assert tokens[1] > tokens[0] + 50


def test_that_of_a_session_gets_it(unthinking_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXCHAT_CHAT_SYSTEM", "Be brief.")
    asked = ["-n3", "--schema", "age int", "--schema-prompt", "Who?"]
    for how in (["--system", "Be kind.", "Hello"], asked, [*asked, "--schema", "b int"]):
        run_in_process("chat", "-m", str(unthinking_model), "--session", "mine", *how)
    system = read_session("mine").system
    assert system is not None
    assert system.startswith("Be kind.\n\nAnswer")
    assert (system.count("JSON Schema"), '"b"' in system) == (1, True)


@pytest.mark.parametrize("answer", ["1e999", "[" * 50_000 + "]" * 50_000, "{"])
def test_an_answer_that_python_cannot_hold_has_no_value(answer: str) -> None:
    """A schema that allows anything allows these, and they ended in a traceback."""
    assert value_of(Constraint.from_schema({}), answer) is None


# Which part of an answer is its code block


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```\nx\n```", "x\n"),
        ("```c++\nx\n```   \nmore", "x\n"),
        ("```{.python .numberLines}\nx\n```\n", "x\n"),
        ("```sh\r\nls\r\n```\r\n", "ls\r\n"),
        ("```\n  indented\n\ttab\n```\n", "  indented\n\ttab\n"),
        # A longer fence contains shorter ones.
        ("````md\n```\nx\n```\n````\n", "```\nx\n```\n"),
        (
            "```py\n  def\n\n    ```\n    example\n    ```\n```\nmore",
            "  def\n\n    ```\n    example\n    ```\n",
        ),
        ("1. ```sh\n   ls\n   ```\n2. Then", "ls\n"),
        ("1. Do:\n\n      ```sh\n      ls\n    ```\n2. Then", "ls\n"),
        ("- Do:\n\n\t```sh\n\tls\n    ```\nThen", "ls\n"),
        # An answer cut off by its length still has nothing but code in it.
        ("Here:\n```sh\nls\necho", "ls\necho"),
        ("```", ""),
        ("no block", ""),
    ],
)
def test_forms_of_a_block(text: str, code: str) -> None:
    """One that was cut off can be closed, as an export does."""
    assert extract_code(text) == code
    closing = closing_fence(text)
    assert bool(closing) is (text.count("`") % 2 == 1)
    assert extract_code(f"{text}{closing}\n") == (f"{code}\n" if closing and code else code)
