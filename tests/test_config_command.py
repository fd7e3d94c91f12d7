"""`mlxchat config`, and how the commands use the configuration."""

import itertools
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from mlxchat import cli, paths
from mlxchat.errors import ConfigError
from mlxchat.request.commands import COMMANDS
from tests.conftest import RunMlxchat

ROOT: Any = typer.main.get_command(cli.app)


@pytest.fixture
def here(temporary_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory."""
    directory = temporary_home / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    return directory


def write_user(text: str) -> Path:
    paths.config_file().parent.mkdir(parents=True, exist_ok=True)
    paths.config_file().write_text(text)
    return paths.config_file()


def parameters(command: str, *arguments: str) -> dict[str, Any]:
    """The parameters the command would run with."""
    root = ROOT.make_context("mlxchat", [command])
    return ROOT.commands[command].make_context(command, list(arguments), parent=root).params


# How the commands use it

Write = Callable[[float], list[str]]


def by_flag(value: float) -> list[str]:
    return ["--temp", str(value)]


def by_variable(value: float) -> list[str]:
    os.environ["MLXCHAT_CHAT_TEMP"] = str(value)
    return []


def by_user(value: float) -> list[str]:
    write_user(f"[chat]\ntemp = {value}\n")
    return []


PAIRS = list(itertools.combinations([by_flag, by_variable, by_user], 2))


@pytest.mark.parametrize(
    ("stronger", "weaker"), PAIRS, ids=[f"{a.__name__}, {b.__name__}" for a, b in PAIRS]
)
def test_precedence_is_flag_variable_file(
    here: Path, monkeypatch: pytest.MonkeyPatch, stronger: Write, weaker: Write
):
    monkeypatch.setenv("MLXCHAT_CHAT_TEMP", "")
    assert parameters("chat")["temp"] is None
    arguments = weaker(0.75)
    assert float(parameters("chat", *arguments)["temp"]) == 0.75
    assert float(parameters("chat", *arguments, *stronger(0.25))["temp"]) == 0.25


@pytest.mark.parametrize("variable", ["MLXCHAT_VERSION", "MLXCHAT_HELP", "MLXCHAT_CHAT_HELP"])
def test_no_variable_changes_what_a_command_does(
    here: Path, monkeypatch: pytest.MonkeyPatch, variable: str
):
    """A container may well set MLXCHAT_VERSION."""
    monkeypatch.setenv(variable, "1")
    if variable == "MLXCHAT_CHAT_HELP":
        with pytest.raises(ConfigError, match=r"chat\.help is not an option of chat"):
            parameters("chat")
    else:
        assert parameters("chat")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("temp = 'hot'", "temp: --temp must be a number, got 'hot'"),
        ("temp = [1]", "temp: --temp takes one value, got [1]"),
        ("max-tokens = 0.5", "max-tokens: --max-tokens must be a whole number, got '0.5'"),
        ("max-kv-size = 'big'", "max-kv-size: --max-kv-size must be auto, none or a number"),
        ("save = 'perhaps'", "save: --save must be on or off, got 'perhaps'"),
        ("stop = ['']", "stop: --stop must not be empty"),
        ("version = true", "version is not an option of chat"),
    ],
)
def test_an_invalid_value_is_refused_with_its_file_or_variable(here: Path, text: str, message: str):
    path = write_user(f"[chat]\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        parameters("chat")
    assert str(caught.value).startswith(f"{path}: chat.{message}")
    assert "\n" not in str(caught.value)


def test_a_commands_own_model_overrides_only_its_own_level(
    here: Path, monkeypatch: pytest.MonkeyPatch
):
    """[chat] model in the user's file used to override MLXCHAT_MODEL."""
    write_user('model = "a/all"\nchat.model = "a/chat"')
    assert parameters("chat")["model"] == "a/chat"
    # The model for all commands is left to those who find models.
    assert parameters("generate")["model"] is None
    monkeypatch.setenv("MLXCHAT_MODEL", "a/variable")
    assert parameters("chat")["model"] is None
    monkeypatch.setenv("MLXCHAT_CHAT_MODEL", "a/chat-variable")
    assert parameters("chat")["model"] == "a/chat-variable"


def test_an_unknown_option_is_refused_with_its_place(here: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_user('[chat]\nsystem-prompt = "b"')
    with pytest.raises(ConfigError) as caught:
        parameters("chat")
    assert str(caught.value) == (
        f"{path}: chat.system-prompt is not an option of chat; did you mean 'system'?"
    )
    write_user("")
    monkeypatch.setenv("MLXCHAT_CHAT_TMEP", "1")
    with pytest.raises(ConfigError) as caught:
        parameters("chat")
    assert str(caught.value) == (
        "MLXCHAT_CHAT_TMEP: chat.tmep is not an option of chat; did you mean 'temp'?"
    )


def test_a_broken_file_does_not_stop_help_or_commands_that_do_not_use_it(
    here: Path, run_mlxchat: RunMlxchat
):
    write_user("broken")
    for arguments in (["generate", "--help"], ["session", "list"], ["config", "path"]):
        done = run_mlxchat(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
    done = run_mlxchat("generate", "--tmep", "1")
    assert (done.returncode, "no such option" in done.stderr) == (2, True)
    done = run_mlxchat("generate", "Hello")
    assert done.returncode == 2
    assert done.stderr.startswith(f"mlxchat: error: {paths.config_file()}: not valid TOML: ")


# show


def test_show_lists_every_setting_and_its_source(
    here: Path, run_mlxchat: RunMlxchat, monkeypatch: pytest.MonkeyPatch
):
    user = write_user(
        'model = "a/b"\n[aliases]\nx = "c/d"\n[chat]\ntemp = 1\nsystem = "Be\\nbrief."\n'
    )
    monkeypatch.setenv("MLXCHAT_GENERATE_STOP", "END")
    done = run_mlxchat("config", "show", "prompts")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = run_mlxchat("config", "show")
    assert (done.returncode, done.stderr) == (0, "")
    cells = {line.split("\t")[0]: line.split("\t")[1:] for line in done.stdout.splitlines()}
    assert cells["model"] == ["a/b", str(user)]
    assert cells["aliases.x"] == ["c/d", str(user)]
    assert cells["chat.model"] == ["a/b", str(user)]
    assert cells["chat.temp"] == ["1", str(user)]
    assert cells["chat.system"] == ["Be brief.", str(user)]
    assert cells["chat.save"] == ["true", "default"]
    assert cells["generate.stop"] == ['["END"]', "MLXCHAT_GENERATE_STOP"]
    assert cells["generate.temp"] == ["(the model's, else 0)", "default"]
    assert cells["generate.max-kv-size"] == ["auto", "default"]


def test_show_has_exactly_one_row_per_option(here: Path, run_mlxchat: RunMlxchat):
    keys = [line.split("\t")[0] for line in run_mlxchat("config", "show").stdout.splitlines()]
    options = [
        f"{command}.{max(each.opts, key=len).removeprefix('--')}"
        for command in ("batch", "chat", "generate")
        for each in ROOT.commands[command].params
        if each.param_type_name == "option" and each.name in COMMANDS[command]
    ]
    assert sorted(keys) == sorted(
        ["model", *(each.replace("system-prompt", "system") for each in options)]
    )


# set


def test_set_keeps_the_rest_and_unset_removes_the_key(here: Path, run_mlxchat: RunMlxchat):
    text = "# mine\n\n[chat] # talk\ntemp = 0.5 # warm\n"
    path = write_user(text)
    path.chmod(0o640)
    assert run_mlxchat("config", "set", "chat.temp", "0.9").returncode == 0
    assert path.read_text() == text.replace("0.5", "0.9")
    assert run_mlxchat("config", "set", "chat.max-kv-size", "512").returncode == 0
    assert run_mlxchat("config", "set", "chat.max-kv-size", "--unset").returncode == 0
    assert run_mlxchat("config", "set", "chat.temp", "0.5").returncode == 0
    assert path.read_text() == text
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        (["generate.max-tokens", "-1"], "max-tokens = -1"),
        (["generate.json", "true"], "json = true"),
        (["generate.stop", "END", "--x"], 'stop = ["END", "--x"]'),
        (["generate.system", "Sei kürzer."], 'system = "Sei kürzer."'),
        (["generate.for", "8h"], 'for = "8h"'),
        (["generate.seed", "18446744073709551615"], None),
    ],
)
def test_set_writes_a_value_of_the_options_type(
    here: Path, run_mlxchat: RunMlxchat, arguments: list[str], written: str | None
):
    done = run_mlxchat("config", "set", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    if written is not None:
        assert paths.config_file().read_text() == f"[generate]\n{written}\n"
    assert parameters("generate")
    assert stat.S_IMODE(paths.config_file().stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chat.temp"], "chat.temp needs either a VALUE, or --unset to remove it"),
        (["chat.temp", "1", "--unset"], "chat.temp needs either a VALUE, or --unset to remove it"),
        (["chat.temp", "1", "2"], "{}: chat.temp: --temp takes one value, got ['1', '2']"),
        (["chat.temp", "-1"], "{}: chat.temp: --temp must be at least 0, got -1.0"),
        (
            ["chat.max_kv_size", "1"],
            "{}: chat.max_kv_size is not an option of chat; did you mean 'max-kv-size'?",
        ),
        (["aliases", "1"], "{}: aliases must be a table, [aliases], not '1'"),
    ],
)
def test_set_refuses_invalid_values_and_writes_nothing(
    here: Path, run_mlxchat: RunMlxchat, arguments: list[str], message: str
):
    done = run_mlxchat("config", "set", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"mlxchat: error: {message.format(paths.config_file())}\n"
    assert not paths.config_file().exists()


def test_set_refuses_an_unknown_model(here: Path, run_mlxchat: RunMlxchat):
    for key in ("model", "chat.model", "aliases.x"):
        done = run_mlxchat("config", "set", key, "smolm2")
        assert done.returncode == 1
        assert "did you mean smollm2?" in done.stderr
    assert not paths.config_file().exists()


def test_set_stores_a_model_name_that_works_in_every_directory(
    here: Path, run_mlxchat: RunMlxchat, tiny_model: Path
):
    (here / "here").symlink_to(tiny_model)
    assert run_mlxchat("config", "set", "aliases.tiny-0.1", "./here").returncode == 0
    assert run_mlxchat("config", "set", "model", "tiny-0.1").returncode == 0
    assert paths.config_file().read_text() == (
        f'model = "tiny-0.1"\n\n[aliases]\n"tiny-0.1" = "{here / "here"}"\n'
    )


def test_unset_removes_an_invalid_key(here: Path, run_mlxchat: RunMlxchat):
    path = write_user("modle = 'x'\n[chat]\ntmep = 1\ntemp = 1\n")
    for key in ("modle", "chat.tmep"):
        assert run_mlxchat("config", "set", key, "--unset").returncode == 0
    assert path.read_text() == "[chat]\ntemp = 1\n"
    done = run_mlxchat("config", "set", "chat.top-k", "--unset")
    assert (done.returncode, done.stderr) == (0, f"mlxchat: chat.top-k is not set in {path}\n")


# edit


def editor_that(tmp_path: Path, *python: str) -> str:
    """An editor that runs the first of these lines when first opened, the second the next time,
    and so on; `text` and `file` are what it is to edit."""
    script = tmp_path / "editor.py"
    turns = tmp_path / "turns"
    script.write_text(
        "import pathlib, sys\n"
        f"turns, lines = pathlib.Path({str(turns)!r}), {list(python)!r}\n"
        "file = pathlib.Path(sys.argv[1]); text = file.read_text()\n"
        "n = len(turns.read_text()) if turns.exists() else 0\n"
        "turns.write_text('x' * (n + 1))\n"
        "exec(lines[n])\n"
    )
    return f"{sys.executable} {script}"


def test_edit_replaces_the_file_once_it_is_valid(
    here: Path, run_mlxchat: RunMlxchat, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    path = write_user("# mine\n[chat]\ntemp = 0.5\n")
    path.chmod(0o640)
    monkeypatch.setenv("EDITOR", editor_that(tmp_path, "file.write_text(text + 'top-k = 3\\n')"))
    done = run_mlxchat("config", "edit")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert path.read_text() == "# mine\n[chat]\ntemp = 0.5\ntop-k = 3\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model = ", "not valid TOML"),
        ("chat.tmep = 1", "did you mean 'temp'?"),
    ],
)
def test_edit_never_installs_an_invalid_file_and_never_loses_it(
    here: Path,
    run_mlxchat: RunMlxchat,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    message: str,
):
    path = write_user("# before\n")
    editor = editor_that(here.parent, f"file.write_text({text!r})")
    monkeypatch.setenv("EDITOR", editor)
    done = run_mlxchat("config", "edit")
    kept, error = done.stderr.splitlines()
    assert (done.returncode, path.read_text()) == (2, "# before\n")
    assert message in error
    assert kept.startswith(f"mlxchat: {path} is unchanged; your edits are in ")
    assert Path(kept.rpartition(" ")[2]).read_text() == f"{text}\n"


def test_edit_does_not_overwrite_a_concurrent_change(
    here: Path, run_mlxchat: RunMlxchat, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    path = write_user("# before\n")
    line = (
        f"pathlib.Path({str(path)!r}).write_text('# by another\\n'); file.write_text('# mine\\n')"
    )
    monkeypatch.setenv("EDITOR", editor_that(tmp_path, line))
    done = run_mlxchat("config", "edit")
    assert done.returncode == 2
    assert "changed by another program" in done.stderr
    assert path.read_text() == "# by another\n"
    kept = done.stderr.partition("your edits are in ")[2].split()[0]
    assert Path(kept).read_text() == "# mine\n"
