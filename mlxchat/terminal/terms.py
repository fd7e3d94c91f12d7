"""Terms and what they mean, in two columns that need no table."""

import textwrap
from collections.abc import Sequence

MIN_COLUMNS = 24
GAP = 2


def format_terms(rows: Sequence[tuple[str, str]], columns: int) -> str:
    """Each meaning after its term, or below it on a narrow terminal."""
    widest = max(len(term) for term, _ in rows)
    indent = widest + GAP
    if columns - indent < MIN_COLUMNS:
        return "".join(f"{term}\n{_wrapped(text, columns, GAP)}\n" for term, text in rows)
    return "".join(
        f"{term:{indent}}{_wrapped(text, columns, indent).lstrip()}\n" for term, text in rows
    )


def _wrapped(text: str, columns: int, indent: int) -> str:
    margin = " " * indent
    return textwrap.fill(
        text, max(columns, indent + 10), initial_indent=margin, subsequent_indent=margin
    )
