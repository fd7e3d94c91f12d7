"""The levels of configuration: their precedence, and what a project's file may set."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxchat import paths
from mlxchat.config.file import nearest
from mlxchat.config.layers import Level, Setting, read_config, variable_of
from mlxchat.config.project import (
    FILE_NAME,
    find_project_file,
    foreign_project_files,
    project_file_to_write,
)
from mlxchat.errors import ConfigError

NAMES = {"temp": "temp", "model": "model", "system": "system", "system-prompt": "system"}


@pytest.fixture
def project(temporary_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, a repository in the home directory."""
    directory = temporary_home / "work" / "project"
    (directory / ".git").mkdir(parents=True)
    monkeypatch.chdir(directory)
    return directory


def write_user(text: str) -> Path:
    paths.config_file().parent.mkdir(parents=True, exist_ok=True)
    paths.config_file().write_text(text)
    return paths.config_file()


def write_project(text: str) -> Path:
    path = Path.cwd() / FILE_NAME
    path.write_text(text)
    return path


def write_variable(name: str) -> Callable[[str], object]:
    def write(value: str) -> None:
        os.environ[name] = value.partition("= ")[2].strip('"')

    return write


# Each level, highest precedence first, and how to set a temperature there.
LEVELS: list[tuple[Level, Callable[[str], object]]] = [
    (Level.ENVIRONMENT, write_variable("MLXCHAT_CHAT_TEMP")),
    (Level.PROJECT, write_project),
    (Level.USER, write_user),
]
MODEL_LEVELS = [(Level.ENVIRONMENT, write_variable("MLXCHAT_MODEL")), *LEVELS[1:]]


@pytest.mark.parametrize(
    ("stronger", "weaker"),
    list(itertools.combinations(LEVELS, 2)),
    ids=lambda level: str(level[0]),
)
def test_the_level_of_higher_precedence_wins(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    stronger: tuple[Level, Callable[[str], object]],
    weaker: tuple[Level, Callable[[str], object]],
):
    monkeypatch.setenv("MLXCHAT_CHAT_TEMP", "")
    for value, (_, write) in ((0.25, stronger), (0.75, weaker)):
        write(f"chat.temp = {value}")
    setting = read_config().settings("chat", NAMES)["temp"]
    assert (float(setting.value), setting.level) == (0.25, stronger[0])


@pytest.mark.parametrize(
    ("stronger", "weaker"),
    list(itertools.combinations(MODEL_LEVELS, 2)),
    ids=lambda level: str(level[0]),
)
def test_the_model_of_the_higher_level_wins(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    stronger: tuple[Level, Callable[[str], object]],
    weaker: tuple[Level, Callable[[str], object]],
):
    monkeypatch.setenv("MLXCHAT_MODEL", "")
    for value, (_, write) in (("a/strong", stronger), ("a/weak", weaker)):
        write(f'model = "{value}"')
    model = read_config().model()
    assert model is not None
    assert (model.value, model.level) == ("a/strong", stronger[0])


def test_a_commands_own_model_overrides_only_its_own_level(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    """[chat] model in the user's file used to override MLXCHAT_MODEL."""
    write_user('model = "a/all"\nchat.model = "a/chat"')
    assert read_config().settings("chat", NAMES)["model"].value == "a/chat"
    assert read_config().settings("generate", NAMES)["model"].value == "a/all"
    write_project('model = "a/project"')
    assert read_config().settings("chat", NAMES)["model"].value == "a/project"
    monkeypatch.setenv("MLXCHAT_MODEL", "a/variable")
    assert read_config().settings("chat", NAMES)["model"].value == "a/variable"
    monkeypatch.setenv("MLXCHAT_CHAT_MODEL", "a/chat-variable")
    assert read_config().settings("chat", NAMES)["model"].value == "a/chat-variable"
    assert read_config().settings("generate", NAMES)["model"].value == "a/variable"


def test_a_setting_knows_its_file_or_variable(project: Path, monkeypatch: pytest.MonkeyPatch):
    user = write_user("[chat]\ntemp = 1")
    file = write_project('chat.system_prompt = "Be brief."')
    monkeypatch.setenv("MLXCHAT_MODEL", "x")
    settings = read_config().settings("chat", NAMES)
    assert {name: (each.where, each.key) for name, each in settings.items()} == {
        "temp": (str(user), "chat.temp"),
        "system": (str(file), "chat.system-prompt"),
        "model": ("MLXCHAT_MODEL", "model"),
    }


def test_an_unknown_option_is_refused_with_its_file_or_variable(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    path = write_user("[chat]\ntmep = 1")
    with pytest.raises(ConfigError) as caught:
        read_config().settings("chat", NAMES)
    assert str(caught.value) == (
        f"{path}: chat.tmep is not an option of chat; did you mean 'temp'?"
    )
    write_user("")
    monkeypatch.setenv("MLXCHAT_CHAT_TMEP", "1")
    with pytest.raises(ConfigError) as caught:
        read_config().settings("chat", NAMES)
    assert str(caught.value) == (
        "MLXCHAT_CHAT_TMEP: chat.tmep is not an option of chat; did you mean 'temp'?"
    )


def test_an_option_as_another_program_calls_it_gets_our_name() -> None:
    """`temperature` got "did you mean 'template-arg'?"."""
    assert nearest("temperature", ["temp", "template-arg"]) == "; did you mean 'temp'?"
    valid = ["chat.keep", "chat.max-kv-size", "chat.max-tokens"]
    assert nearest("chat.num_ctx", valid) == "; did you mean 'chat.max-kv-size'?"
    assert nearest("generate.num_ctx", valid) == f"; known: {', '.join(valid)}"


def test_a_wrong_value_is_reported_with_its_key_in_a_file_and_alone_in_a_variable() -> None:
    in_file = Setting("x", Level.USER, "config.toml", "chat.temp")
    in_variable = Setting("x", Level.ENVIRONMENT, "MLXCHAT_CHAT_TEMP", "chat.temp")
    assert str(in_file.wrong("not a number")) == "config.toml: chat.temp: not a number"
    assert str(in_variable.wrong("not a number")) == "MLXCHAT_CHAT_TEMP: not a number"


def test_two_names_of_one_option_in_one_file_are_refused(project: Path):
    path = write_user('[chat]\nsystem = "a"\nsystem-prompt = "b"')
    with pytest.raises(ConfigError) as caught:
        read_config().settings("chat", NAMES)
    assert str(caught.value) == (
        f"{path}: chat.system-prompt: same option as chat.system: remove one of them"
    )


def test_an_empty_variable_counts_as_unset(project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MLXCHAT_CHAT_TEMP", "")
    monkeypatch.setenv("MLXCHAT_MODEL", "")
    assert read_config().settings("chat", NAMES) == {}


def test_a_variable_is_named_after_the_option():
    assert variable_of("generate", "max-kv-size") == "MLXCHAT_GENERATE_MAX_KV_SIZE"


# Where a project's file is found


def test_a_projects_file_applies_in_all_its_directories(
    project: Path, monkeypatch: pytest.MonkeyPatch
):
    path = write_project("chat.temp = 1")
    below = project / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert find_project_file() == path
    assert project_file_to_write() == path
    nearer = below / FILE_NAME
    nearer.touch()
    assert find_project_file() == nearer


def test_files_above_a_repository_are_ignored(project: Path):
    (project.parent / FILE_NAME).touch()
    assert find_project_file() is None
    assert project_file_to_write() == project / FILE_NAME


def test_outside_a_repository_the_nearest_file_below_home_applies(
    temporary_home: Path, monkeypatch: pytest.MonkeyPatch
):
    here = temporary_home / "papers" / "2026"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    (temporary_home / FILE_NAME).touch()
    assert find_project_file() is None
    assert project_file_to_write() == here / FILE_NAME
    (here.parent / FILE_NAME).touch()
    assert find_project_file() == here.parent / FILE_NAME


def test_the_home_directory_is_not_a_project(temporary_home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(temporary_home)
    (temporary_home / FILE_NAME).touch()
    assert find_project_file() is None
    with pytest.raises(ConfigError, match="not in a project"):
        project_file_to_write()


def test_a_deleted_directory_is_not_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert find_project_file() is None


def test_a_file_of_another_user_is_ignored(project: Path, monkeypatch: pytest.MonkeyPatch):
    """Anyone can put a file in /tmp and so configure everyone who works below it."""
    path = write_project("chat.temp = 1")
    monkeypatch.setattr(os, "getuid", lambda: path.stat().st_uid + 1)
    if path.stat().st_uid == 0:
        os.chown(path, 12345, 12345)
        monkeypatch.setattr(os, "getuid", lambda: 0)
    assert find_project_file() is None
    assert foreign_project_files() == [path]
    with pytest.raises(ConfigError, match="belongs to another user"):
        project_file_to_write()


def test_writing_does_not_follow_a_projects_link(project: Path, tmp_path: Path):
    """The link may point to any of the user's files."""
    (project / FILE_NAME).symlink_to(tmp_path / "anything.toml")
    with pytest.raises(ConfigError, match=": a symbolic link"):
        project_file_to_write()


def test_a_variable_disables_the_projects_file(project: Path, monkeypatch: pytest.MonkeyPatch):
    write_project("broken")
    with pytest.raises(
        ConfigError, match=r"not valid TOML.* \(to ignore this file, set MLXCHAT_NO_PROJECT=1"
    ):
        read_config()
    monkeypatch.setenv("MLXCHAT_NO_PROJECT", "1")
    assert read_config().settings("chat", NAMES) == {}


# What a project's file may not set


@pytest.mark.parametrize(
    "text",
    [
        '[aliases]\nqwen3-4b = "evil/model"',
        'generate.file = ["/etc/passwd"]',
        'generate.output = "x"',
        'generate.metrics = "x"',
        'generate.checkpoint = "x"',
        'generate.resume = "x"',
        "generate.raw = true",
        "generate.ignore-eos = true",
        "chat.continue = true",
        'chat.session = "private"',
        "chat.save = false",
        "chat.quiet = true",
        "chat.json = true",
        "chat.offline = false",
        'chat.model = "x"',
        'chat.prefix-cache-size = "1B"',
        "chat.prefix_cache = true",
        "chat.added-later = 1",
    ],
)
def test_a_project_may_configure_how_a_model_answers_and_nothing_else(project: Path, text: str):
    path = write_project(text)
    key = (
        text.split("=", maxsplit=1)[0].strip().replace("_", "-").replace("[aliases]\n", "aliases.")
    )
    with pytest.raises(ConfigError) as caught:
        read_config()
    assert str(caught.value).startswith(f"{path}: {key} cannot be set by a project's file: only ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["max-tokens = -1", 'max-tokens = "-1 "', 'max_kv_size = "none"'])
def test_a_project_cannot_remove_a_limit(project: Path, text: str):
    path = write_project(f"[generate]\n{text}\n")
    key = text.partition(" ")[0].replace("_", "-")
    with pytest.raises(ConfigError) as caught:
        read_config()
    assert str(caught.value).startswith(f"{path}: generate.{key} = ")
    assert "can set a limit but not remove one" in str(caught.value)


def test_a_project_may_choose_model_window_sampling_and_system_prompt(project: Path):
    write_project(
        'model = "a/b"\n[chat]\nsystem = "Be brief."\nmax_kv_size = 512\ntemp = 0.5\nstop = ["#"]'
    )
    names = {name: name for name in ("system", "max-kv-size", "temp", "stop", "model")}
    assert read_config().settings("chat", names).keys() == names.keys()
