"""Help and manual: every command is explained, every documented call works, every link leads
somewhere, and names that other programs use lead to ours."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from mlxchat import cli
from mlxchat.engine.reply import FinishReason
from mlxchat.manual import PAGES, read_page
from mlxchat.manual.equivalents import OURS
from mlxchat.options import options_of
from mlxchat.settings import SamplingSettings
from mlxchat.terminal.commands import COMMANDS, OTHER_NAMES
from tests import docs
from tests.in_process import run_in_process, write_config

ROOT: Any = typer.main.get_command(cli.app)
MAX_LINES = 60


@pytest.fixture(autouse=True)
def documented_prompt() -> None:
    write_config('[prompts.commit]\nprompt = "Write a commit message:"\n')


def commands(command: Any = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """All commands and groups, with the words that call them."""
    yield " ".join(path), command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))


ALL = dict(commands())


def option_names(command: Any) -> set[str]:
    return {name for each in command.params for name in (*each.opts, *each.secondary_opts)}


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
    calls = [words for line in lines for words in docs.called(line)]
    assert calls
    for words in calls:
        docs.parse(words)


def test_the_program_understands_every_documented_call() -> None:
    calls = [words for line in docs.commands() for words in docs.called(line)]
    assert len(calls) > 40
    for words in calls:
        docs.parse(words)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("generate --sto x", "no such option: --sto (Possible options: --json, --stop, --top-p)"),
        ("generate --ctx-size 512 hi", "no such option: --ctx-size; use --max-kv-size"),
        ("-sys Briefly. hi", "no such option: -sys; use --system"),
        ("help --tem", "nothing in the manual about '--tem'; see `mlxchat help`\n"),
    ],
)
def test_a_usage_error_says_what_to_write_instead(arguments: str, message: str) -> None:
    """`-sys TEXT` set the system prompt to "ys", and `--num-predict` got "did you mean
    --no-prefix-cache?"."""
    done = run_in_process(*arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"mlxchat: error: {message}")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("config get chat.temp", "config show chat.temp"),
        ("config unset modle", "config set modle --unset"),
        ("session mv a b", "session rename a b"),
    ],
)
def test_what_other_programs_call_a_command_works(theirs: str, ours: str) -> None:
    done, expected = (run_in_process(*line.split()) for line in (theirs, ours))
    assert done.stdout + done.stderr == expected.stdout + expected.stderr != ""
    assert done.returncode == expected.returncode != 2


def test_help_finds_words_on_every_page() -> None:
    """A narrow terminal shows the beginning of what is found."""
    for words, page in (("repeats itself", "troubleshooting"), ("--overflow", "documents")):
        lines = run_in_process("help", *words.split()).stdout.splitlines()
        found = [line.split("\t") for line in lines]
        assert {page, "chat"} <= {name for name, _ in found} <= {*PAGES}
        assert all(words in text[:60] for _, text in found)


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


def test_every_page_is_listed_and_has_a_title_and_a_summary() -> None:
    assert sorted(PAGES) == sorted(path.stem for path in docs.MANUAL.glob("*.md"))
    beginnings = [read_page(name).split("\n\n", 2)[:2] for name in PAGES]
    assert all(re.match("# [A-Z]", title) and about[-1] == "." for title, about in beginnings)


def test_the_pages_list_every_sampling_option_chat_command_and_finish_reason() -> None:
    sampling, chat, json = map(read_page, ("sampling", "chat", "json"))
    flags = [each.flag for each in options_of(SamplingSettings).values()]
    assert [each for each in flags if not re.search(rf"`{each}\b", sampling)] == []
    assert [each for each in COMMANDS if not re.search(rf"`{each}\b", chat)] == []
    (reasons,) = re.findall(r'"finish_reason": \{"enum": \[(.*)\]', json)
    assert {*re.findall(r"\w+", reasons)} == {*get_args(FinishReason)}


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
