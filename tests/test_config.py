"""The levels of configuration and their precedence."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxchat import paths
from mlxchat.config.file import nearest
from mlxchat.config.layers import Level, Setting, read_config, variable_of
from mlxchat.errors import ConfigError

NAMES = {"temp": "temp", "model": "model", "system": "system", "system-prompt": "system"}


@pytest.fixture(autouse=True)
def place(temporary_home: Path) -> None:
    """Its own configuration."""


def write_user(text: str) -> Path:
    paths.config_file().parent.mkdir(parents=True, exist_ok=True)
    paths.config_file().write_text(text)
    return paths.config_file()


def write_variable(name: str) -> Callable[[str], object]:
    def write(value: str) -> None:
        os.environ[name] = value.partition("= ")[2].strip('"')

    return write


# Each level, highest precedence first, and how to set a temperature there.
LEVELS: list[tuple[Level, Callable[[str], object]]] = [
    (Level.ENVIRONMENT, write_variable("MLXCHAT_CHAT_TEMP")),
    (Level.USER, write_user),
]
MODEL_LEVELS = [(Level.ENVIRONMENT, write_variable("MLXCHAT_MODEL")), *LEVELS[1:]]


@pytest.mark.parametrize(
    ("stronger", "weaker"),
    list(itertools.combinations(LEVELS, 2)),
    ids=lambda level: str(level[0]),
)
def test_the_level_of_higher_precedence_wins(
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


def test_a_commands_own_model_overrides_only_its_own_level(monkeypatch: pytest.MonkeyPatch):
    """[chat] model in the user's file used to override MLXCHAT_MODEL."""
    write_user('model = "a/all"\nchat.model = "a/chat"')
    assert read_config().settings("chat", NAMES)["model"].value == "a/chat"
    assert read_config().settings("generate", NAMES)["model"].value == "a/all"
    monkeypatch.setenv("MLXCHAT_MODEL", "a/variable")
    assert read_config().settings("chat", NAMES)["model"].value == "a/variable"
    monkeypatch.setenv("MLXCHAT_CHAT_MODEL", "a/chat-variable")
    assert read_config().settings("chat", NAMES)["model"].value == "a/chat-variable"
    assert read_config().settings("generate", NAMES)["model"].value == "a/variable"


def test_a_setting_knows_its_file_or_variable(monkeypatch: pytest.MonkeyPatch):
    user = write_user('[chat]\ntemp = 1\nsystem_prompt = "Be brief."')
    monkeypatch.setenv("MLXCHAT_MODEL", "x")
    settings = read_config().settings("chat", NAMES)
    assert {name: (each.where, each.key) for name, each in settings.items()} == {
        "temp": (str(user), "chat.temp"),
        "system": (str(user), "chat.system-prompt"),
        "model": ("MLXCHAT_MODEL", "model"),
    }


def test_an_unknown_option_is_refused_with_its_file_or_variable(monkeypatch: pytest.MonkeyPatch):
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


def test_two_names_of_one_option_in_one_file_are_refused():
    path = write_user('[chat]\nsystem = "a"\nsystem-prompt = "b"')
    with pytest.raises(ConfigError) as caught:
        read_config().settings("chat", NAMES)
    assert str(caught.value) == (
        f"{path}: chat.system-prompt: same option as chat.system: remove one of them"
    )


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MLXCHAT_CHAT_TEMP", "")
    monkeypatch.setenv("MLXCHAT_MODEL", "")
    assert read_config().settings("chat", NAMES) == {}


def test_a_variable_is_named_after_the_option():
    assert variable_of("generate", "max-kv-size") == "MLXCHAT_GENERATE_MAX_KV_SIZE"
