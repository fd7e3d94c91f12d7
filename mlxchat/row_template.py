"""A prompt with fields in braces, filled in from each row of a batch.

    Classify: {text}

`{{` and `}}` are literal braces. A field is a name and nothing else: no attribute, index or format
is ever evaluated, and the values are never searched for fields.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


@dataclass(frozen=True, slots=True)
class RowTemplate:
    """A text with fields, whose names are `fields`, each once."""

    text: str
    fields: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "RowTemplate":
        """Raises ValueError for a single brace, an empty name, and a template without fields."""
        names: dict[str, None] = {}
        for part, name in ((match[0], match[1]) for match in _PART.finditer(text)):
            if part in ("{", "}"):
                raise ValueError(f"has a single {part}: write {part * 2} for a literal brace")
            if name is not None and not name.strip():
                raise ValueError("has an empty field: write its name in the braces, as in {text}")
            if name is not None:
                names[name.strip()] = None
        if not names:
            raise ValueError("must contain a field of the row, such as {text}")
        return cls(text, tuple(names))

    def fill(self, values: Mapping[str, str]) -> str:
        """The prompt of a row. Raises KeyError for a field that has no value."""
        return _PART.sub(
            lambda match: match[0][0] if match[1] is None else values[match[1].strip()], self.text
        )
