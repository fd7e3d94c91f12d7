"""A configuration file: its contents, what it rejects, and safe editing."""

import errno
import os
from pathlib import Path

import pytest

from mlxchat import paths
from mlxchat.config import ConfigFile, Setting, read_user_config, set_key
from mlxchat.errors import ConfigError, OutputError


def write_config(text: str) -> Path:
    path = paths.config_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refusal(text: str) -> str:
    """The message after the file's name, with which each must begin."""
    path = write_config(text)
    with pytest.raises(ConfigError) as caught:
        read_user_config()
    prefix, message = f"{path}: ", str(caught.value)
    assert message.startswith(prefix)
    assert "\n" not in message
    return message.removeprefix(prefix)


def test_a_missing_file_is_empty():
    assert read_user_config() == ConfigFile(paths.config_file(), {})


def test_a_file_is_read_with_its_options_named_like_flags():
    path = write_config(
        """
        model = "work"
        [aliases]
        work = "/models/work"
        [generate]
        max-tokens = 500
        stop = ["END", "###"]
        """
    )
    file = read_user_config()
    assert (file.model, file.aliases) == ("work", {"work": "/models/work"})
    assert file.settings_for("generate") == {
        "max-tokens": Setting("generate.max-tokens", 500, str(path)),
        "stop": Setting("generate.stop", ["END", "###"], str(path)),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle = 'x'", "unknown key 'modle'; did you mean 'model'?"),
        ("[gnerate]", "unknown key 'gnerate'; did you mean 'generate'?"),
        ("xyz = 1", "unknown key 'xyz'; known: aliases, batch, chat, generate, model, prompts"),
        ("model = 3", "model must be a string in quotes, not 3"),
        ("model = ' '", "model must be a string in quotes, not ' '"),
        ("aliases = 'x'", "aliases must be a table, [aliases], not 'x'"),
        ("[aliases]\nx = ['y']", "aliases.x must be a string in quotes, not ['y']"),
        ("generate = 1", "generate must be a table, [generate], not 1"),
        ("[generate.temp]\nx = 1", "generate.temp: --temp takes one value, got {'x': 1}"),
    ],
)
def test_an_invalid_key_or_value_is_refused_by_file_and_key(text: str, message: str):
    assert refusal(text) == message


def test_devices_and_pipes_are_not_read(tmp_path: Path):
    """Reading a link to a device, or a pipe, would never end."""
    path = paths.config_file()
    path.parent.mkdir(parents=True)
    path.mkdir()
    with pytest.raises(ConfigError, match=r"cannot read .*: not a regular file"):
        read_user_config()
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match=r"cannot read .*: not a regular file"):
        read_user_config()
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=r"cannot read .*: not a regular file"):
        read_user_config()


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
        (("model",), ["big"], TEXT.replace('"small"  #', '"big"  #')),
        (
            ("aliases", "qwen3-0.6b"),
            ["x/y"],
            TEXT.replace('mall"\n\n[g', 'mall"\n"qwen3-0.6b" = "x/y"\n\n[g'),
        ),
        (("generate", "max-tokens"), ["-1"], TEXT.replace("= 5", "= -1")),
        (("generate", "stop"), ["END", "#"], TEXT + 'stop = ["END", "#"]\n'),
        (("chat", "temp"), ["0.5"], TEXT + "\n[chat]\ntemp = 0.5\n"),
        (("chat", "system"), ['say "a\\b"\n'], TEXT + '\n[chat]\nsystem = "say \\"a\\\\b\\"\\n"\n'),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else "",
)
def test_a_key_is_set_in_place_and_every_other_byte_stays(
    key: tuple[str, ...], values: list[str], changed: str
):
    path = write_config(TEXT)
    set_key(path, key, values)
    assert path.read_text() == changed


def test_a_key_below_one_that_is_not_a_table_is_refused():
    path = write_config("chat = 3\n")
    with pytest.raises(ConfigError, match=r"chat must be a table, \[chat\]"):
        set_key(path, ("chat", "temp"), ["0.5"])
    assert path.read_text() == "chat = 3\n"


def test_a_full_disk_leaves_the_file_as_it_was(monkeypatch: pytest.MonkeyPatch):
    path = write_config("# mine\n")

    def full_disk(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OutputError, match=r"cannot write .*config\.toml: No space left"):
        set_key(path, ("model",), ["x"])
    assert path.read_text() == "# mine\n"


def test_a_link_to_the_file_stays_a_link(tmp_path: Path):
    """Settings may be links into a repository of dotfiles; a plain rename would replace them."""
    real = tmp_path / "dotfiles.toml"
    real.write_text('model = "old"\n')
    path = paths.config_file()
    path.parent.mkdir(parents=True)
    path.symlink_to(real)
    set_key(path, ("model",), ["new"])
    assert path.is_symlink()
    assert real.read_text() == 'model = "new"\n'
