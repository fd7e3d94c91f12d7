"""The manual: one page of Markdown per subject, shipped inside the package, and `equivalents`, the
names that other programs have for our options.

Each page begins with a title and a one-sentence summary. How a page looks is for `terminal`.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from mlxchat.manual.equivalents import PAGE as SWITCHING
from mlxchat.manual.equivalents import as_markdown

# In the order of the list that `mlxchat help` shows.
PAGES = (
    *("chat", "sessions", "pipes", "documents", "answers", "batch", "models", "sampling"),
    *("window", "positions", "lookup", "cache", "blocks", "overnight", "json", "configuration"),
    *("machines", "python", "benchmarks", "figures", "files", "switching", "comparison"),
    "troubleshooting",
)


def read_page(name: str) -> str:
    """The Markdown of one of PAGES."""
    text = Path(__file__).with_name(f"{name}.md").read_text(encoding="utf-8")
    return text + as_markdown() if name == SWITCHING else text


def summary(name: str) -> str:
    """The page's first sentence, without markup."""
    return read_page(name).split("\n\n")[1].replace("`", "").strip()


def search(words: str) -> Iterator[tuple[str, str, int]]:
    """The page of each paragraph, row of a table, item of a list or line of code with all the
    words, in any case (a flag only whole), its text, and the place of the first of them."""
    escaped = map(re.escape, words.split())
    wanted = [rf"(?<![\w-]){w}(?![\w-])" if w[:2] == r"\-" else rf"(?<!\w){w}" for w in escaped]
    for name in PAGES:
        for part in re.split(r"\n\n|\n(?=[|-]|    )", read_page(name)):
            plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", part).replace("`", "")
            text = " ".join(plain.split()).strip("|# ")
            found = [re.search(word, text, re.IGNORECASE) for word in wanted]
            if all(found):
                yield name, text, min(match.start() for match in found if match)
