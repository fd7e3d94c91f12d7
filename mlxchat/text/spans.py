"""Tracks texts with known ids through a chat template: a reply encoded again may yield other tokens
than the model wrote. Marks around such texts show which of them the template leaves unchanged."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

TokenIds = np.ndarray  # one dimension, int32


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A text, with its ids if known."""

    text: str
    ids: TokenIds | None = None


# Renders each text as the function given has it.
Render = Callable[[Callable[[Known], str]], str]


def known_spans(render: Render, texts: Sequence[Known], mark: str) -> list[Known]:
    """What the template renders, in parts: the texts with ids that it leaves unchanged keep these.
    `mark` is a character that occurs in none."""
    rendered = render(lambda each: each.text)
    found = [Known(rendered)]
    marks = {each: f"{mark}{n}{mark}" for n, each in enumerate(texts) if each.ids is not None}
    # Marks would keep a template from trimming: leave out first the texts that it could trim.
    untrimmed = {each: own for each, own in marks.items() if each.text == each.text.strip()}
    for some in (untrimmed, marks if marks != untrimmed else {}):
        parts = list(_split(render, some, mark)) if some else found
        if "".join(each.text for each in parts) == rendered:
            found = parts
    return found


def _split(render: Render, marks: Mapping[Known, str], mark: str) -> Iterator[Known]:
    any_mark = re.compile(f"{mark}[0-9]+{mark}")
    rendered = render(lambda each: f"{marks.get(each, '')}{each.text}{marks.get(each, '')}")
    for each, own in marks.items():
        before, *after = rendered.split(f"{own}{each.text}{own}")
        if len(after) == 1:
            yield Known(any_mark.sub("", before))
            yield each
            (rendered,) = after
    yield Known(any_mark.sub("", rendered))
