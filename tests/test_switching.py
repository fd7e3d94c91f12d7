"""Names of other programs lead to ours, which exist."""

import re
import shlex

import pytest

from mlxchat.manual import read_page
from mlxchat.manual.equivalents import NONE, OURS, PAGE
from mlxchat.terminal.commands import COMMANDS
from mlxchat.terminal.slash import OTHER_NAMES
from tests.in_process import run_in_process

ROWS = [row for rows in OURS.values() for row in rows.values()]


def own_options(*command: str) -> set[str]:
    """The options in the command's `--help-all`."""
    shown = run_in_process(*command, "--help-all").stdout
    lines = re.findall(r"^ {2,6}(-\w, --.+|-\w\b.*|--.+)$", shown, re.MULTILINE)
    names = {name for line in lines for name in re.findall(r"(?<!\S)--?[\w\[][\w\[\]-]*", line)}
    return {part for name in names for part in (name.replace("[no-]", ""), unbracketed(name))}


def unbracketed(name: str) -> str:
    return name.replace("[", "").replace("]", "")


def test_our_names_exist_in_the_help_of_their_command() -> None:
    help_of = {name: own_options(*name.split()) for name in ("", "chat", "generate", "batch")}
    for row in ROWS:
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


def test_a_name_has_one_place_for_each_program_and_the_page_has_all() -> None:
    page = read_page(PAGE)
    for program in OURS:
        names = [
            name
            for table in (OURS[program].keys(), NONE[program].values())
            for names in table
            for name in names.split(", ")
        ]
        assert len(names) == len(set(names))
        assert [name for name in names if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--ctx-size 512 hi", "unknown option --ctx-size; use --max-kv-size"),
        ("generate --ignore-chat-template", "… use mlxchat generate --raw"),
        ("generate --kv-bits 4 hi", "… mlxchat has none: keys and values keep the precision of…"),
        ("-o temperature 1 hi", "unknown option -o; use --temp"),
        ("-sys Briefly. hi", "unknown option -sys; use --system"),
    ],
)
def test_another_programs_option_names_ours(arguments: str, message: str) -> None:
    """`--num-predict` got "did you mean --no-prefix-cache?", `-hf` showed the help, and `-sys TEXT`
    set the system prompt to "ys"."""
    done = run_in_process(*arguments.split())
    assert (done.returncode, done.stdout) == (2, "")
    written = re.escape(f"mlxchat: error: {message}").replace("…", ".+")
    assert re.fullmatch(rf"{written}.* \(see mlxchat help {PAGE}\)\n", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("generate --top_p 1 hi", "--top_p; did you mean --top-p? (see mlxchat generate --help)"),
        ("-system Briefly. hi", "-system; did you mean --system? (see mlxchat --help)"),
        ("generate --xyzzy hi", "--xyzzy (see mlxchat generate --help)"),
    ],
)
def test_other_unknown_options_get_the_nearest_of_ours_or_nothing(
    arguments: str, message: str
) -> None:
    """`--nope` got "did you mean --no-pipeline, --on-loop, --stop?"."""
    done = run_in_process(*arguments.split())
    assert (done.returncode, done.stderr) == (2, f"mlxchat: error: unknown option {message}\n")
