"""`--think` and `--template-arg` in the program: the output, and the saved session."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxchat.request.written import parse_template_args
from tests.in_process import run_in_process
from tests.reply_formats import HARMONY
from tests.scripted_program import say_scripts

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    say_scripts(monkeypatch)
    chosen = ("-m", str(HARMONY.write(tmp_path / "harmony")))
    return lambda *arguments, stdin="": run_in_process(*arguments, *chosen, stdin=stdin)


def test_events_separate_thoughts_from_answers_or_omit_them(run: Run) -> None:
    for think, thought in (("on", "Hm, duck?"), ("hide", "")):
        done = run("generate", "--json", "--think", think, "hello")
        *events, last = map(json.loads, done.stdout.splitlines())
        said = {True: "", False: ""}
        for each in events:
            said[bool(each.get("thought"))] += str(each.get("text", ""))
        assert said == {True: thought, False: "Yes!"}
        assert (last["thought"], last["text"]) == (thought, "Yes!")
    raw = run("generate", "--raw", "hello")
    assert raw.stdout.startswith("analysisHm, duck?assistantfinalYes!")


def test_a_piped_chat_and_a_session_contain_only_answers_if_thoughts_are_hidden(run: Run) -> None:
    done = run("--think", "hide", "--session", "quiet", stdin="hello\nagain\n")
    assert (done.returncode, done.stdout) == (0, "Yes!\nYes!\n")
    assert run("--session", "quiet", stdin="more\n").stdout == "<think>Hm, duck?</think>\n\nYes!\n"


def test_an_argument_is_parsed_as_json_if_possible_and_may_not_replace_the_programs_own() -> None:
    written = ["a=1e999", "b=false", 'd={"e": ["x"]}', "f=NaN", "g=a=b", "h="]
    parsed = {"a": "1e999", "b": False, "d": {"e": ["x"]}, "f": "NaN", "g": "a=b", "h": ""}
    assert parse_template_args(written) == parsed
    for wrong in ("effort", "=high", "a-b=c", "messages=x", "add_generation_prompt=x", "self=x"):
        with pytest.raises(ValueError, match=f"must be KEY=VALUE|'{wrong[:-2]}'"):
            parse_template_args([wrong])
