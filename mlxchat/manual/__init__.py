"""The manual: one page of Markdown per subject, shipped inside the package, and `equivalents`, the
names that other programs have for our options.

Each page begins with a title and a one-sentence summary. How a page looks is for `terminal`.
"""

import re
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


def search(words: str) -> list[tuple[str, str, int]]:
    """The page and section of each paragraph, row of a table, item of a list or line of code where
    all the words are, in any case (a flag only whole), its text, and the place of the first of them
    in it. Those with a flag of that name come first, or begin with it, then those in sections whose
    headings have most of the words."""
    escaped = map(re.escape, words.split())
    wanted = [rf"(?<![\w-]){w}(?![\w-])" if w[:2] == r"\-" else rf"(?<!\w){w}" for w in escaped]

    def having(text: str) -> list[re.Match[str]]:
        found = (re.search(word, text, re.IGNORECASE) for word in wanted)
        return [match for match in found if match]

    flag = re.compile(rf"(?<![\w-])--{re.escape(words)}(?![\w-])")
    finds: list[tuple[int, int, tuple[str, str, int]]] = []
    for name in PAGES:
        heading = ""
        for part in re.split(r"\n\n|\n(?=[|-]|    )", read_page(name)):
            plain = re.sub(r"(?m)!?\[([^]]*)\]\([^)]*\)|^```\w*$", r"\1", part)
            text = " ".join(plain.replace("`", "").split()).strip("|# ")
            if part.startswith("#") or not re.search(r"\w", text):
                heading = f" · {text}" if part.startswith("##") else heading
                continue
            found, said = having(text), len(having(heading))
            if len(having(f"{name}{heading} {text}")) == len(wanted) and (found or said):
                place = min((match.start() for match in found), default=0)
                flags = bool(flag.search(text)) + bool(flag.match(text))
                finds.append((-flags, -said, (f"{name}{heading}", text, place)))
    return [find for *_, find in sorted(finds, key=lambda find: find[:2])]
