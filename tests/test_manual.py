"""`mlxchat help`: the list of pages, a page on a terminal and in a pipe, a command's options."""

import os
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from mlxchat.manual import PAGES, read_page, summary
from mlxchat.terminal import pager
from mlxchat.terminal.manual_page import render_page
from tests import docs
from tests.in_process import run_in_process
from tests.pseudo_terminal import PseudoTerminal

ESCAPE = "\x1b"
MAX_README_LINES = 250


def test_every_page_is_listed() -> None:
    assert sorted(PAGES) == sorted(path.stem for path in docs.MANUAL.glob("*.md"))


def test_the_readme_lists_every_page_with_its_title_and_summary() -> None:
    listed = re.findall(
        r"^- \[(.+)\]\(mlxchat/manual/(\w+)\.md\): (.+)$", docs.text(), re.MULTILINE
    )
    pages = {name: read_page(name).split("\n\n", 2) for name in PAGES}
    assert listed == [(title[2:], name, about) for name, (title, about, _) in pages.items()]


def test_the_readme_is_short() -> None:
    """It was the whole manual, in almost 900 lines."""
    assert len(docs.README.read_text().splitlines()) <= MAX_README_LINES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_begins_with_a_title_and_a_short_summary(name: str) -> None:
    title, about, _ = read_page(name).split("\n\n", 2)
    assert re.fullmatch(r"# .+", title)
    assert re.fullmatch(r"[A-Z`].+\.", about)
    assert len(summary(name)) <= 60


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("columns", [40, 80])
def test_a_page_fits_the_terminal_and_nothing_is_lost(name: str, columns: int) -> None:
    page = render_page(read_page(name), columns, has_escapes=False)
    code = "\n".join(code_lines(read_page(name)))
    too_long = [
        line for line in page.splitlines() if len(line) > columns and line.strip() not in code
    ]
    assert too_long == []
    assert Counter(written(read_page(name))) - Counter(page) == {}


def code_lines(markdown: str) -> list[str]:
    tokens = MarkdownIt("commonmark").parse(markdown)
    return [
        line
        for token in tokens
        if token.type in ("fence", "code_block")
        for line in token.content.splitlines()
    ]


def written(markdown: str) -> str:
    """Every character of the page that is not space, markup or a table's header."""
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    shown = [
        token
        for before, token in pairwise(tokens)
        if before.type != "th_open" and token.type != "html_block"
    ]
    pieces = [piece for token in shown for piece in (token.children or [token])]
    return "".join("".join(each.content for each in pieces if each.type != "inline").split())


TABLE = "| option | does | default |\n|---|---|---:|\n| `--keep` | keeps tokens | 4 |\n"


def test_a_table_that_fits_is_drawn() -> None:
    assert render_page(TABLE, 80, has_escapes=False) == (
        "  option     does           default\n"
        "  ─────────────────────────────────\n"
        "  `--keep`   keeps tokens         4\n"
    )


def test_a_table_that_would_be_squeezed_becomes_a_list() -> None:
    assert render_page(TABLE, 30, has_escapes=False) == (
        "  option: `--keep`\n    does: keeps tokens\n    default: 4\n"
    )


def test_a_link_to_a_page_names_the_command_that_shows_it() -> None:
    markdown = "See [the window](window.md#families), [top](#top) and [MLX](https://example.org)."
    assert render_page(markdown, 80, has_escapes=False) == (
        "  See the window (help window), top and MLX (https://example.org).\n"
    )


def test_a_command_is_never_wrapped_so_that_it_can_be_copied() -> None:
    line = f"mlxchat generate {'long ' * 20}".strip()
    assert render_page(f"    {line}\n", 40, has_escapes=False) == f"    {line}\n"


def test_comments_that_do_not_fit_stand_above_their_commands() -> None:
    block = (
        "    mlxchat -c          # resume the last session\n    mlxchat help        # list pages\n"
    )
    assert render_page(block, 80, has_escapes=False) == block
    assert render_page(block, 40, has_escapes=False) == (
        "    # resume the last session\n    mlxchat -c\n    # list pages\n    mlxchat help\n"
    )


def test_colors_are_for_terminals_and_no_color_takes_them_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cyan = re.compile(r"\x1b\[[\d;]*36m")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert cyan.search(render_page("`code`", 80, has_escapes=True))
    assert ESCAPE not in render_page("`code`", 80, has_escapes=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not cyan.search(render_page("`code`", 80, has_escapes=True))


def test_help_lists_the_pages_with_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = run_in_process("help")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[1 : len(PAGES) + 1]] == [*PAGES]
    assert max(map(len, lines)) <= 80


def test_the_list_imports_nothing_that_takes_long() -> None:
    code = (
        "import sys; sys.argv = ['mlxchat', 'help']\n"
        "from mlxchat.cli import main\n"
        "try: main()\n"
        "finally: print([x for x in ('rich', 'mlx.core', 'numpy') if x in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n[]\n")


def test_a_page_in_a_pipe_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER", "false")
    done = run_in_process("help", "Window")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == render_page(read_page("window"), 80, has_escapes=False)


def test_help_for_a_command_shows_its_options() -> None:
    done = run_in_process("help", "session", "rm")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: mlxchat session rm" in done.stdout


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["windo"], "did you mean window?"),
        (["sesion"], "did you mean session?"),
        (["xyzzy"], "see `mlxchat help`"),
        (["session", "serach"], "did you mean session search?"),
        (["session", "xyzzy"], "see `mlxchat help session`"),
        (["../chat"], "did you mean chat?"),
    ],
)
def test_an_unknown_page_is_a_usage_error_with_the_nearest_name(
    words: list[str], hint: str
) -> None:
    done = run_in_process("help", *words)
    name = " ".join(words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"mlxchat: error: no page or command named {name!r}; {hint}\n"


@pytest.fixture
def pager_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What $PAGER puts into this file is what it was given."""
    file = tmp_path / "paged"
    monkeypatch.setenv("PAGER", f"cat > {file}")
    monkeypatch.setenv("TERM", "xterm")
    return file


def test_a_pager_gets_the_text(pager_writes: Path) -> None:
    assert pager.has_pager()
    assert pager.page("café\n" * 100_000)
    assert pager_writes.read_text() == "café\n" * 100_000


def test_ctrl_c_belongs_to_the_pager(pager_writes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER", f"kill -INT {os.getpid()}; {os.environ['PAGER']}")
    assert pager.page("text")
    assert pager_writes.read_text() == "text"


def test_a_pager_that_cannot_be_run_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER", "no-such-pager 2> /dev/null")
    assert not pager.page("text")


def test_an_empty_pager_or_a_dumb_terminal_pages_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("PAGER", "")
    assert not pager.has_pager()
    monkeypatch.setenv("PAGER", "cat")
    monkeypatch.setenv("TERM", "dumb")
    assert not pager.has_pager()


def test_on_a_terminal_a_page_opens_in_the_pager(
    ordinary_terminal: None, pager_writes: Path
) -> None:
    terminal = PseudoTerminal(
        [sys.executable, "-m", "mlxchat", "help", "window"], columns=60, lines=10
    )
    assert terminal.ends() == 0
    assert terminal.written == ""
    assert pager_writes.read_text() == render_page(read_page("window"), 60, has_escapes=True)
