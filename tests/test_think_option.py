"""`--think` and `--template-arg` in the program: the output, and the saved session."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mlxchat.app.chat import Chat as AppChat
from mlxchat.request import ChatOptions, Setup
from mlxchat.request.written import parse_template_args
from mlxchat.settings import GenerationSettings
from tests.in_process import run_in_process
from tests.reply_formats import HARMONY
from tests.scripted_program import say_scripts

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def harmony(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return HARMONY.write(tmp_path_factory.mktemp("models") / "harmony")


@pytest.fixture
def run(harmony: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    say_scripts(monkeypatch)

    def run(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        model = [] if "--resume" in arguments else ["-m", str(harmony)]
        return run_in_process(*arguments, *model, stdin=stdin)

    return run


def events(stdout: str, kind: str) -> list[dict[str, object]]:
    return [each for each in map(json.loads, stdout.splitlines()) if each["event"] == kind]


def test_raw_text_has_no_format(run: Run) -> None:
    done = run("generate", "--raw", "hello")
    assert done.stdout.startswith("analysisHm, duck?assistantfinalYes!")


def test_events_separate_thoughts_from_answers_or_omit_them(run: Run) -> None:
    for think, thought in (("on", "Hm, duck?"), ("hide", "")):
        done = run("generate", "--json", "--think", think, "hello")
        (last,) = events(done.stdout, "done")
        said = {True: "", False: ""}
        for token in events(done.stdout, "token"):
            said[bool(token.get("thought"))] += str(token["text"])
        assert said == {True: thought, False: "Yes!"}
        assert (last["thought"], last["text"]) == (thought, "Yes!")


def test_a_piped_chat_and_a_session_contain_only_answers_if_thoughts_are_hidden(run: Run) -> None:
    done = run("--think", "hide", "--session", "quiet", stdin="hello\nagain\n")
    assert (done.returncode, done.stdout) == (0, "Yes!\nYes!\n")
    shown = run("--session", "quiet", stdin="more\n")
    assert shown.stdout == "<think>Hm, duck?</think>\n\nYes!\n"


def test_a_run_stopped_within_a_thought_resumes_within_it(run: Run, tmp_path: Path) -> None:
    night = tmp_path / "night"
    arguments = ["--template-arg", "reasoning_effort=high", "--think", "on"]
    often = ["--checkpoint-every", "4"]
    begun = run("generate", "--checkpoint", str(night), *often, "-n", "14", *arguments, "hello")
    assert begun.returncode == 0, begun.stderr
    assert (night / "output.txt").read_text() == "<think>Hm, "
    resumed = run("generate", "--resume", str(night), "-n", "200")
    assert resumed.returncode == 0, resumed.stderr
    assert (night / "output.txt").read_text() == "<think>Hm, duck?</think>\n\nYes!"
    assert json.loads((night / "run.json").read_text())["request"]["think"] == "on"


def test_an_argument_is_parsed_as_json_if_possible_and_may_not_replace_the_programs_own() -> None:
    written = ["a=high", "b=false", "c=2", 'd={"e": ["x"]}', "f=NaN", "g=a=b", "h="]
    assert parse_template_args(written) == {
        "a": "high",
        "b": False,
        "c": 2,
        "d": {"e": ["x"]},
        "f": "NaN",
        "g": "a=b",
        "h": "",
    }
    for each in ("effort", "=high", "a-b=c"):
        with pytest.raises(ValueError, match="must be KEY=VALUE"):
            parse_template_args([each])
    for name in ("messages", "add_generation_prompt", "bos_token", "self"):
        with pytest.raises(ValueError, match=f"'{name}'"):
            parse_template_args([f"{name}=x"])


def test_loading_a_session_restores_its_template_arguments(tiny_model: Path) -> None:
    """It was continued with the arguments of the previous session."""
    setup, deep = Setup(str(tiny_model), window=320, keep=0), {"reasoning_effort": "high"}
    options = ChatOptions(setup, generation=GenerationSettings(max_tokens=1))
    for name, arguments in (("deep", deep), ("plain", {})):
        with AppChat.open(replace(options, template_args=arguments), session=name) as chat:
            list(chat.say("hello"))
    with AppChat.open(options, session="plain") as chat:
        chat.change_session("deep")
        assert dict(chat.conversation.rendering.template_args) == deep
        chat.change_session("plain")
        assert dict(chat.conversation.rendering.template_args) == {}
