"""The configuration: what its file and variables set and refuse, and edits that lose nothing."""

import stat
import sys
from pathlib import Path

import pytest

from mlxchat import paths
from mlxchat.config import read_user_config
from mlxchat.errors import ConfigError
from mlxchat.request.commands import COMMANDS
from tests.in_process import parameters, run_in_process, run_quietly, write_config

# What it sets


def test_a_flag_wins_over_a_variable_and_it_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parameters("chat")["temp"] is None
    write_config("[chat]\ntemp = 1\n")
    monkeypatch.setenv("MLXCHAT_CHAT_TEMP", "")
    assert parameters("chat")["temp"] == "1"
    monkeypatch.setenv("MLXCHAT_CHAT_TEMP", "2")
    assert parameters("chat")["temp"] == "2"
    assert parameters("chat", "--temp", "3")["temp"] == "3"
    # So it does over what cannot be combined with it, or needs another option.
    write_config("[generate]\nregex = 'a'\nlogprobs = 3\nextract = true\noverflow = 'stop'")
    monkeypatch.setenv("MLXCHAT_GENERATE_CHOICE", "b")
    set_, names = parameters("generate", "--json"), ("regex", "choice", "logprobs", "extract")
    assert [set_[each] for each in names] == [None, ["b"], "3", None]
    assert parameters("generate", "--extract")["logprobs"] is None
    write_config("[prompts.p]\nschema = 'a'\nschema-prompt = true")
    assert parameters("generate", "-pp", "--regex", "a")["schema_prompt"] is None


def test_a_commands_own_model_overrides_only_its_own_level(monkeypatch: pytest.MonkeyPatch) -> None:
    write_config('model = "a/all"\nchat.model = "a/chat"')
    assert parameters("chat")["model"] == "a/chat"
    # The model for all commands is left to those who find models.
    assert parameters("generate")["model"] is None
    monkeypatch.setenv("MLXCHAT_MODEL", "a/variable")
    assert parameters("chat")["model"] is None
    monkeypatch.setenv("MLXCHAT_CHAT_MODEL", "a/chat-variable")
    assert parameters("chat")["model"] == "a/chat-variable"


def test_show_lists_every_setting_and_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    user = write_config('model = "a/b"\n[aliases]\nx = "c/d"\n[chat]\nsystem = "Be\\nbrief."\n')
    monkeypatch.setenv("MLXCHAT_GENERATE_STOP", "END")
    lines = run_quietly("config", "show").splitlines()
    cells = {line.split("\t")[0]: line.split("\t")[1:] for line in lines}
    options = {f"{name}.{each.name}" for name, all_ in COMMANDS.items() for each in all_.values()}
    assert {*cells} == {"model", "aliases.x", *options}
    assert cells["model"] == cells["chat.model"] == ["a/b", str(user)]
    assert cells["chat.system"] == [r'"Be\nbrief."', str(user)]
    assert cells["chat.save"] + cells["chat.max-tokens"] == ["true", "default", "off", "default"]
    assert cells["generate.stop"] == ['["END"]', "MLXCHAT_GENERATE_STOP"]
    assert cells["generate.temp"] == ["(the model's, else 0)", "default"]


# What it refuses


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model = ", "not valid TOML: "),
        ("modle = 'x'", "unknown key 'modle'; did you mean 'model'?"),
        ("temp = 1", "unknown key 'temp'; did you mean 'batch.temp' or 'chat.temp' or 'gen"),
        ("model = 3", "model must be text in quotes and not empty: 3"),
        ("aliases = 'x'", "aliases must be a table, [aliases], not 'x'"),
        ("[aliases]\nx = ['y']", "aliases.x must be text in quotes and not empty: ['y']"),
        ("[generate.temp]\nx = 1", "generate.temp: --temp cannot be {'x': 1}"),
        ("[chat]\ntemp = 'hot'", "chat.temp: --temp must be a number, got 'hot'"),
        ("[chat]\nstop = ['']", "chat.stop: --stop must not be empty"),
        ("[batch]\ntmep = 1", "batch.tmep is not an option of batch; did you mean 'temp'?"),
        ("[prompts.x]\ntmep = 1", "prompts.x.tmep is not an option of generate; did you mean"),
    ],
)
def test_an_invalid_key_or_value_is_refused_by_file_and_key(text: str, message: str) -> None:
    path = write_config(text)
    with pytest.raises(ConfigError) as caught:
        read_user_config()
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


def test_a_broken_file_does_not_stop_help_or_commands_that_do_not_use_it() -> None:
    write_config("broken")
    for arguments in (["generate", "--help"], ["session", "list"], ["config", "path"]):
        run_quietly(*arguments)
    done = run_in_process("generate", "Hello")
    assert done.returncode == 2
    assert done.stderr.startswith(f"mlxchat: error: {paths.config_file()}: not valid TOML: ")
    write_config('prompts.a.prompt = "a"\nmodel = "b"\n')
    assert "no place for prompts.c" in run_in_process("config", "set", "prompts.c.temp", "1").stderr


def test_a_variable_without_its_command_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXCHAT_TEMP", "1")
    with pytest.raises(ConfigError, match=r"^MLXCHAT_TEMP: name the command, as in MLXCHAT_CHAT_"):
        parameters("chat")


# How the file is changed

TEXT = """# mine
model = "small"  # the small one

[aliases]
small = "org/small"

[generate]  # for pipes
max-tokens = 5
"""


@pytest.mark.parametrize(
    ("key", "values", "changed"),
    [
        ("model", ["small"], TEXT),
        ("aliases.small", [], TEXT.replace('small = "org/small"\n', "")),
        ("generate.max-tokens", ["-1"], TEXT.replace("= 5", "= -1")),
        ("generate.json", ["true"], TEXT + "json = true\n"),
        ("generate.max-kv-size", ["350"], TEXT + "max-kv-size = 350\n"),
        ("generate.for", ["8h"], TEXT + 'for = "8h"\n'),
        ("generate.stop", ["END", "--x"], TEXT + 'stop = ["END", "--x"]\n'),
        ("prompts.a.prompt", ["b"], TEXT + '\n[prompts.a]\nprompt = "b"\n'),
        ("chat.system", ['say "a\\b"\n'], TEXT + '\n[chat]\nsystem = "say \\"a\\\\b\\"\\n"\n'),
    ],
)
def test_a_key_is_set_in_place_and_every_other_byte_stays(
    key: str, values: list[str], changed: str, tmp_path: Path
) -> None:
    """Also if the file is a link into a repository of dotfiles, which a rename would replace."""
    path = write_config(TEXT).rename(tmp_path / "dotfiles.toml")
    path.chmod(0o640)
    paths.config_file().symlink_to(path)
    run_quietly("config", "set", key, *(values or ["--unset"]))
    assert path.read_text() == changed
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert paths.config_file().is_symlink()
    assert read_user_config()


def test_a_prompt_is_added_to_prompts_that_are_apart() -> None:
    write_config('[prompts.a]\nprompt = "a"\n[chat]\n[prompts.b]\nprompt = "b"\n')
    run_quietly("config", "set", "prompts.c.prompt", "c")
    assert read_user_config().prompt("c")["prompt"].value == "c"


def test_set_refuses_an_invalid_value_and_unset_removes_an_invalid_key() -> None:
    path = write_config("modle = 'x'\n[chat]\ntmep = 1\ntemp = 1\n")
    for key in ("modle", "chat.tmep"):
        assert run_in_process("config", "set", key, "--unset").returncode == 0
    done = run_in_process("config", "set", "chat.temp", "-1")
    assert (done.returncode, done.stdout) == (2, "")
    message = "chat.temp: --temp must be at least 0, got -1.0"
    assert done.stderr == f"mlxchat: error: {path}: {message}\n"
    assert path.read_text() == "[chat]\ntemp = 1\n"


def test_set_stores_a_model_name_that_works_in_every_directory(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").symlink_to(tiny_model)
    done = run_in_process("config", "set", "model", "smolm2")
    assert (done.returncode, "did you mean smollm2?" in done.stderr) == (1, True)
    assert run_in_process("config", "set", "aliases.tiny-0.1", "./here").returncode == 0
    assert run_in_process("config", "set", "model", "tiny-0.1").returncode == 0
    written = f'model = "tiny-0.1"\n\n[aliases]\n"tiny-0.1" = "{tmp_path / "here"}"\n'
    assert paths.config_file().read_text() == written
    assert stat.S_IMODE(paths.config_file().stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("edited", "meanwhile", "error"),
    [
        ("# mine\n[chat]\ntop-k = 3\n", "# before\n", None),
        ("model = ", "# before\n", "not valid TOML"),
        ("chat.tmep = 1", "# before\n", "did you mean 'temp'?"),
        ("# mine\n", "# by another\n", "changed by another program while you were editing"),
    ],
)
def test_edit_installs_a_valid_file_unless_it_has_changed_and_never_loses_the_text(
    edited: str, meanwhile: str, error: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, script = write_config("# before\n"), tmp_path / "editor.py"
    script.write_text(
        "import pathlib, sys\n"
        f"pathlib.Path(sys.argv[1]).write_text({edited!r})\n"
        f"pathlib.Path({str(path)!r}).write_text({meanwhile!r})\n"
    )
    monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = run_in_process("config", "edit")
    if error is None:
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert path.read_text() == edited
    else:
        kept, complaint = done.stderr.splitlines()
        assert (done.returncode, error in complaint, path.read_text()) == (2, True, meanwhile)
        assert kept.startswith(f"mlxchat: {path} is unchanged; your edits are in ")
        assert Path(kept.rpartition(" ")[2]).read_text() == edited.removesuffix("\n") + "\n"
    path.write_text("x")
    monkeypatch.setenv("EDITOR", "true")
    assert "not valid TOML" in run_in_process("config", "edit").stderr
