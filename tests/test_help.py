"""What every command says of itself: that it is whole and true, and documented."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from mlxchat import cli
from mlxchat.config.layers import variable_of
from mlxchat.config.project import IGNORE_VARIABLE
from mlxchat.errors import ExitStatus
from tests import docs
from tests.conftest import RunMlxchat

ROOT: Any = typer.main.get_command(cli.app)
DOCS = docs.text()

# What fits beside the margins of a terminal of 80 columns.
MOST_COLUMNS = 78


def commands(command: Any = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """All commands and groups, with the words that they are called by."""
    yield " ".join(("mlxchat", *path)), command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))


ALL = list(commands())
LEAVES = [(path, command) for path, command in ALL if not hasattr(command, "commands")]


def examples(command: Any) -> list[str]:
    """The lines of the examples."""
    _, _, after = (command.epilog or "").partition("Example")
    block = after.partition(":")[2].partition("\n\n")[0]
    return [line.strip() for line in block.splitlines() if line.strip()]


def called(line: str) -> Iterator[list[str]]:
    """The words behind each `mlxchat` of a line of shell."""
    for call in re.findall(r"\bmlxchat\b((?:\s+(?:\"[^\"]*\"|'[^']*'|[^\s|&<>()]+))*)", line):
        yield shlex.split(call)


@pytest.mark.parametrize(("path", "command"), ALL, ids=[path for path, _ in ALL])
def test_every_command_says_what_it_does_and_gives_an_example(path: str, command: Any):
    assert command.help
    assert command.help.strip().partition("\n")[0].endswith(".")
    assert examples(command)
    assert any(line.partition("mlxchat")[1] for line in examples(command))


@pytest.mark.parametrize(("path", "command"), ALL, ids=[path for path, _ in ALL])
def test_every_option_and_argument_says_what_it_is(path: str, command: Any):
    unexplained = [each.name for each in command.params if not each.help]
    assert unexplained == []


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=[path for path, _ in LEAVES])
def test_every_command_is_documented(path: str, command: Any):
    assert path in DOCS


@pytest.mark.parametrize(("path", "command"), ALL, ids=[path for path, _ in ALL])
def test_every_example_is_one_that_the_program_understands(path: str, command: Any):
    for line in examples(command):
        for words in called(line):
            understood(words)


def test_every_documented_call_is_one_that_the_program_understands():
    calls = [words for command in docs.read() for words in called(command.text)]
    assert len(calls) > 40
    for words in calls:
        understood(words)


def understood(words: list[str]) -> None:
    """Raises a usage error for what the program does not understand."""
    # What only shows something, and ends, is not done here.
    if "--version" in words or "--install-completion" in words:
        return
    context = ROOT.make_context("mlxchat", list(words))
    arguments = [*context._protected_args, *context.args]
    while arguments:
        name, command, arguments = context.command.resolve_command(context, arguments)
        context = command.make_context(name, arguments, parent=context)
        arguments = [*context._protected_args, *context.args]


@pytest.mark.parametrize(("path", "command"), ALL, ids=[path for path, _ in ALL])
def test_what_stands_at_the_end_is_shown_as_it_is_written(path: str, command: Any):
    """A word in brackets was taken for markup, and left out."""
    for line in command.epilog.splitlines():
        assert len(line) <= MOST_COLUMNS
        assert "[" not in line


def test_the_main_help_names_the_variables_files_and_statuses():
    for name in (
        *("MLXCHAT_MODEL", IGNORE_VARIABLE, variable_of("chat", "temp")),
        *("HF_HOME", "HF_TOKEN", "HF_HUB_OFFLINE", "NO_COLOR", "config.toml", ".mlxchat.toml"),
    ):
        assert name in ROOT.epilog
        assert name in DOCS
    for status in ExitStatus:
        assert re.search(rf"\b{status.value}\b", ROOT.epilog.partition("Exit status")[2])
        assert re.search(rf"\b{status.value}\b", DOCS.partition("## Exit statuses")[2])


def test_options_are_grouped():
    for name in ("chat", "generate"):
        alone = {each.name for each in ROOT.commands[name].params if not panel_of(each)}
        assert alone <= {"version", "prompt"}


def panel_of(parameter: Any) -> str | None:
    return getattr(parameter, "rich_help_panel", None)


def test_help_in_a_pipe_has_no_colours_and_its_end_is_whole(run_mlxchat: RunMlxchat):
    done = run_mlxchat("generate", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    shown = "\n".join(line.strip() for line in done.stdout.splitlines())
    written = "\n".join(line.strip() for line in ROOT.commands["generate"].epilog.splitlines())
    assert written in shown


def test_a_value_that_an_option_cannot_have_is_refused_in_plain_words(run_mlxchat: RunMlxchat):
    done = run_mlxchat("chat", "--roll", "shitf")
    assert done.returncode == 2
    assert done.stderr == (
        "mlxchat: error: Invalid value for '--roll': 'shitf' is not one of 'shift', 'refill', "
        "'stop'. (see mlxchat --help)\n"
    )
