"""Wraps a message for a terminal, so that words, commands and figures stay whole."""

import re
import textwrap

# A command in backquotes, which can then be copied.
_COMMAND = re.compile(r"`[^`]*`")
# Separates figures.
_DOT = " · "
_GLUED = "\0"


def wrap(text: str, columns: int) -> str:
    """The text in lines of at most `columns`, unless a word is longer.

    A line is broken inside a command or a figure only if that does not fit into one.
    """
    glued = _COMMAND.sub(lambda command: _glue(command[0], columns), text)
    if _DOT in text:
        glued = _DOT.join(_glue(part, columns - len(_DOT)) for part in glued.split(_DOT))
        glued = glued.replace(_DOT, f"{_GLUED}· ")
    lines = textwrap.wrap(glued, columns, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace(_GLUED, " ")


def _glue(text: str, columns: int) -> str:
    return text.replace(" ", _GLUED) if len(text) <= columns else text
