"""Help and manual: every command is explained, every documented call works, some run, and so do
examples in Python; every link leads somewhere, and names that other programs use lead to ours."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import mlxchat
from mlxchat.engine.reply import FinishReason
from mlxchat.manual import PAGES, read_page
from mlxchat.manual.equivalents import OURS
from mlxchat.models.load import load
from mlxchat.models.resolve import resolve_model
from mlxchat.options import options_of
from mlxchat.settings import SamplingSettings
from mlxchat.terminal.commands import COMMANDS, OTHER_NAMES
from mlxchat.terminal.table import around
from scripts.tiny_model import tiny_config, write_tiny_model
from tests import docs
from tests.in_process import run_in_process, write_config

MAX_LINES = 60


@pytest.fixture(autouse=True)
def documented_prompt() -> None:
    write_config('[prompts.commit]\nprompt = "Write a commit message:"\n')


def commands(command: Any = docs.PROGRAM, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """All commands and groups, with the words that call them."""
    yield " ".join(path), command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))


ALL = dict(commands())


def option_names(command: Any) -> set[str]:
    return {name for each in command.params for name in (*each.opts, *each.secondary_opts)}


@pytest.mark.parametrize("path", ALL)
def test_the_examples_of_every_command_work(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    common, everything = (run_in_process(*path.split(), x).stdout for x in ("--help", "--help-all"))
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
        ("help chatt", "nothing in the manual about 'chatt'; did you mean `mlxchat help chat`?\n"),
        ("chat -x --json hi", "--extract and --json cannot be combined\n"),
        ("generate --regex caf\udce9 hi", "--regex is not UTF-8 text\n"),
        ("config set chat.system caf\udce9", "chat.system is not UTF-8 text\n"),
    ],
)
def test_a_usage_error_says_what_to_write_instead(arguments: str, message: str) -> None:
    """`-sys TEXT` set the system prompt to "ys"."""
    done = run_in_process(*arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"mlxchat: error: {message}")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("config get chat.temp", "config show chat.temp"),
        ("config unset modle", "config set modle --unset"),
        ("session mv a b", "session rename a b"),
        ("help session mv", "help session rename"),
    ],
)
def test_what_other_programs_call_a_command_works(theirs: str, ours: str) -> None:
    done, expected = (run_in_process(*line.split()) for line in (theirs, ours))
    assert done.stdout + done.stderr == expected.stdout + expected.stderr != ""
    assert done.returncode == expected.returncode != 2


def test_help_finds_words_on_every_page() -> None:
    """A terminal shows the part of the line that has them. What is about them comes first."""
    for words, page in (("repeats itself", "troubleshooting"), ("--overflow", "documents")):
        lines = run_in_process("help", *words.split()).stdout.splitlines()
        found = [line.split("\t") for line in lines]
        assert {page, "chat"} <= {name.partition(" · ")[0] for name, _ in found} <= {*PAGES}
        assert all(words in around(text.index(words), text) for _, text in found)
    sections = {
        "session remembers": "sessions",
        "temp": "sampling",
        "EXIT status": "files · Exit statuses",
    }
    for words, section in sections.items():
        assert run_in_process("help", *words.split()).stdout.startswith(f"{section}\t")


def test_names_of_other_programs_lead_to_ours_which_exist() -> None:
    for row in (row for rows in OURS.values() for row in rows.values()):
        words = shlex.split(re.split("[;,]", row)[0])
        if words[0].startswith("/"):
            assert OTHER_NAMES.get(words[0], words[0]) in COMMANDS
            continue
        command = " ".join(word for word in words[1:] if re.fullmatch("[a-z]+", word)) or "chat"
        for path in [command] if words[0] == "mlxchat" else ["chat", "generate"]:
            known = {"--help-all"} | option_names(ALL[path]) | option_names(docs.PROGRAM)
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


RUN = [
    'mlxchat "Why is the sky blue?"',
    "mlxchat --session holidays",
    "mlxchat session search whale",
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {*RUN} <= {*docs.commands()}
    config = tiny_config(layers=1) | {"max_position_embeddings": 24_000}
    monkeypatch.setenv("MLXCHAT_MODEL", str(write_tiny_model(tmp_path / "tiny", config=config)))
    for command in ("CHAT", "GENERATE", "BATCH"):
        monkeypatch.setenv(f"MLXCHAT_{command}_MAX_TOKENS", "12")
    monkeypatch.chdir(tmp_path)
    whales = "All about whales. " * 9
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text(whales)
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "prompt": "Hello"}\n')
    for command in RUN:
        (words,) = docs.called(command)
        piped = whales if command.startswith("cat") or "--session" in words else None
        done = run_in_process(*words, stdin=piped)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert done.stdout or "set" in command or "-o" in command, command
    assert (tmp_path / "answers.jsonl").read_text().count("\n") == 1


def test_its_python_runs(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a tiny model instead of the embedded one, with a limit on generated tokens."""

    def resolve_tiny(name: str | None, **options: Any) -> Any:
        # A resumed run or session names the directory of its model.
        return resolve_model(str(tiny_model) if name == "smollm2" else name, **options)

    few = mlxchat.GenerationSettings(max_tokens=5)
    monkeypatch.setattr(mlxchat, "load", lambda _: load(str(tiny_model)), raising=False)
    monkeypatch.setattr("mlxchat.engine.reply.GenerationSettings", lambda: few)
    monkeypatch.setattr("mlxchat.app.opening.resolve_model", resolve_tiny)
    names: dict[str, Any] = {"report": "All about boats. "}
    names |= {name: tmp_path / name for name in ("directory", "night", "prompts", "answers")}
    names["prompts"].write_text('{"text": "Hello"}\n{"text": "Bye"}\n')
    examples = re.findall(r"```python\n(.*?)```", docs.text(), flags=re.DOTALL)
    assert len(examples) >= 6
    for example in examples:
        exec(compile(example, "example", "exec"), names)
    assert len(names["answers"].read_text().splitlines()) == 2
