"""`mlxchat "question"`: one answer, saved like any chat; what is not taken for a question; and
prompts of one's own, `[prompts.NAME]` and `-p NAME`."""

import io
import json
import re
import shlex
from functools import partial
from pathlib import Path

import pytest

from mlxchat import paths
from mlxchat.app.prompt import read_into
from mlxchat.errors import UsageError
from mlxchat.sessions.listing import listing, read_session
from mlxchat.terminal import progress
from tests.failing_database import FailingDatabase
from tests.in_process import run_in_process, run_quietly, write_config
from tests.terminal import interrupt, on_terminal

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
choice = ["ha", "ho"]
"""

everything = partial(listing, everything=True)


@pytest.fixture(autouse=True)
def configured(unthinking_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLXCHAT_MODEL", str(unthinking_model))
    monkeypatch.setenv("MLXCHAT_CHAT_MAX_TOKENS", "5")
    monkeypatch.setenv("MLXCHAT_CHAT_TEMP", "0")
    monkeypatch.chdir(tmp_path)
    write_config(CONFIG)


def asked() -> list[list[str]]:
    """What the user said in every session, the latest session first."""
    return [[turn.user for turn in read_session(each.name).turns] for each in everything()]


def test_continue_asks_in_the_last_session_which_is_listed_and_has_a_cache_from_then_on() -> None:
    for arguments in (["one question"], ["-c", "another question"], ["a third one", "-c"]):
        assert run_in_process(*arguments).returncode == 0
        is_chat = len(asked()[0]) > 1
        assert len(listing()) == len([*paths.sessions_dir().glob("*.safetensors")]) == is_chat
    assert asked() == [["one question", "another question", "a third one"]]
    assert run_in_process("--session", "mine", "a question").returncode == 0
    assert len(listing()) == 2


def test_a_question_goes_on_unsaved_on_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    run_in_process("one question")
    FailingDatabase(monkeypatch).failing = range(10_000)
    done = run_in_process("-c", stdin="another\n")
    assert (done.returncode, done.stdout > "") == (1, True)
    assert "the chat continues unsaved" in done.stderr
    assert asked() == [["one question"]]


def test_a_piped_document_goes_before_the_question() -> None:
    # Also the name of an argument.
    assert run_in_process("question", "-n", "9", stdin="A report.\n").returncode == 0
    assert run_in_process("Any errors?", stdin="").returncode == 0
    # A word that is close to a command is not a question there either.
    assert run_in_process("cht", stdin="A report.\n").returncode == 2
    assert asked() == [["Any errors?"], ["A report.\n\n\nquestion"]]
    assert [each.first for each in everything()] == ["Any errors?", "question"]


def test_a_pipe_is_turns_or_with_a_dash_one_question_after_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("One.")
    for how in ("chat", "-"):
        run_quietly(how, "-f", str(tmp_path / "a.md"), stdin="Who?\nAnd why?\n")
    begins = f"# {tmp_path}/a.md\n\nOne.\n\n"
    assert asked() == [[f"{begins}Who?\nAnd why?\n"], [f"{begins}Who?", "And why?"]]
    assert "pipe" in run_in_process("-").stderr


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("hello", "unknown command 'hello'; to ask it, use `mlxchat chat \"hello\"`"),
        ("what is it -n 2", "unknown command 'what' (did you mean `mlxchat chat`?); to ask it, …"),
        ("/continue", "/continue is for a chat: start it with `mlxchat`, and type /continue there"),
        ("And so?", "unknown command 'And'; to ask it, use `mlxchat \"And so?\"`"),
        ("cache prune", "no such command 'prune' (see mlxchat cache --help)"),
        ("pull qwen3", "unknown command 'pull' (did you mean `mlxchat models pull`?); …"),
        ("chat why so", 'quote the question: mlxchat chat "why so"'),
        ("''", "the question is empty"),
        ("-n 3 generate it", "options come after the command: mlxchat generate …"),
        ("generate --regex '' it", "--regex must not be empty"),
        ("generate --regex= it", "--regex must not be empty"),
        ("batch ''", "INPUT must not be empty"),
        ("SmolLM2", "SmolLM2 is a model or a path: to chat with a model, use `mlxchat -m Smol…"),
        ("'-x + 3 is what?'", "no such option: -; before a question that begins with a dash, …"),
    ],
)
def test_words_that_are_not_a_question_are_refused_with_a_hint(line: str, error: str) -> None:
    done = run_in_process(*shlex.split(line))
    assert (done.returncode, done.stdout) == (2, "")
    expected = f"mlxchat: error: {error}".split("…")[0]
    assert done.stderr.startswith(expected)
    assert error.endswith("…") or done.stderr == f"{expected}\n"
    assert everything() == []


@pytest.mark.usefixtures("ordinary_terminal")
def test_a_stopped_question_is_not_called_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    steps = [(r"reading [1-9]", interrupt)]
    _, terminal = on_terminal("why " * 5_000, "--prefill-step-size", "1", steps=steps)
    assert "so the message is not saved" in terminal.written.replace("\r\n", " ")
    assert everything() == []


@pytest.mark.usefixtures("ordinary_terminal")
def test_what_is_not_shown_as_it_is_written_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    for extracts in ([], ["-x"]):
        _, terminal = on_terminal("Write.", "-n", "60", "--seed", "1", *extracts, steps=[])
        assert ("writing" in terminal.written) is bool(extracts)


@pytest.mark.usefixtures("ordinary_terminal")
def test_a_question_that_is_cut_off_says_how_to_go_on() -> None:
    _, terminal = on_terminal("What is a lighthouse?", "-n", "2", steps=[])
    how = r"\nmlxchat: stopped \(length\): saved; resume with: mlxchat --session [\d-]+\n"
    assert re.search(how, terminal.written.replace("\r", ""))


def test_the_input_goes_to_its_place_or_after_the_prompt() -> None:
    def read(template: str, prompt: str | None, piped: str | None) -> str:
        stdin = None if piped is None else io.BytesIO(piped.encode())
        return read_into(template, prompt, (), stdin).text

    filled = "a d\n\nq {input} b {x} {d\n\nq {input}}"
    assert read("a {input} b {x} {{input}}", "q {input}", "d") == filled
    # As the rows of a batch also call it.
    assert read("a {text} b", "q", None) == "a q b"
    assert read("Do:", "this", None) == "Do:\n\nthis"
    assert read("Do it.", None, "") == "Do it."
    with pytest.raises(UsageError, match="nothing to read"):
        read("", None, None)


def test_a_document_is_answered_with_the_prompt_and_its_options() -> None:
    events = run_quietly("-p", "commit", "--json", stdin="the change")
    assert json.loads(events.splitlines()[-1])["generated_tokens"] <= 4
    saved = read_session(everything()[0].name)
    assert saved.system == "Be brief."
    (turn,) = saved.turns
    assert turn.user == "A message for the change, in {braces} and {the change}:"


def test_the_command_line_overrides_a_prompt_and_a_prompt_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def tokens(*options: str) -> int:
        how = ("generate", "--json", "--ignore-eos", *options, "a")
        return json.loads(run_in_process(*how).stdout.splitlines()[-1])["generated_tokens"]

    monkeypatch.setenv("MLXCHAT_GENERATE_MAX_TOKENS", "7")
    assert tokens() == 7
    assert tokens("-p", "commit") == 4
    assert tokens("-p", "commit", "-n", "2") == 2
    monkeypatch.setenv("MLXCHAT_GENERATE_OVERFLOW", "passages")
    assert tokens("--raw") == 7
    monkeypatch.setenv("MLXCHAT_GENERATE_REGEX", "a")
    monkeypatch.setenv("MLXCHAT_CHAT_SESSION", "mine")
    run_quietly("--save", "hello")
    assert everything()[0].name == "mine"
    for options, written in ([], "a"), (["-p", "joke"], "h"), (["-p", "joke", "--regex", "x"], "x"):
        assert run_quietly("generate", *options, "a")[0] == written


@pytest.mark.parametrize(
    ("config", "name", "error"),
    [
        (f"{CONFIG}[prompts.comit]\n", "comit", "unknown prompt 'comit'; did you mean 'commit'?"),
        (CONFIG, "commit", "nothing to read"),
        ("\ufeff[prompts]\na = 1", "a", "prompts.a must be a table, [prompts.a], not 1"),
        ("[prompts.a]\ntemp = -1", "a", "prompts.a.temp"),
    ],
)
def test_what_cannot_be_asked_is_a_usage_error(config: str, name: str, error: str) -> None:
    write_config(config)
    done = run_in_process("generate", "-p", name)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert error in done.stderr
