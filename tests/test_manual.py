"""Help and manual: every command is explained, every documented call works, every link leads
somewhere, and names that other programs use lead to ours.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import mlxchat
from mlxchat import cli, paths
from mlxchat.manual import PAGES, read_page
from mlxchat.manual.equivalents import OURS
from mlxchat.models.load import load
from mlxchat.models.resolve import resolve_model
from mlxchat.terminal.commands import COMMANDS, OTHER_NAMES
from mlxchat.terminal.table import render_page
from scripts.tiny_model import tiny_config, write_tiny_model
from tests import docs
from tests.conftest import RunMlxchat
from tests.in_process import run_in_process
from tests.pseudo_terminal import PseudoTerminal

ROOT: Any = typer.main.get_command(cli.app)
MAX_LINES = 60


@pytest.fixture(autouse=True)
def documented_prompt() -> None:
    paths.config_file().parent.mkdir(parents=True, exist_ok=True)
    paths.config_file().write_text('[prompts.commit]\nprompt = "Write a commit message:"\n')


def commands(command: Any = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """All commands and groups, with the words that call them."""
    yield " ".join(path), command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))


ALL = dict(commands())


def option_names(command: Any) -> set[str]:
    return {name for each in command.params for name in (*each.opts, *each.secondary_opts)}


def called(line: str) -> Iterator[list[str]]:
    """The words after each `mlxchat` in a line of shell."""
    for call in re.findall(r"\bmlxchat\b((?:\s+(?:\"[^\"]*\"|'[^']*'|[^\s|&<>()]+))*)", line):
        yield shlex.split(call)


def parse(words: list[str]) -> None:
    """Raise a usage error if the program does not understand the words."""
    # These show something and exit while they are parsed.
    if {*words} & {"--version", "-V", "--help", "--help-all", "--install-completion"}:
        return
    context = ROOT.make_context("mlxchat", list(words))
    while arguments := [*context._protected_args, *context.args]:
        name, command, rest = context.command.resolve_command(context, arguments)
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("path", ALL)
def test_every_command_is_explained_with_examples_that_work(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    common, everything = (
        run_in_process(*path.split(), name).stdout for name in ("--help", "--help-all")
    )
    command = ALL[path]
    assert command.help
    assert all(each.help for each in command.params)
    options = [name for name in option_names(command) if name.startswith("--")]
    assert [name for name in options if not re.search(rf"{name}\b", everything)] == []
    assert len(common.splitlines()) <= MAX_LINES
    explained, _, examples = everything.partition("\nExample")
    assert max(map(len, explained.splitlines())) <= 80
    lines = examples.partition("\n\n")[0].splitlines()
    calls = [words for line in lines for words in called(line)]
    assert calls
    for words in calls:
        parse(words)


def test_the_program_understands_every_documented_call() -> None:
    calls = [words for line in docs.commands() for words in called(line)]
    assert len(calls) > 40
    for words in calls:
        parse(words)


def test_help_in_a_pipe_has_no_colours_and_ends_as_written(run_mlxchat: RunMlxchat) -> None:
    """A word in brackets was omitted because it was treated as markup."""
    done = run_mlxchat("generate", "--help-all")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert done.stdout.endswith(ALL["generate"].epilog)


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
        ("generate --kv-bits 4 hi", "no such option: --kv-bits; mlxchat has none: keys and values"),
        ("help xyzzy", "no page or command named 'xyzzy'; see `mlxchat help`\n"),
    ],
)
def test_a_usage_error_says_what_to_write_instead(arguments: str, message: str) -> None:
    """`-sys TEXT` set the system prompt to "ys", and `--num-predict` got "did you mean
    --no-prefix-cache?"."""
    done = run_in_process(*arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"mlxchat: error: {message}")


def test_names_of_other_programs_lead_to_ours_which_exist() -> None:
    for row in (row for rows in OURS.values() for row in rows.values()):
        words = shlex.split(re.split("[;,]", row)[0])
        if words[0].startswith("/"):
            assert OTHER_NAMES.get(words[0], words[0]) in COMMANDS
            continue
        command = " ".join(word for word in words[1:] if re.fullmatch("[a-z]+", word)) or "chat"
        for path in [command] if words[0] == "mlxchat" else ["chat", "generate"]:
            known = {"--help-all"} | option_names(ALL[path]) | option_names(ROOT)
            names = {word.replace("[no-]", "") for word in words if word.startswith("-")}
            assert names <= known, row


def test_the_readme_lists_every_page_with_its_title_and_summary() -> None:
    assert sorted(PAGES) == sorted(path.stem for path in docs.MANUAL.glob("*.md"))
    listed = re.findall(
        r"^- \[(.+)\]\(mlxchat/manual/(\w+)\.md\): (.+)$", docs.text(), re.MULTILINE
    )
    pages = {name: read_page(name).split("\n\n", 2) for name in PAGES}
    assert listed == [(title[2:], name, about) for name, (title, about, _) in pages.items()]


def test_a_page_is_plain_in_a_pipe_and_opens_in_the_pager_on_a_terminal(
    ordinary_terminal: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PAGER", f"cat > {tmp_path / 'paged'}")
    assert run_in_process("help", "Window").stdout == read_page("window")
    assert run_in_process("help", "session", "rm").stdout.startswith("Usage: mlxchat session rm ")
    assert not (tmp_path / "paged").exists()
    command = [sys.executable, "-m", "mlxchat", "help", "window"]
    terminal = PseudoTerminal(command, columns=60, lines=10)
    assert terminal.ends() == 0
    assert terminal.written == ""
    paged = (tmp_path / "paged").read_text()
    assert paged == render_page(read_page("window"), 60)
    assert max(map(len, re.sub(r"\x1b\[[\d;]*m", "", paged).splitlines())) <= 60


def anchors(page: Path) -> set[str]:
    """The page's headings, as GitHub spells them in a link."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", docs.PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    text = re.sub("`[^`]*`", "", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.is_file(), target
        assert not anchor or anchor in anchors(linked), target


# They read as translated.
STIFF = re.compile(
    r"\b(behind|anew|whoever|(some|no)body|says so|for ever|as it were|mend|(is|are|be) told)\b"
)


def test_documents_and_help_are_written_in_plain_english() -> None:
    texts = {page.name: page.read_text(encoding="utf-8") for page in docs.PAGES}
    texts |= {path: run_in_process(*path.split(), "--help-all").stdout for path in ALL}
    assert {name: found for name, text in texts.items() if (found := STIFF.findall(text))} == {}


RUN = [
    'mlxchat "Why is the sky blue?"',
    "mlxchat --session holidays",
    "mlxchat session search whale",
    "mlxchat session verify spain",
    'cat report.txt | mlxchat generate "Summarize this in three sentences."',
    'mlxchat generate -f a.md -f b.md -n 300 "What do these two disagree on?"',
    'mlxchat generate --block a.md --block b.md "Which of the two is newer?"',
    'mlxchat generate --choice positive --choice negative "Is this review positive? It sank."',
    "mlxchat batch prompts.jsonl -o answers.jsonl",
    "mlxchat cache size",
    "mlxchat config set chat.max-kv-size 4096",
    "mlxchat models list --all",
]


def test_a_dozen_documented_commands_run_one_after_another(
    tmp_path: Path, temporary_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {*RUN} <= {*docs.commands()}
    config = tiny_config() | {"max_position_embeddings": 24_000}
    monkeypatch.setenv("MLXCHAT_MODEL", str(write_tiny_model(tmp_path / "tiny", config=config)))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    for command in ("CHAT", "GENERATE", "BATCH"):
        monkeypatch.setenv(f"MLXCHAT_{command}_MAX_TOKENS", "8")
    for name in ("report.txt", "a.md", "b.md"):
        (tmp_path / name).write_text("All about whales. " * 83)
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "prompt": "Hello"}\n')
    for command in RUN:
        ready = "mlxchat session rename holidays spain; " if "spain" in command else ""
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", ready + command],
            cwd=tmp_path,
            input="Tell me of a whale.\n" if "--session" in command else "",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert done.stdout or "set" in command or "-o" in command, command
        assert "mlxchat: error" not in done.stderr
    assert (tmp_path / "answers.jsonl").read_text().count("\n") == 1


def test_the_examples_in_python_run(
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On a tiny model instead of the embedded one, with a limit on generated tokens."""
    settings = mlxchat.GenerationSettings

    def tiny(name: str | None) -> str | None:
        # A resumed run or session names the directory of its model.
        return str(tiny_model) if name == "smollm2" else name

    def resolve_tiny(name: str | None, **options: Any) -> Any:
        return resolve_model(tiny(name), **options)

    monkeypatch.setattr(mlxchat, "load", lambda name: load(tiny(name), offline=True), raising=False)
    monkeypatch.setattr("mlxchat.engine.reply.GenerationSettings", lambda: settings(max_tokens=5))
    monkeypatch.setattr("mlxchat.app.opening.resolve_model", resolve_tiny)
    names = {
        "report": "A long report about boats. " * 9,
        "directory": tmp_path / "blocks",
        "night": tmp_path / "night",
        "prompts": tmp_path / "prompts.jsonl",
        "answers": tmp_path / "answers.jsonl",
    }
    (tmp_path / "prompts.jsonl").write_text('{"text": "Hello"}\n{"text": "Bye"}\n')
    examples = re.findall(r"```python\n(.*?)```", docs.text(), flags=re.DOTALL)
    assert len(examples) >= 6
    for example in examples:
        exec(compile(example, "example", "exec"), names)
        assert capsys.readouterr().out
    assert len(list((tmp_path / "blocks").rglob("*.safetensors"))) == 1
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 2
