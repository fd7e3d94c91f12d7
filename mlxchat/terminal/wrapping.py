"""Wraps a message for a terminal, so that words, commands and figures stay whole."""

import re

# A command in backquotes, or the help that a usage error refers to, which can then be copied.
_COMMAND = re.compile(r"`[^`]*`|\(see mlxchat [^()]*\)")
# Separates figures.
_DOT = " · "
_GLUED = "\0"


def wrap(text: str, columns: int) -> str:
    """The text in lines of at most `columns`.

    A line is broken inside a command or a figure only if that is longer than a line. A word that is
    longer stays in its line, for the terminal to break.
    """
    text = _COMMAND.sub(lambda command: _glue(command[0], columns), text)
    if _DOT in text:
        figures = (_glue(part, columns - len(_DOT)) for part in text.split(_DOT))
        text = f"{_GLUED}· ".join(figures)
    wrapped, used = "", 0
    for word in text.split(" "):
        fits = used + len(" ") + len(word) <= columns or len(word) > columns
        if used and not fits:
            wrapped, used = f"{wrapped}\n{word}", len(word)
        else:
            gap = " " if wrapped else ""
            wrapped, used = f"{wrapped}{gap}{word}", used + len(gap) + len(word)
        if used > columns:
            used %= columns
    return wrapped.replace(_GLUED, " ")


def _glue(text: str, columns: int) -> str:
    return text.replace(" ", _GLUED) if len(text) <= columns else text
