"""References within a schema, and the definitions that they need."""

from typing import Any
from urllib.parse import unquote

from mlxchat.constraint.json_path import Path, shorten, spell
from mlxchat.constraint.schema_error import refuse


class References:
    """Finds and names what the references in `root` refer to.

    A definition is `closed` if it alone decides which properties exist. `waiting` are those that
    have a name but are not written yet.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self.names: dict[tuple[Path, bool], str] = {}
        self.waiting: list[tuple[Path, bool]] = []

    def renamed(self, reference: Any, path: Path, closed: bool) -> str:
        """The reference, found at `path`, in the rewritten schema. Raises SchemaError."""
        target = self.target(reference, path)
        self.at(target, path)
        if (target, closed) not in self.names:
            self.names[target, closed] = str(len(self.names))
            self.waiting.append((target, closed))
        return f"#/$defs/{self.names[target, closed]}"

    def target(self, reference: Any, path: Path) -> Path:
        """The place that a `$ref` refers to, with every step as text."""
        if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
            refuse(path, f"only references within the schema are supported: {shorten(reference)}")
        steps = unquote(reference[1:]).split("/")[1:]
        return tuple(step.replace("~1", "/").replace("~0", "~") for step in steps)

    def at(self, target: Path, path: Path | None = None) -> Any:
        """The schema at a place, referred to at `path`."""
        found = self._root
        for step in target:
            if isinstance(found, dict) and step in found:
                found = found[step]
            elif isinstance(found, list) and str(step).isdecimal() and int(step) < len(found):
                found = found[int(step)]
            else:
                refuse(path or target, f"refers to {spell(target)}, which does not exist")
        return found
