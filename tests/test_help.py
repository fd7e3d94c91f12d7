"""Help: every command's is complete and readable, every documented call works, every page exists.

Names that other programs use lead to ours.
"""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from mlxchat import cli, paths
from mlxchat.manual import PAGES, read_page
from mlxchat.manual.equivalents import OURS
from mlxchat.terminal.commands import COMMANDS
from mlxchat.terminal.slash import OTHER_NAMES
from mlxchat.terminal.table import render_page
from tests import docs
from tests.conftest import RunMlxchat
from tests.in_process import run_in_process
from tests.pseudo_terminal import PseudoTerminal

ROOT: Any = typer.main.get_command(cli.app)


@pytest.fixture(autouse=True)
def documented_prompt() -> None:
    paths.config_file().parent.mkdir(parents=True, exist_ok=True)
    paths.config_file().write_text('[prompts.commit]\nprompt = "Write a commit message:"\n')


COLUMNS = 80
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


def page(path: str, name: str) -> str:
    """A command's help in a terminal of 80 columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(COLUMNS))
        return run_in_process(*path.split()[1:], name).stdout


@pytest.mark.parametrize(("path", "command"), ALL, ids=[path for path, _ in ALL])
def test_every_command_is_explained_with_examples_that_work(path: str, command: Any):
    """generate --help had 133 lines."""
    assert command.help
    assert [each.name for each in command.params if not each.help] == []
    calls = [words for line in examples(command) for words in called(line)]
    assert calls
    for words in calls:
        understood(words)
    common, everything = page(path, "--help"), page(path, "--help-all")
    assert len(common.splitlines()) <= MAX_LINES
    names = [name for each in command.params for name in each.opts if name.startswith("--")]
    assert [name for name in names if not re.search(rf"{name}\b", everything)] == []
    assert max(map(len, everything.partition("\nExample")[0].splitlines())) <= COLUMNS


def test_the_program_understands_every_documented_call():
    calls = [words for line in docs.commands() for words in called(line)]
    assert len(calls) > 40
    for words in calls:
        understood(words)


def test_help_in_a_pipe_has_no_colours_and_ends_as_written(run_mlxchat: RunMlxchat):
    """A word in brackets was omitted because it was treated as markup."""
    done = run_mlxchat("generate", "--help-all")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert done.stdout.endswith(ROOT.commands["generate"].epilog)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("generate --sto x", "no such option: --sto (Possible options: --json, --stop, --top-p)"),
        ("session lst", "no such command 'lst'. Did you mean 'list'?"),
        ("generate a b", "got unexpected extra argument(s) (b); quote a text of several words"),
        ("generate --ctx-size 512 hi", "no such option: --ctx-size; use --max-kv-size"),
        ("generate --continue hi", "no such option: --continue; it is an option of `mlxchat chat`"),
        ("-sys Briefly. hi", "no such option: -sys; use --system"),
        ("-system Briefly. hi", "no such option: -system; did you mean --system?"),
        (
            "generate --kv-bits 4 hi",
            "no such option: --kv-bits; mlxchat has none: keys and values keep the "
            "weights' precision",
        ),
    ],
)
def test_a_usage_error_says_what_to_write_instead(
    arguments: str, message: str, run_mlxchat: RunMlxchat
):
    """`-sys TEXT` set the system prompt to "ys", and `--num-predict` got "did you mean
    --no-prefix-cache?"."""
    done = run_mlxchat(*arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"mlxchat: error: {message}")


def own_options(*command: str) -> set[str]:
    """The options in the command's `--help-all`."""
    shown = run_in_process(*command, "--help-all").stdout
    lines = re.findall(r"^ {2,6}(-\w, --.+|-\w\b.*|--.+)$", shown, re.MULTILINE)
    names = {name for line in lines for name in re.findall(r"(?<!\S)--?[\w\[][\w\[\]-]*", line)}
    both = {part for name in names for part in (name.replace("[no-]", ""), name)}
    return {name.replace("[", "").replace("]", "") for name in both}


def test_names_of_other_programs_lead_to_ours_which_exist() -> None:
    help_of = {name: own_options(*name.split()) for name in ("", "chat", "generate", "batch")}
    for row in (row for rows in OURS.values() for row in rows.values()):
        words = shlex.split(row.partition(";")[0].partition(",")[0])
        if words[0].startswith("/"):
            assert OTHER_NAMES.get(words[0], words[0]) in COMMANDS
            continue
        command = [word for word in words[1:] if re.fullmatch(r"[a-z]+", word)]
        if words[0] == "mlxchat":
            known = help_of.get(" ".join(command)) or own_options(*command)
        else:
            known = help_of["chat"] & help_of["generate"]
        assert [word for word in words if word.startswith("-") and word not in known] == []


def test_the_readme_lists_every_page_with_its_title_and_summary() -> None:
    assert sorted(PAGES) == sorted(path.stem for path in docs.MANUAL.glob("*.md"))
    listed = re.findall(
        r"^- \[(.+)\]\(mlxchat/manual/(\w+)\.md\): (.+)$", docs.text(), re.MULTILINE
    )
    pages = {name: read_page(name).split("\n\n", 2) for name in PAGES}
    assert listed == [(title[2:], name, about) for name, (title, about, _) in pages.items()]


def test_help_shows_a_commands_options_and_refuses_an_unknown_name() -> None:
    assert run_in_process("help", "session", "rm").stdout.startswith("Usage: mlxchat session rm ")
    done = run_in_process("help", "xyzzy")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ("mlxchat: error: no page or command named 'xyzzy'; see `mlxchat help`\n")


def test_a_page_is_plain_in_a_pipe_and_opens_in_the_pager_on_a_terminal(
    ordinary_terminal: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PAGER", f"cat > {tmp_path / 'paged'}")
    assert run_in_process("help", "Window").stdout == read_page("window")
    assert not (tmp_path / "paged").exists()
    command = [sys.executable, "-m", "mlxchat", "help", "window"]
    terminal = PseudoTerminal(command, columns=60, lines=10)
    assert terminal.ends() == 0
    assert terminal.written == ""
    paged = (tmp_path / "paged").read_text()
    assert paged == render_page(read_page("window"), 60)
    assert max(map(len, re.sub(r"\x1b\[[\d;]*m", "", paged).splitlines())) <= 60
