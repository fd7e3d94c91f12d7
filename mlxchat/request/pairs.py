"""Options that exclude each other, in one table."""

from collections.abc import Iterator
from enum import StrEnum
from itertools import combinations
from typing import Any

from mlxchat.errors import UsageError
from mlxchat.options import flag, options_of

CONSTRAINTS = ("schema", "schema_multi", "regex", "choice", "grammar")
READINGS = ("overflow=passages", "overflow=map")
OF_TEMPLATE = (
    *("system", "think", "template_args", "schema_prompt", "prefill", "chat_template"),
    *READINGS,
)

# At most one of each can be given.
ONE_OF = (
    CONSTRAINTS,
    ("until", "lasting_s"),
    ("lines", "csv", "pattern"),
    ("latest", "session", "save"),
)

# A field, those that it excludes, and what to say after both, or instead. A field counts if it is
# not at its default; `overflow=map` stands for one of its values.
PAIRS = (
    ("raw", OF_TEMPLATE, "{other} needs the chat template, which --raw bypasses"),
    ("checkpoint", ("lookup",), ": a resumed run must write the same bytes"),
    ("checkpoint", (*CONSTRAINTS, "extract", "chat_template", "prefill", "overflow=map"), ""),
    ("blocks", ("checkpoint", *READINGS), ": pass the documents with --file"),
    ("blocks", ("prefix_cache",), ""),
    ("events", ("checkpoint", "max_bytes", "extract"), ""),
    ("ignore_eos", CONSTRAINTS, ""),
    ("min_tokens", CONSTRAINTS, ""),
    *((each, ("extract",), "") for each in CONSTRAINTS),
    *((one, (other,), "") for each in ONE_OF for other, one in combinations(each, 2)),
)


def refuse_pairs(*values: Any, constraint: str | None = None) -> None:
    """Raise UsageError for options of these dataclasses that exclude each other. `constraint` is a
    field of Answer that constrains a message or a row of its own."""
    given = dict(each for value in values for each in _given(value))
    if constraint is not None:
        given[constraint] = flag(constraint)
    for name, others, text in PAIRS:
        for other in others:
            if name in given and other in given:
                both = f"{given[other]} and {given[name]} cannot be combined{text}"
                raise UsageError(text.format(other=given[other]) if "{" in text else both)


def _given(value: Any) -> Iterator[tuple[str, str]]:
    """The fields that are not at their defaults, as the table and as messages name them."""
    for name, each in options_of(type(value)).items():
        chosen = getattr(value, name)
        if isinstance(chosen, StrEnum):
            yield f"{name}={chosen}", f"{each.flag} {chosen}"
        elif bool(chosen) != bool(each.default):
            yield name, each.flag if chosen else f"--no-{each.name}"
