"""The configuration file: what it holds, what it refuses, and that writing it harms nothing."""

import os
from pathlib import Path

import pytest

from mlxchat import paths
from mlxchat.config_file import (
    UserConfig,
    check_option_names,
    read_user_config,
    set_default_model,
)
from mlxchat.errors import ConfigError
from mlxchat.files import write_atomically


def write_config(text: str) -> Path:
    path = paths.config_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refusal(text: str) -> str:
    """The message without the file's name, which each must begin with."""
    path = write_config(text)
    with pytest.raises(ConfigError) as caught:
        read_user_config()
    prefix, message = f"{path}: ", str(caught.value)
    assert message.startswith(prefix)
    assert "\n" not in message
    return message.removeprefix(prefix)


def test_a_file_that_does_not_exist_is_empty():
    assert read_user_config() == UserConfig(model=None, aliases={}, options={})


def test_a_file_is_read_whole_with_options_in_underscores():
    write_config(
        """
        model = "work"
        [aliases]
        work = "/models/work"
        [generate]
        max-tokens = 500
        temp = 0.7
        ignore_eos = true
        stop = ["END", "###"]
        """
    )
    assert read_user_config() == UserConfig(
        model="work",
        aliases={"work": "/models/work"},
        options={
            "generate": {
                "max_tokens": 500,
                "temp": 0.7,
                "ignore_eos": True,
                "stop": ["END", "###"],
            }
        },
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle = 'x'", "unknown key 'modle'; did you mean 'model'?"),
        ("[gnerate]", "unknown key 'gnerate'; did you mean 'generate'?"),
        ("xyz = 1", "unknown key 'xyz'; known: aliases, chat, generate, model"),
        ("model = 3", "model must be a text in quotes, not 3"),
        ("model = ' '", "model must not be empty"),
        ("aliases = 'x'", "aliases must be a table, [aliases], not the text 'x'"),
        ("[aliases]\nx = ['y']", "aliases.x must be a text in quotes, not a list"),
        ("generate = 1", "generate must be a table, [generate], not 1"),
        (
            "[generate.temp]\nx = 1",
            "generate.temp must be a text, a number, true or false, or a list of those, "
            "not a table",
        ),
        (
            "[generate]\nmax-tokens = 1\nmax_tokens = 2",
            "generate.max_tokens is set twice, with - and with _",
        ),
    ],
)
def test_what_nothing_reads_is_refused_by_file_and_key(text: str, message: str):
    assert refusal(text) == message


def test_what_is_not_toml_is_refused_with_its_line():
    assert refusal("model = ") == "is not TOML: Invalid value (at end of document)"


def test_what_is_not_utf8_is_refused():
    write_config("").write_bytes(b"model = '\xff'")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_user_config()


def test_an_unknown_option_is_refused_with_the_nearest():
    check_option_names("generate", {"max_tokens": 1}, {"max_tokens", "temp"})
    with pytest.raises(ConfigError) as caught:
        check_option_names("generate", {"max_tokns": 1}, {"max_tokens", "temp"})
    assert str(caught.value) == (
        f"{paths.config_file()}: generate.max-tokns is not an option of generate; "
        "did you mean 'max-tokens'?"
    )


def test_setting_the_default_makes_the_file_for_its_owner_only():
    set_default_model("qwen3-4b")
    assert read_user_config().model == "qwen3-4b"
    assert paths.config_file().stat().st_mode & 0o777 == 0o600


def test_setting_the_default_keeps_comments_and_the_other_keys():
    text = '# mine\n[aliases] # short\nwork = "/m"\n\n[generate]\ntemp = 0.5 # warm\n'
    path = write_config(text)
    path.chmod(0o644)
    set_default_model("work")
    assert read_user_config().model == "work"
    changed = path.read_text()
    assert changed.replace('model = "work"\n', "").split() == text.split()
    assert path.stat().st_mode & 0o777 == 0o644
    set_default_model(None)
    assert path.read_text().split() == text.split()


def test_a_file_that_is_not_toml_is_never_overwritten():
    path = write_config("model = ")
    with pytest.raises(ConfigError, match="is not TOML"):
        set_default_model("x")
    assert path.read_text() == "model = "


def test_a_link_to_the_file_stays_a_link(tmp_path: Path):
    """Settings kept in a repository of dotfiles are linked to; a rename would cut them off."""
    real = tmp_path / "dotfiles.toml"
    real.write_text('model = "old"\n')
    path = paths.config_file()
    path.parent.mkdir(parents=True)
    path.symlink_to(real)
    set_default_model("new")
    assert path.is_symlink()
    assert real.read_text() == 'model = "new"\n'


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
