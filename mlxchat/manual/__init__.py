"""The manual: one page of Markdown per subject, shipped inside the package, and `equivalents`, the
names that other programs have for our options.

Each page begins with a title and a one-sentence summary. How a page looks is for `terminal`.
"""

from pathlib import Path

from mlxchat.manual.equivalents import PAGE as SWITCHING
from mlxchat.manual.equivalents import as_markdown

# In the order of the list that `mlxchat help` shows.
PAGES = (
    *("chat", "sessions", "pipes", "documents", "answers", "batch", "models", "sampling"),
    *("window", "positions", "lookup", "cache", "blocks", "overnight", "json", "configuration"),
    *("machines", "python", "benchmarks", "figures", "files", "switching", "troubleshooting"),
)


def read_page(name: str) -> str:
    """The Markdown of one of PAGES."""
    text = Path(__file__).with_name(f"{name}.md").read_text(encoding="utf-8")
    return text + as_markdown() if name == SWITCHING else text


def summary(name: str) -> str:
    """The page's first sentence, without markup."""
    return read_page(name).split("\n\n")[1].replace("`", "").strip()
