"""Prompts of one's own: `[prompts.NAME]`, `-p NAME` and `mlxchat prompts`."""

import io
import json
from pathlib import Path

import pytest

from mlxchat import paths
from mlxchat.app.prompt import read_into
from mlxchat.errors import UsageError
from mlxchat.sessions.listing import listing, read_session
from tests.conftest import RunMlxchat

CONFIG = """
[generate]
max-tokens = 9

[prompts.commit]
system = "Be brief."
prompt = "A message for {input}, in {braces} and {{input}}:"
max-tokens = 4
temp = 0

[prompts.joke]
prompt = "Tell a joke."

[prompts.loud]
temp = 2.0
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, unthinking_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXCHAT_MODEL", str(unthinking_model))
    monkeypatch.chdir(tmp_path)
    paths.config_file().parent.mkdir(parents=True, exist_ok=True)
    paths.config_file().write_text(CONFIG)


def test_the_input_goes_to_its_place_or_after_the_prompt() -> None:
    def read(template: str, prompt: str | None, piped: str | None) -> str:
        stdin = None if piped is None else io.BytesIO(piped.encode())
        return read_into(template, prompt, (), stdin).text

    assert read("a {input} b {x} {{input}}", "q {input}", "d") == (
        "a d\n\nq {input} b {x} {d\n\nq {input}}"
    )
    assert read("Do:", "this", None) == "Do:\n\nthis"
    assert read("Do it.", None, None) == "Do it."
    assert read("Do it.", None, "") == "Do it."
    assert read("", "this", None) == "this"
    for template in ("a {input}", ""):
        with pytest.raises(UsageError, match="nothing to read"):
            read(template, None, None)


def test_a_document_is_answered_with_the_prompt_and_its_options(run_mlxchat: RunMlxchat) -> None:
    done = run_mlxchat("-p", "commit", "--json", stdin="the change")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout.splitlines()[-1])["generated_tokens"] <= 4
    saved = read_session(listing()[0].name)
    assert saved.system == "Be brief."
    assert [each.user for each in saved.turns] == [
        "A message for the change, in {braces} and {the change}:"
    ]
    text = run_mlxchat("generate", "-p", "commit", stdin="the change").stdout
    plain = run_mlxchat(
        *("generate", "-n", "4", "--temp", "0", "-s", "Be brief."),
        "A message for the change, in {braces} and {the change}:",
    )
    assert text == plain.stdout


def test_the_command_line_overrides_a_prompt_and_a_prompt_the_configuration(
    run_mlxchat: RunMlxchat, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tokens(*options: str) -> int:
        how = ("generate", "--json", "--ignore-eos", *options, "a")
        return json.loads(run_mlxchat(*how).stdout.splitlines()[-1])["generated_tokens"]

    monkeypatch.setenv("MLXCHAT_GENERATE_MAX_TOKENS", "7")
    assert tokens() == 7
    assert tokens("-p", "commit") == 4
    assert tokens("-p", "commit", "-n", "2") == 2
    assert tokens("-p", "joke") == 7


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["-p", "comit"], "unknown prompt 'comit'; did you mean 'commit'?"),
        (["generate", "-p", "nothing"], "unknown prompt 'nothing'; known: commit, joke, loud"),
        (["-p", "Tell me a joke"], "unknown prompt 'Tell me a joke': to ask this, leave out the"),
        (["-p", "commit"], "nothing to read"),
    ],
)
def test_what_cannot_be_asked_is_a_usage_error(
    arguments: list[str], error: str, run_mlxchat: RunMlxchat
) -> None:
    done = run_mlxchat(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert error in done.stderr


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ("[prompts]\na = 1", "prompts.a must be a table, [prompts.a], not 1"),
        ('[prompts.a]\nprompt = " "', "prompts.a.prompt must be a string in quotes, not ' '"),
        ("[prompts.a]\ntmp = 1", "prompts.a.tmp is not an option of generate; did you mean"),
        ("[prompts.a]\ntemp = -1", "prompts.a.temp"),
    ],
)
def test_a_wrong_prompt_is_reported_with_its_key(
    table: str, error: str, run_mlxchat: RunMlxchat
) -> None:
    paths.config_file().write_text(table)
    done = run_mlxchat("generate", "-p", "a", "x")
    assert done.returncode == 2
    assert error in done.stderr
    assert done.stderr.count("\n") == 1


def test_prompts_are_shown_with_the_configuration(run_mlxchat: RunMlxchat) -> None:
    shown = run_mlxchat("config", "show", "prompts").stdout.splitlines()
    assert f"prompts.joke.prompt\tTell a joke.\t{paths.config_file()}" in shown
