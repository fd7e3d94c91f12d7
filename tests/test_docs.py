"""Every command in README.md and the manual runs as a reader would run it, or is listed here with a
reason.

The commands come from the pages themselves, so a new one runs without a change here. One chapter is
one test with its own home and directory, and its commands run in order.
"""

import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from mlxchat.errors import ExitStatus
from scripts.tiny_model import tiny_config, write_tiny_model
from tests import docs
from tests.docs import Command
from tests.docs_checks import CHECKS, Seen, said
from tests.docs_shell import Done, runs_until_stopped
from tests.docs_workplace import DOCUMENT_BYTES, Workplace
from tests.fake_hub import FakeHub

# Beginnings of commands that are not run. test_help.py still parses those of mlxchat.
NOT_RUN = {
    "make": "sets up .venv and runs this suite",
    "git clone": "needs the network",
    "apt install": "changes this machine",
    "uv pip install": "needs the package index",
    "mlx.launch": "needs several machines, or several times the memory; test_distributed.py has it",
    "mlxchat bench --quick": "takes minutes; test_bench_command.py runs all benches in one go",
    "mlxchat | tee": "needs a person; test_chat_redirected.py has one",
    "jq -r '[.value.sender, .value.amount] | @csv'": "reads what the command above it writes",
    "jq -r '[.id, .text] | @csv'": "reads what the command above it writes",
    'mlxchat session import "$(llm': "needs llm; test_imports.py has databases like llm's",
    "sqlite3": "is not on every machine; test_session_database.py reads the database with Python's",
    "mlxchat bench all": "takes hours; test_bench_command.py runs it with --quick",
}

# Programs that cannot change this machine; no others are run.
HARMLESS = {
    *("mlxchat", "scripts/overnight.sh"),
    *("cat", "echo", "printf", "head", "tail", "less", "grep", "wc", "git", "jq"),
}

COMMANDS = docs.read()


def is_run(command: Command) -> bool:
    return not any(f"{command.text} ".startswith(f"{beginning} ") for beginning in NOT_RUN)


def chapters() -> dict[str, list[Command]]:
    """The commands that are run, by chapter, without the README's that the manual repeats."""
    found: dict[str, list[Command]] = {}
    for command in filter(is_run, COMMANDS):
        found.setdefault(f"{command.page}: {command.chapter}", []).append(command)
    of_manual = [each for each in found.values() if each[0].page != docs.README.name]
    return {
        name: commands
        for name, commands in found.items()
        if commands in of_manual or not any(is_part(commands, each) for each in of_manual)
    }


def is_part(commands: list[Command], whole: list[Command]) -> bool:
    """Whether `whole` has all the commands, comments included, in the same order."""
    rest = ((each.text, each.comment) for each in whole)
    return all((each.text, each.comment) in rest for each in commands)


FORMS_OF_ANSWERS = ("--schema", "--regex", "--choice", "--grammar", " -x ", "--extract")


def complaint(command: Command, done: Done) -> str | None:
    """The problem with the result, if any."""
    runs_all_night = runs_until_stopped(command.text)
    expected = {ExitStatus.TERMINATED, ExitStatus.OK} if runs_all_night else {ExitStatus.OK}
    if "head" in command.programs:
        expected |= {ExitStatus.BROKEN_PIPE}
    if any(each in command.text for each in FORMS_OF_ANSWERS):
        # A long answer, for which few tokens are generated here.
        expected |= {ExitStatus.INCOMPLETE}
    written = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    if done.status not in expected:
        return (
            f"{command}\nended with status {done.status}; it wrote:\n{written}\n"
            "(If it cannot be run in a test, say why in test_docs.py, NOT_RUN.)"
        )
    if re.search(r"Traceback \(most recent|mlxchat: error: ", done.stdout + done.stderr):
        return f"{command}\nended well, but wrote:\n{written}"
    return None


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a context for several documents."""
    config = tiny_config() | {"max_position_embeddings": 16 * DOCUMENT_BYTES}
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", config=config)


@pytest.fixture
def workplace(
    model: Path, tmp_path: Path, ordinary_terminal: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workplace]:
    with FakeHub() as hub:
        place = Workplace(tmp_path, model, hub)
        place.enter(monkeypatch)
        yield place


# Their commands are also tested one by one, in test_bench_command.
SLOW = {"benchmarks.md: Benchmarks"}


@pytest.mark.parametrize(
    "chapter",
    [pytest.param(each, marks=pytest.mark.slow if each in SLOW else []) for each in chapters()],
)
def test_the_commands_of_a_chapter_do_what_it_says(chapter: str, workplace: Workplace) -> None:
    commands = chapters()[chapter]
    if foreign(commands):
        pytest.fail("\n".join(foreign(commands)))
    workplace.furnish(commands)
    programs = {name for each in commands for name in each.programs if "/" not in name}
    missing = {name for name in programs if shutil.which(name) is None}
    for command in commands:
        if missing.isdisjoint(command.programs):
            check(command, workplace)
    if missing:
        pytest.skip(f"ran all commands except those that need {', '.join(sorted(missing))}")


def check(command: Command, place: Workplace) -> None:
    # A full benchmark takes minutes.
    text = re.sub(r"(mlxchat bench [a-z]+)(?!.* --quick)", r"\1 --quick", command.text)
    done = place.run(text)
    wrong = complaint(command, done)
    if wrong is not None:
        pytest.fail(wrong)
    for pattern, check in CHECKS.items():
        if (match := said(pattern, command)) is not None:
            check(Seen(place, done, match))


def foreign(commands: Iterable[Command]) -> list[str]:
    """Complaints about commands that need a decision first."""
    return [
        f"{each}\nsay in test_docs.py why it is not run (NOT_RUN), or that "
        f"{', '.join(sorted(strange))} may be (HARMLESS)"
        for each in commands
        if (strange := {*each.programs} - HARMLESS)
    ]


def test_every_command_is_run_or_has_a_reason_not_to() -> None:
    assert len(COMMANDS) > 50
    assert foreign(filter(is_run, COMMANDS)) == []


def test_every_exception_is_on_a_page() -> None:
    stale = [
        beginning
        for beginning in NOT_RUN
        if not any(f"{each.text} ".startswith(f"{beginning} ") for each in COMMANDS)
    ]
    assert stale == []


def test_every_check_has_a_command_on_a_page() -> None:
    run = list(filter(is_run, COMMANDS))
    stale = [pattern for pattern in CHECKS if not any(said(pattern, each) for each in run)]
    assert stale == []


# Tests of the parts above


def test_a_chapter_that_another_repeats_runs_once() -> None:
    first, second, third = (Command(text, "", "", "", 1) for text in ("a", "b", "c"))
    assert is_part([first, third], [first, second, third])
    assert not is_part([third, first], [first, second, third])
    assert not is_part([Command("a", "does more", "", "", 1)], [first, second, third])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("mlxchat generate -f nowhere.rtf Hello", "nowhere.rtf"),
        ("mlxchat generate --unheard-of Hello", "--unheard-of"),
        ("mlxchat session show never-begun | cat", "never-begun"),
        ("mlxchat config set chat.max-kv-size 0", "max-kv-size"),
    ],
)
def test_a_command_that_does_not_work_fails(
    workplace: Workplace, text: str, complaint: str
) -> None:
    with pytest.raises(pytest.fail.Exception, match=complaint):
        check(Command(text, "", "", "", 7), workplace)


def test_a_command_that_contradicts_the_documentation_fails(workplace: Workplace) -> None:
    with pytest.raises(AssertionError):
        check(Command("mlxchat models list", "", "", "", 7), workplace)
    with pytest.raises(AssertionError):
        check(Command("mlxchat generate Hello", "reads only the question", "", "", 7), workplace)
