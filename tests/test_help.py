"""The help of every command: complete, correct, short, readable at any width, and documented."""

import os
import re
import shlex
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from mlxchat import cli
from mlxchat.cli.group import help_page
from mlxchat.errors import ExitStatus
from tests import docs
from tests.conftest import RunMlxchat

ROOT: Any = typer.main.get_command(cli.app)
# Replaces the help of Typer's own options, whichever test runs first.
ROOT.get_params(typer.Context(ROOT))

COLUMNS = 80
MAX_COMMON = 18
MAX_LINES = 60


def commands(command: Any = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """All commands and groups, with their names."""
    yield " ".join(("mlxchat", *path)), command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))


ALL = list(commands())


def examples(command: Any) -> list[str]:
    """The lines of the examples."""
    _, _, after = (command.epilog or "").partition("Example")
    block = after.partition(":")[2].partition("\n\n")[0]
    return [line.strip() for line in block.splitlines() if line.strip()]


def called(line: str) -> Iterator[list[str]]:
    """The words after each `mlxchat` in a line of shell."""
    for call in re.findall(r"\bmlxchat\b((?:\s+(?:\"[^\"]*\"|'[^']*'|[^\s|&<>()]+))*)", line):
        yield shlex.split(call)


@pytest.mark.parametrize(("path", "command"), ALL, ids=[path for path, _ in ALL])
def test_every_command_has_a_description_and_an_example(path: str, command: Any):
    assert command.help
    assert command.help.strip().partition("\n")[0].endswith(".")
    assert examples(command)
    assert any(line.partition("mlxchat")[1] for line in examples(command))


@pytest.mark.parametrize(("path", "command"), ALL, ids=[path for path, _ in ALL])
def test_every_option_and_argument_has_help(path: str, command: Any):
    unexplained = [each.name for each in command.params if not each.help]
    assert unexplained == []


@pytest.mark.parametrize(("path", "command"), ALL, ids=[path for path, _ in ALL])
def test_the_program_understands_every_example(path: str, command: Any):
    for line in examples(command):
        for words in called(line):
            understood(words)


def test_the_program_understands_every_documented_call():
    calls = [words for line in docs.commands() for words in called(line)]
    assert len(calls) > 40
    for words in calls:
        understood(words)


def understood(words: list[str]) -> None:
    """Raise a usage error if the program does not understand the words."""
    # These show something and exit while they are parsed.
    if {*words} & {"--version", "-V", "--help", "--help-all", "--install-completion"}:
        return
    context = ROOT.make_context("mlxchat", list(words))
    arguments = [*context._protected_args, *context.args]
    while arguments:
        name, command, arguments = context.command.resolve_command(context, arguments)
        context = command.make_context(name, arguments, parent=context)
        arguments = [*context._protected_args, *context.args]


def test_help_in_a_pipe_has_no_colours_and_ends_as_written(run_mlxchat: RunMlxchat):
    """A word in brackets was omitted because it was treated as markup."""
    done = run_mlxchat("generate", "--help-all")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert done.stdout.endswith(ROOT.commands["generate"].epilog)


def page(path: str, *, everything: bool) -> str:
    """A command's help in a terminal of 80 columns."""
    context, command = None, ROOT
    for name in path.split():
        command = ROOT if context is None else command.commands[name]
        context = command.make_context(name, [], parent=context, resilient_parsing=True)
    assert context is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(COLUMNS))
        return help_page(context, everything=everything)


@pytest.mark.parametrize(("path", "command"), ALL, ids=[path for path, _ in ALL])
def test_help_shows_the_common_options_and_all_help_all_of_them(path: str, command: Any):
    """generate --help had 133 lines."""
    common, everything = page(path, everything=False), page(path, everything=True)
    for odd in ("<", "None", "default: no-"):
        assert odd not in everything.partition("\nExample")[0]
    assert len(re.findall(r"^  --?\w", common, re.MULTILINE)) <= MAX_COMMON
    assert len(common.splitlines()) <= MAX_LINES
    names = [name for each in command.params for name in each.opts if name.startswith("--")]
    assert [name for name in names if not re.search(rf"{name}\b", everything)] == []
    assert max(map(len, everything.partition("\nExample")[0].splitlines())) <= COLUMNS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("generate -n", "-n needs a value"),
        ("generate --quiet=3", "--quiet takes no value"),
        ("generate --sto x", "unknown option --sto; did you mean --stop?"),
        ("generate a b", "unexpected argument b; quote the prompt"),
        ("session lst", "unknown command lst; did you mean list?"),
        ("models show", "unknown command show; use mlxchat models info"),
        ("session rm", "missing NAME…"),
        ("chat -n many", "invalid value for --max-tokens: not a whole number"),
    ],
)
def test_usage_errors_have_none_of_typers_phrases(
    arguments: str, message: str, run_mlxchat: RunMlxchat
):
    """An option without its value was called one of the other command."""
    written = run_mlxchat(*arguments.split()).stderr
    assert written.startswith(f"mlxchat: error: {message} (see mlxchat ")


@pytest.mark.parametrize("arguments", [["--help"], ["models"], ["generate", "--help-all"]])
def test_help_into_a_closed_pipe_is_silent(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """`mlxchat --help | true` exited with status 1."""
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr(sys, "argv", ["mlxchat", *arguments])
    monkeypatch.setattr(cli, "terminate_by_exception", lambda: None)
    monkeypatch.setattr(cli, "end_immediately", lambda: None)
    with os.fdopen(write, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert ended.value.code == ExitStatus.BROKEN_PIPE
    assert capsys.readouterr().err == ""
