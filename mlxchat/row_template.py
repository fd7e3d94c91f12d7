"""A prompt with fields in braces, filled in from each row of a batch.

    Classify: {text}

`{{` and `}}` are literal braces. A field is a name and nothing else: no attribute, index or format
is ever evaluated, and the values are never searched for fields.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+")


@dataclass(frozen=True, slots=True)
class Placeholder:
    """The place of a field's value."""

    field: str


@dataclass(frozen=True, slots=True)
class RowTemplate:
    """Texts and placeholders, in order."""

    parts: tuple[str | Placeholder, ...]

    @classmethod
    def parse(cls, text: str) -> "RowTemplate":
        """Raises ValueError for a single brace, an empty name, and a template without fields."""
        parts: list[str | Placeholder] = []
        for match in _PART.finditer(text):
            part, name = match[0], match[1]
            if part in ("{", "}"):
                raise ValueError(f"has a single {part}: write {part * 2} for a literal brace")
            if name is not None and not name.strip():
                raise ValueError("has an empty field: write its name in the braces, as in {text}")
            if name is not None:
                parts.append(Placeholder(name.strip()))
            else:
                parts.append(part[0] if part in ("{{", "}}") else part)
        template = cls(tuple(parts))
        if not template.fields:
            raise ValueError("must contain a field of the row, such as {text}")
        return template

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, each once."""
        names = (each.field for each in self.parts if isinstance(each, Placeholder))
        return tuple(dict.fromkeys(names))

    def fill(self, values: Mapping[str, str]) -> str:
        """The prompt of a row. Raises KeyError for a field that has no value."""
        return "".join(
            values[part.field] if isinstance(part, Placeholder) else part for part in self.parts
        )
