"""`mlxchat help`: the list of pages, a page on a terminal and in a pipe, a command's options."""

import re
import sys
from pathlib import Path

import pytest

from mlxchat.manual import PAGES, read_page
from mlxchat.terminal.manual_page import render_page
from tests import docs
from tests.in_process import run_in_process
from tests.pseudo_terminal import PseudoTerminal

ESCAPE = "\x1b"


def test_every_page_is_listed() -> None:
    assert sorted(PAGES) == sorted(path.stem for path in docs.MANUAL.glob("*.md"))


def test_the_readme_lists_every_page_with_its_title_and_summary() -> None:
    listed = re.findall(
        r"^- \[(.+)\]\(mlxchat/manual/(\w+)\.md\): (.+)$", docs.text(), re.MULTILINE
    )
    pages = {name: read_page(name).split("\n\n", 2) for name in PAGES}
    assert listed == [(title[2:], name, about) for name, (title, about, _) in pages.items()]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_rendered_for_any_width(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    for columns in (40, 80):
        page = render_page(read_page(name), columns)
        assert max(map(len, page.splitlines())) <= columns
        assert ESCAPE not in page


def test_a_page_in_a_pipe_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER", "false")
    done = run_in_process("help", "Window")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == read_page("window")


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


def test_on_a_terminal_a_page_opens_in_the_pager(
    ordinary_terminal: None, pager_writes: Path
) -> None:
    terminal = PseudoTerminal(
        [sys.executable, "-m", "mlxchat", "help", "window"], columns=60, lines=10
    )
    assert terminal.ends() == 0
    assert terminal.written == ""
    assert pager_writes.read_text() == render_page(read_page("window"), 60)
