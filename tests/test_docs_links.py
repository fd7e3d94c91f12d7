"""Every relative link in README.md and the manual leads to a file and a heading."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests import docs


def parse(markdown: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(markdown)


def targets(page: Path) -> Iterator[str]:
    """What the page links to, and its pictures."""
    for block in parse(page.read_text(encoding="utf-8")):
        for token in block.children or ():
            target = token.attrGet("href") or token.attrGet("src")
            if target is not None:
                yield str(target)


def anchors(page: Path) -> set[str]:
    """The page's headings, as GitHub spells them in a link."""
    tokens = parse(page.read_text(encoding="utf-8"))
    headings = (after.content for each, after in pairwise(tokens) if each.type == "heading_open")
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    """The page's links that lead nowhere."""
    found: list[str] = []
    for target in targets(page):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        if not linked.is_file() or (anchor and anchor not in anchors(linked)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", docs.PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken(page) == []


def test_the_readme_links_to_every_page() -> None:
    linked = {docs.ROOT / target.partition("#")[0] for target in targets(docs.README)}
    assert set(docs.MANUAL.glob("*.md")) <= linked
