"""Completion as shells request it: through variables, in one process per press of Tab."""

from collections.abc import Callable

import pytest

from mlxchat import cli, paths
from mlxchat.models.catalog import BUILT_IN_ALIASES
from mlxchat.models.gguf import directory_name, embedded_gguf
from mlxchat.models.hub_cache import hub_cache_dir
from tests import docs
from tests.fake_hub import put_in_cache
from tests.in_process import write_config
from tests.test_session_store import make_session

Complete = Callable[..., str]
Ask = Callable[..., list[str]]


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complete:
    """Completes the last word as the shell does, in this process; returns what it reads."""

    def in_process(shell: str, *words: str) -> str:
        with monkeypatch.context() as patch:
            # The program sets it.
            patch.setenv("COLUMNS", "80")
            patch.setenv("_MLXCHAT_COMPLETE", f"complete_{shell}")
            patch.setenv("COMP_WORDS", "\n".join(["mlxchat", *words]))
            patch.setenv("COMP_CWORD", str(len(words)))
            patch.setenv("_TYPER_COMPLETE_ARGS", " ".join(["mlxchat", *words]))
            patch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
            with pytest.raises(SystemExit):
                cli.main()
        stdout, stderr = capsys.readouterr()
        assert stderr == ""
        return stdout

    return in_process


@pytest.fixture
def ask(complete: Complete) -> Ask:
    """The names that every shell gets, without their descriptions."""

    def ask_all(*words: str) -> list[str]:
        found = [line.split("\t")[0] for line in complete("fish", *words).splitlines() if line]
        assert complete("bash", *words).split() == found
        in_zsh = complete("zsh", *words).partition("((")[2].rpartition("))")[0]
        assert [line.split('"')[1] for line in in_zsh.splitlines()] == found
        return found

    return ask_all


def test_commands_options_models_sessions_and_keys_are_completed_in_every_shell(
    ask: Ask, complete: Complete
) -> None:
    write_config('[aliases]\nqwork = "/models/work"\n')
    put_in_cache(hub_cache_dir(), "qorg/tiny", {"config.json": b"{}", "model.safetensors": b""})
    make_session("holidays")
    embedded = embedded_gguf()
    assert embedded is not None
    (paths.imported_models_dir() / directory_name(embedded)).mkdir(parents=True)
    assert ask("--max-k") == ask("generate", "--max-k") == ["--max-kv-size"]
    qwen = [f"Q{name[1:]}" for name in BUILT_IN_ALIASES if name.startswith("q")]
    assert sorted(ask("generate", "-m", "Q")) == sorted(["Qwork", *qwen, "Qorg/tiny"])
    assert ask("models", "rm", "") == ["qorg/tiny", "smollm2"]
    assert ask("--session", "HO") == ["HOlidays"]
    assert ask("session", "show", "") == ["holidays"]
    assert ask("config", "set", "chat.max-k") == ["chat.max-kv-size"]
    assert ask("config", "set", "aliases.") == ["aliases.qwork"]
    assert ask("config", "show", "gen")[0] == "generate"
    assert complete("bash", "--temp", "=", "1", "--think", "=", "hi") == "hide\n"


@pytest.mark.parametrize("path", ["", "session", "config"])
def test_tab_offers_the_commands_in_help_and_no_other(path: str, ask: Ask) -> None:
    group = docs.PROGRAM.commands[path] if path else docs.PROGRAM
    offered = ask(*path.split(), "")
    assert {each for each in offered if not each.startswith("-")} == {*group.commands}


def test_files_are_left_to_the_shell(ask: Ask) -> None:
    for before, typed in (("-f", ""), ("-o", "x"), ("--resume", ""), ("-m", "./"), ("-m", "~/")):
        assert ask("generate", before, typed) == []
    assert ask("session", "import", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell", "nothing", ""])
def test_errors_never_appear_in_the_command_line(
    shell: str, complete: Complete, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config("broken = ")
    monkeypatch.setenv("MLXCHAT_CHAT_TMEP", "1")
    for directory in (paths.sessions_dir(), hub_cache_dir()):
        directory.parent.mkdir(parents=True)
        directory.write_text("no directory")
    (paths.prefix_cache_dir() / "index.sqlite").mkdir(parents=True)
    for words in (
        *(["generate", "-m", ""], ["session", "show", ""], ["config", "set", "x", ""]),
        *(["generate", "--no-such", ""], ["generate", "--temp", "hot", "-m", ""]),
        *(["generate", "'"], ["\x1b[31m", "\udc80"]),
    ):
        assert "rror" not in complete(shell, *words)
    assert "smollm2" in complete("bash", "generate", "-m", "")
