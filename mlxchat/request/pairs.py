"""Options that exclude each other, in one table."""

from itertools import combinations
from typing import Any

from mlxchat.errors import UsageError
from mlxchat.options import Option, options_of

CONSTRAINTS = ("schema", "schema_multi", "regex", "choice", "grammar")
EXTRACTS = ("extract", "extract_last")
OF_TEMPLATE = ("system", "think", "template_args", "schema_prompt", "prefill", "chat_template")

# At most one of each can be given.
ONE_OF = (CONSTRAINTS, ("until", "lasting_s"), ("lines", "csv", "pattern"))

# A field, those that it excludes, and what to say after both, or instead.
PAIRS = (
    ("raw", OF_TEMPLATE, "{other} needs the chat template, which --raw bypasses"),
    ("checkpoint", ("lookup", "num_draft_tokens"), ": a resumed run must write the same bytes"),
    ("checkpoint", ("blocks",), ": pass the documents with --file"),
    ("checkpoint", (*CONSTRAINTS, *EXTRACTS, "chat_template", "prefill"), ""),
    ("events", ("checkpoint", "max_bytes", *EXTRACTS), ""),
    ("ignore_eos", CONSTRAINTS, ""),
    ("min_tokens", CONSTRAINTS, ""),
    *((each, EXTRACTS, "") for each in CONSTRAINTS),
    *((one, (other,), "") for each in ONE_OF for other, one in combinations(each, 2)),
)


def refuse_pairs(*values: Any) -> None:
    """Raise UsageError for options of these dataclasses that exclude each other."""
    given: dict[str, Option] = {
        name: each
        for value in values
        for name, each in options_of(type(value)).items()
        if getattr(value, name)
    }
    for name, others, text in PAIRS:
        for other in others:
            if name in given and other in given:
                flags = given[other].flag, given[name].flag
                both = f"{flags[0]} and {flags[1]} cannot be combined{text}"
                raise UsageError(text.format(other=flags[0]) if "{" in text else both)
