"""The fenced code blocks of a Markdown text, for answers of which a program needs only the code."""

import re

# Three or more backticks, with an info string that has none, or tildes. Models indent fences in
# lists by any number of spaces.
# Source: https://spec.commonmark.org/0.31.2/#fenced-code-blocks
_OPENING = re.compile(r"(?P<indent>[ \t]*)(?P<fence>`{3,}(?=[^`]*$)|~{3,})")


def extract_code(text: str, *, last: bool = False) -> str:
    """The content of the first fenced code block, or of the last; the whole text if it has none.

    The content ends with a newline unless it is empty or the text ends in it. An unclosed block
    extends to the end, as in CommonMark.
    """
    blocks, rest = _blocks(text)
    if rest is not None:
        blocks.append(rest)
    if not blocks:
        return text
    return blocks[-1 if last else 0]


def is_settled(text: str, *, last: bool = False) -> bool:
    """Whether `extract_code` would return the same if the text continued."""
    # A last line of three backticks may still become one that does not close the block.
    lines = text[: text.rfind("\n") + 1]
    return not last and len(_blocks(lines)[0]) > 0


def _blocks(text: str) -> tuple[list[str], str | None]:
    """The closed blocks, and the content of one that is not closed, if any."""
    blocks: list[str] = []
    content: list[str] | None = None
    fence = indent = ""
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        if content is None:
            opening = _OPENING.match(line.rstrip("\r\n"))
            if opening is not None:
                content, fence, indent = [], opening["fence"], opening["indent"]
        elif _closes(line, fence):
            blocks.append("".join(content))
            content = None
        else:
            content.append(_without_indent(line, indent))
    return blocks, None if content is None else "".join(content)


def _closes(line: str, fence: str) -> bool:
    """Whether the line is a closing fence: the same character, at least as many."""
    stripped = line.strip()
    return len(stripped) >= len(fence) and set(stripped) == {fence[0]}


def _without_indent(line: str, indent: str) -> str:
    """The line without as much of the fence's indentation as it has."""
    blank = len(line) - len(line.lstrip(" \t"))
    return line[min(blank, len(indent)) :]
