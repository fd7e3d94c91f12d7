"""Help, messages, documents and charts use no construction that reads as translated."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from mlxchat import cli
from tests.test_layout import ROOT, modules

DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md")),
    *sorted((ROOT / "mlxchat" / "manual").glob("*.md")),
]

# The construction, and what to write.
WORST = {
    r"\bbehind\b": "after",
    r"\b(is|are|was|were|be) told\b": "is reported",
    r"\bsays so\b": "reports it",
    r"\bgo(es)? on (with|from|where)\b": "continues",
    r"\blets? (it|them) go on\b": "continues",
    r"\b(who|some|no)body\b|\bwhoever\b": "users; or the passive",
    r"\bat (its|their) most\b|\bmost tokens\b": "maximum",
    r"\banew\b": "again, from scratch",
    r"\bbeside\b": "next to, compared with",
    r"\bmakes? no sense\b|\bis no value\b": "is invalid",
    r"\bthere (is|are) (none|nobody)\b|\bthat there (is|are) not\b": "no models yet; unknown",
    r"\bof its own\b|\bon its own(?! [a-z])": "its own",
    r"\bas it were\b|\bfor ever\b": "(nothing)",
    r"\bround in circles\b": "repeats itself",
    r"\bwhat (is|was|are|were) (held|kept|wrong|configured|generated|said)\b": "a noun",
    r"\b(take|taken|takes) away\b": "remove",
    r"\bmend\b": "fix",
    r"\btokens an? (second|step|turn)\b": "per second",
}


def texts(source: str) -> Iterator[str]:
    """Every string in the source except docstrings; f-strings as one, with `0` for each value."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
            values = (each.value if isinstance(each, ast.Constant) else 0 for each in node.values)
            yield "".join(map(str, values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            yield node.value


def flaws(text: str) -> dict[str, str]:
    return {each: WORST[each] for each in WORST if re.search(each, text, re.IGNORECASE)}


def test_no_message_has_a_construction_that_reads_as_translated() -> None:
    found = {
        (name, text): wrong
        for name, path in modules()
        for text in texts(path.read_text())
        if (wrong := flaws(text))
    }
    assert found == {}


def help_texts(command: Any, path: str = "mlxchat") -> dict[str, str]:
    """All words of a command's help and of the commands in it."""
    own = [command.help, command.epilog, *(each.help for each in command.params)]
    inner = getattr(command, "commands", {})
    return {path: "\n".join(filter(None, own))} | {
        at: text
        for name, each in inner.items()
        for at, text in help_texts(each, f"{path} {name}").items()
    }


def test_no_help_has_a_construction_that_reads_as_translated() -> None:
    found = help_texts(typer.main.get_command(cli.app))
    assert {name: wrong for name, text in found.items() if (wrong := flaws(text))} == {}


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.name)
def test_no_document_has_a_construction_that_reads_as_translated(file: Path) -> None:
    assert flaws(" ".join(file.read_text().split())) == {}
