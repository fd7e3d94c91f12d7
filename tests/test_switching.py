"""The page for people who come from other programs, checked against our help and mlx-lm's parsers;
and the errors that it gives the right names."""

import importlib
import importlib.metadata
import re
import shlex
from collections.abc import Iterator

import pytest

from mlxchat.manual import read_page
from mlxchat.manual.equivalents import (
    CODE,
    MISSING,
    PAGE,
    ROW,
    Equivalent,
    equivalents,
    hint_for,
)
from mlxchat.terminal.commands import COMMANDS
from mlxchat.terminal.manual_page import render_page
from mlxchat.terminal.slash import OTHER_NAMES
from tests.in_process import run_in_process

PROGRAMS = {"mlx-lm", "llm", "ollama", "llama.cpp"}
EQUIVALENTS = list(equivalents())
ROWS = [each for each in EQUIVALENTS if not each.is_missing]
# Code on the page that is neither an option nor a command of ours.
OTHER_CODE = {".gguf", '"""', "$'\\n'", "HF_ENDPOINT", "HF_TOKEN", "NO_COLOR", "mlx.launch"}
# From the page's first table to the program's heading.
PROGRAM_OF = {"llama-cli": "llama.cpp", "mlx_lm": "mlx-lm"}


def own_options(*command: str) -> set[str]:
    """The options in the command's `--help-all`."""
    shown = run_in_process(*command, "--help-all").stdout
    lines = re.findall(r"^ {2,6}(-\w, --.+|-\w\b.*|--.+)$", shown, re.MULTILINE)
    names = {name for line in lines for name in re.findall(r"(?<!\S)--?[\w\[][\w\[\]-]*", line)}
    return {part for name in names for part in (name.replace("[no-]", ""), unbracketed(name))}


def unbracketed(name: str) -> str:
    return name.replace("[", "").replace("]", "")


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    """The options of the commands that most people use."""
    return {name: own_options(*name.split()) for name in ("", "chat", "generate", "batch")}


def unknown_in(code: str, known: dict[str, set[str]]) -> set[str]:
    """What of the code our program does not have."""
    if code in OTHER_CODE:
        return set()
    words = shlex.split(code)
    if words[0] == "mlxchat":
        command = [word for word in words[1:] if re.fullmatch(r"[a-z]+", word)]
        name = " ".join(command)
        has = known[name] if name in known else own_options(*command)
        return {word for word in words if word.startswith("-")} - has
    if words[0].startswith("-"):
        named = {word for word in words if word.startswith("-")}
        return named - (known["chat"] & known["generate"])
    name = OTHER_NAMES.get(words[0], words[0])
    if name not in COMMANDS:
        return {code}
    values = {word for word in words[1:] if word.isalpha()}
    return values - {*re.findall(r"\w+", COMMANDS[name].usage)}


@pytest.mark.parametrize("each", EQUIVALENTS, ids=lambda each: f"{each.program} {each.names[0]}")
def test_our_names_exist_in_the_help_of_their_command(
    each: Equivalent, known: dict[str, set[str]]
) -> None:
    assert [unknown_in(code, known) for code in CODE.findall(each.ours)] == [
        set() for _ in CODE.findall(each.ours)
    ]


def test_the_check_finds_names_that_do_not_exist(known: dict[str, set[str]]) -> None:
    assert unknown_in("--recall", known) == {"--recall"}
    assert unknown_in("mlxchat --recall", known) == set()
    assert unknown_in("mlxchat --raw", known) == {"--raw"}
    assert unknown_in("mlxchat generate --raw", known) == set()
    assert unknown_in("mlxchat models list --nope", known) == {"--nope"}
    assert unknown_in("/nope", known) == {"/nope"}
    assert unknown_in("/think maybe", known) == {"maybe"}
    assert "--no-save" in known["chat"]
    assert "--save" in known["chat"]


def test_every_row_has_ours_and_every_other_name_a_reason() -> None:
    assert [each.names for each in ROWS if not CODE.search(each.ours)] == []
    reasons = [each.ours for each in EQUIVALENTS if each.is_missing]
    assert [each for each in reasons if len(each.split()) <= 1] == []


def test_no_line_of_the_tables_and_lists_is_skipped() -> None:
    _, *sections = read_page(PAGE).split("\n## From ")
    assert {each.partition("\n")[0] for each in sections} == PROGRAMS
    for section in sections:
        table = [line for line in section.splitlines() if line.startswith("|")]
        is_other = re.compile(r"\|---\|---\||\| \*\*[A-Z][\w ]+\*\* \| \|")
        rows = [line for line in table[1:] if not is_other.fullmatch(line)]
        assert [line for line in rows if not ROW.fullmatch(line)] == []
        listed = [line for line in section.splitlines() if line.startswith("- ")]
        assert [line for line in listed if not MISSING.fullmatch(line)] == []


def test_each_table_has_its_columns_side_by_side_on_a_usual_terminal() -> None:
    page = render_page(read_page(PAGE), 80, has_escapes=False)
    assert len(re.findall(r"^  \S+ {2,}mlxchat$", page, re.MULTILINE)) == len(PROGRAMS)


def test_a_name_has_one_place_for_each_program() -> None:
    places = [(each.program, name) for each in EQUIVALENTS for name in each.names]
    assert len(places) == len(set(places))


def of_mlx_lm() -> Iterator[str]:
    """The options of the installed `mlx_lm.generate` and `mlx_lm.chat`."""
    for name in ("generate", "chat"):
        # The package's own `generate` hides the module.
        parser = importlib.import_module(f"mlx_lm.{name}").setup_arg_parser()
        for action in parser._actions:
            yield from action.option_strings


def test_all_options_of_the_installed_mlx_lm_are_named_and_no_others() -> None:
    named = {name for each in EQUIVALENTS if each.program == "mlx-lm" for name in each.names}
    assert {name for name in named if name.startswith("-")} == {*of_mlx_lm()}


def test_what_means_something_else_here_is_an_option_of_both_programs(
    known: dict[str, set[str]],
) -> None:
    before, _, _ = read_page(PAGE).partition("## From")
    rows = re.findall(r"^\| `(-\S+)` \| `?([\w-]+)`?: .+ \| .+ \|$", before, re.MULTILINE)
    assert len(rows) > 5
    for option, program in rows:
        named = {
            name
            for each in EQUIVALENTS
            if each.program == PROGRAM_OF.get(program, program)
            for name in each.names
        }
        assert option in named
        assert option in known["chat"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--ctx-size 512 hi", "unknown option --ctx-size; use --max-kv-size"),
        ("--num_ctx=512 hi", "unknown option --num_ctx; use --max-kv-size"),
        ("generate --temperature 1 hi", "unknown option --temperature; use --temp"),
        ("batch --n-predict 1", "unknown option --n-predict; use --max-tokens"),
        ("generate --ignore-chat-template", "… use mlxchat generate --raw"),
        ("generate --kv-bits 4 hi", "… mlxchat has none: keys and values keep the precision of…"),
        ("-o temperature 1 hi", "unknown option -o; use --temp"),
        ("-ngl 99 hi", "unknown option -ngl; mlxchat has none: MLX chooses"),
        ("-sys Briefly. hi", "unknown option -sys; use --system"),
        ("-hf org/model", "unknown option -hf; use --model"),
        ("chat -cnv", "unknown option -cnv; use mlxchat"),
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
        ("generate --Temp 1 hi", "--Temp; did you mean --temp? (see mlxchat generate --help)"),
        ("-system Briefly. hi", "-system; did you mean --system? (see mlxchat --help)"),
        ("generate --xyzzy hi", "--xyzzy (see mlxchat generate --help)"),
        ("models list --verbose", "--verbose (see mlxchat models list --help)"),
        ("batch --fragment a", "--fragment (see mlxchat batch --help)"),
    ],
)
def test_other_unknown_options_get_the_nearest_of_ours_or_nothing(
    arguments: str, message: str
) -> None:
    """`--nope` got "did you mean --no-pipeline, --on-loop, --stop?"."""
    done = run_in_process(*arguments.split())
    assert (done.returncode, done.stderr) == (2, f"mlxchat: error: unknown option {message}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--stop", "-st", "--quiet", "--nope"],
        ["-qn5", "--nope"],
        ["--nope", "--", "-ngl"],
        ["--nope", "-fnotes.txt"],
    ],
)
def test_a_value_or_ones_own_options_with_one_dash_are_not_refused(arguments: list[str]) -> None:
    done = run_in_process("generate", *arguments)
    assert done.stderr == "mlxchat: error: unknown option --nope (see mlxchat generate --help)\n"


def test_all_programs_of_the_installed_mlx_lm_are_named_and_no_others() -> None:
    found = importlib.metadata.entry_points(group="console_scripts")
    installed = {each.name for each in found if each.name.startswith("mlx_lm.")}
    named = {name for each in EQUIVALENTS for name in each.names if name.startswith("mlx_lm.")}
    assert named == installed


def test_programs_that_differ_are_told_apart() -> None:
    assert hint_for("-t") == (
        "from llm, use --prompt; from llama.cpp, mlxchat has none: MLX chooses"
    )
    assert hint_for("--nope") is None
