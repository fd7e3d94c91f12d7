"""The part of a text that says most of what a message asks about."""

from __future__ import annotations

import re

from mlxchat.recall.words import informative, words

# Of the part's characters, how many come before the first word that was asked for.
SHARE_BEFORE = 4
_PIECE = re.compile(r"\S+")


def excerpt(text: str, message: str, limit: int) -> str:
    """At most about `limit` characters of the text, on one line, with "…" where something is left
    out; its beginning if it says nothing of the message."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    wanted = set(informative(message))
    places = [
        piece.start()
        for piece in _PIECE.finditer(line)
        if not wanted.isdisjoint(words(piece.group()))
    ]
    starts = [max(0, place - limit // SHARE_BEFORE) for place in places] or [0]
    best = max(starts, key=lambda start: sum(start <= place < start + limit for place in places))
    start = min(best, len(line) - limit)
    if start > 0:
        # From the next word on.
        start += len(line[start:]) - len(line[start:].partition(" ")[2] or line[start:])
    cut = line[start : start + limit].rstrip()
    after = "…" if start + limit < len(line) else ""
    return f"{'…' if start > 0 else ''}{cut}{after}"
