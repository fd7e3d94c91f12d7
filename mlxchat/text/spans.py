"""Tracks texts with known ids through a chat template: a reply encoded again may yield other tokens
than the model wrote. Marks around such texts show which of them the template leaves unchanged."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

TokenIds = np.ndarray  # one dimension, int32


class Kind(Enum):
    """The kind of a segment of a reply; a GAP is text between a marker and the text shown."""

    MARKER = auto()
    GAP = auto()
    THOUGHT = auto()
    ANSWER = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A text, with its ids if they are known."""

    text: str
    ids: TokenIds | None = None
    kind: Kind = Kind.ANSWER


# Renders each segment as the function given has it.
Render = Callable[[Callable[[Segment], str]], str]


def known_segments(render: Render, segments: Iterable[Segment], mark: str) -> list[Segment]:
    """What the template renders, in parts: the segments with ids that it leaves unchanged keep
    these. `mark` is a character that occurs in none."""
    rendered = render(lambda each: each.text)
    found = [Segment(rendered)]
    known = [each for each in segments if each.ids is not None]
    # Marks would keep a template from trimming: leave out first the texts that it could trim.
    untrimmed = [each for each in known if each.text == each.text.strip()]
    for some in (untrimmed, known if len(known) > len(untrimmed) else []):
        parts = split_at(render, some, mark) if some else found
        if "".join(each.text for each in parts) == rendered:
            found = parts
    return found


def split_at(render: Render, segments: Iterable[Segment], mark: str) -> list[Segment]:
    """What the template renders, in parts: the segments that it leaves unchanged, once, are apart
    from what is between them."""
    any_mark = re.compile(f"{mark}[0-9]+{mark}")
    marks = {each: f"{mark}{n}{mark}" for n, each in enumerate(segments)}
    rendered = render(lambda each: f"{marks.get(each, '')}{each.text}{marks.get(each, '')}")
    found: list[Segment] = []
    for each, own in marks.items():
        before, *after = rendered.split(f"{own}{each.text}{own}")
        if len(after) == 1:
            found += [Segment(any_mark.sub("", before)), each]
            (rendered,) = after
    return [*found, Segment(any_mark.sub("", rendered))]
