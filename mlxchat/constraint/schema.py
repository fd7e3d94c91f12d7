"""JSON Schemas, checked keyword by keyword and rewritten for llguidance.

Nothing of a schema is dropped silently: what cannot be enforced is an error that names the keyword
and its place. Some parts become narrower, so answers are valid under the schema as it was given:
objects with `properties` get no others unless the schema asks for them, numbers have no exponent
and stay within the integers that every program reads exactly, and patterns mean what all dialects
agree on.
"""

from dataclasses import dataclass
from typing import Any

from mlxchat.constraint.anything import ANYTHING, DEFINITION, with_anything
from mlxchat.constraint.anything import NAME as ANYTHING_NAME
from mlxchat.constraint.disjoint import Disjointness
from mlxchat.constraint.expression import ExpressionError, search_expression
from mlxchat.constraint.finite import finite_definitions, is_finite, without_infinite
from mlxchat.constraint.formats import FORMATS
from mlxchat.constraint.json_path import Path, shorten
from mlxchat.constraint.keywords import (
    ANNOTATIONS,
    ENFORCED,
    NEWEST_DRAFT,
    OLD_DRAFTS,
    OWN_PREFIX,
    REFUSED,
)
from mlxchat.constraint.literals import (
    BOUNDS,
    MAX_INTEGER,
    check_literal,
    check_multiple,
    checked_number,
    excludes_nothing,
)
from mlxchat.constraint.references import References
from mlxchat.constraint.schema_error import SchemaError, refuse

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

# Of all definitions one within another, because llguidance follows references by recursion.
MAX_LEVELS = 10_000

MAX_PARTS = 300  # to look in for the place of a failure
MAX_COUNT = 2**31 - 1  # of characters, items or properties

_IN_PLACE = frozenset({"allOf", "anyOf", "oneOf", "$ref"})
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


# llguidance compares names and patterns with each other, and intersects patterns of the same text.
MAX_PROPERTIES = 2_000
MAX_PATTERN_PROPERTIES = 100
MAX_INTERSECTED_PATTERNS = 10


@dataclass(frozen=True)
class Compiled:
    """A schema for llguidance, its definitions in `$defs`; and its parts, each complete in the same
    way, by their places in the original, inner before outer."""

    schema: dict[str, Any]
    parts: list[tuple[Path, dict[str, Any]]]


def compile_schema(schema: Any) -> Compiled:
    """Rewrite a parsed schema for llguidance. Raises SchemaError."""
    return _Compiler(schema).compiled()


class _Compiler:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._is_old = self._uses_old_draft()
        self._parts: list[tuple[Path, dict[str, Any]]] = []
        self._intersected_patterns = 0
        self._alternatives: list[tuple[list[Any], Path]] = []  # lists of oneOf
        self._references = References(root)

    def _uses_old_draft(self) -> bool:
        """Whether the schema is written for a draft in which `items` may be a list."""
        named = self._root.get("$schema", "") if isinstance(self._root, dict) else ""
        draft = str(named).partition("://")[2].removesuffix("#")
        if not named or draft == NEWEST_DRAFT:
            return False
        if draft not in OLD_DRAFTS:
            refuse(("$schema",), f"unsupported draft {shorten(named)}: use 2020-12 or 7")
        return True

    def compiled(self) -> Compiled:
        root = self._schema(self._root, (), closed=True)
        definitions: dict[str, Any] = {}
        levels = 0
        references = self._references
        while references.waiting:
            path, closed = references.waiting.pop()
            parts = len(self._parts)
            name = references.names[path, closed]
            definitions[name] = self._schema(references.at(path), path, closed)
            inner = (len(place) - len(path) for place, _ in self._parts[parts:])
            levels += 1 + max(inner, default=0)
            if levels > MAX_LEVELS:
                refuse(path, "too many definitions refer to one another")
        definitions[ANYTHING_NAME] = DEFINITION
        # Now that all that is referred to is known to be valid.
        for schemas, path in self._alternatives:
            self._check_disjoint(schemas, path)
        finite = finite_definitions(definitions)
        if not is_finite(root, finite):
            raise SchemaError("no finite value satisfies the schema")
        kept = {
            name: without_infinite(each, finite)
            for name, each in definitions.items()
            if name in finite
        }

        def complete(schema: Any) -> dict[str, Any]:
            possible = without_infinite(schema, finite)
            whole = {"allOf": [possible]} if isinstance(possible, bool) else possible
            return whole | ({"$defs": kept} if kept else {})

        parts = [(path, complete(part)) for path, part in self._parts[:MAX_PARTS]]
        return Compiled(complete(root), parts)

    def _schema(self, schema: Any, path: Path, closed: bool) -> Any:
        """Rewrite the schema at `path`; `closed` if it alone decides which properties exist."""
        if isinstance(schema, bool):
            return dict(ANYTHING) if schema and closed else schema
        if not isinstance(schema, dict):
            refuse(path, f"a schema must be an object or a boolean, got {shorten(schema)}")
        used = {key: value for key, value in schema.items() if self._is_enforced(key, value, path)}
        written: dict[str, Any] = {}
        self._write_type(used, written, path)
        self._write_literals(used, written, path)
        self._write_numbers(used, written, path)
        self._write_counts(used, written, path)
        self._write_string(used, written, path, closed)
        self._write_array(used, written, path, closed)
        self._write_object(used, written, path, closed)
        self._write_in_place(used, written, path, closed)
        if closed:
            written = with_anything(written)
        self._parts.append((path, written))
        return written

    def _is_enforced(self, key: str, value: Any, path: Path) -> bool:
        """Whether the keyword is enforced, or else an annotation."""
        if key == "$id" and path:
            refuse((*path, key), "$id is supported at the root only")
        if key in ANNOTATIONS or key.startswith(OWN_PREFIX):
            return False
        if key == "uniqueItems" and value is False:
            return False
        if key in REFUSED:
            instead = f": {REFUSED[key]}" if REFUSED[key] else ""
            refuse((*path, key), f"{key} cannot be enforced{instead}")
        if key not in ENFORCED or (key == "prefixItems" and self._is_old):
            refuse((*path, key), f"unknown keyword {shorten(key)}")
        return True

    def _write_type(self, used: dict[str, Any], written: dict[str, Any], path: Path) -> None:
        if "type" not in used:
            return
        named = used["type"]
        listed = named if isinstance(named, list) else [named]
        if not listed or not all(isinstance(each, str) and each in TYPES for each in listed):
            refuse((*path, "type"), f"unknown type {shorten(named)}")
        written["type"] = named

    def _write_literals(self, used: dict[str, Any], written: dict[str, Any], path: Path) -> None:
        if "const" in used:
            check_literal(used["const"], (*path, "const"))
            written["const"] = used["const"]
        if "enum" in used:
            values = used["enum"]
            if not isinstance(values, list) or not values:
                refuse((*path, "enum"), "must be a list with at least one value")
            for number, value in enumerate(values):
                check_literal(value, (*path, "enum", number))
            written["enum"] = values

    def _write_numbers(self, used: dict[str, Any], written: dict[str, Any], path: Path) -> None:
        types = written.get("type", ())
        listed = [types] if isinstance(types, str) else types
        is_integer = "integer" in listed and "number" not in listed
        is_number = is_integer or "number" in listed
        for key in (*BOUNDS, "multipleOf"):
            # Bounds beyond all numbers that are written anyway, as of 64 bits, change nothing.
            if key in used and not (is_number and excludes_nothing(key, used[key])):
                written[key] = checked_number(used[key], (*path, key))
        if "multipleOf" in written:
            check_multiple(written["multipleOf"], (*path, "multipleOf"))
        if is_number:
            # Keeps digits from repeating without end, and numbers from overflowing like 1e999.
            if "minimum" not in written and "exclusiveMinimum" not in written:
                written["minimum"] = -MAX_INTEGER
            if "maximum" not in written and "exclusiveMaximum" not in written:
                written["maximum"] = MAX_INTEGER

    def _write_counts(self, used: dict[str, Any], written: dict[str, Any], path: Path) -> None:
        for key in _COUNTS:
            if key not in used:
                continue
            count = used[key]
            whole = isinstance(count, int | float) and not isinstance(count, bool)
            if not whole or count != int(count) or not 0 <= count <= MAX_COUNT:
                refuse((*path, key), f"must be an integer from 0 to 2^31, got {shorten(count)}")
            written[key] = int(count)

    def _write_string(
        self, used: dict[str, Any], written: dict[str, Any], path: Path, closed: bool
    ) -> None:
        patterns: list[str] = []
        if "pattern" in used:
            patterns.append(_pattern(used["pattern"], (*path, "pattern")))
        if "format" in used:
            name = used["format"]
            if not isinstance(name, str) or name not in FORMATS:
                known = ", ".join(sorted(FORMATS))
                refuse((*path, "format"), f"unknown format {shorten(name)}; known: {known}")
            patterns.append(f"^(?:{FORMATS[name]})$")
        if not closed:
            self._intersected_patterns += len(patterns)
            if self._intersected_patterns > MAX_INTERSECTED_PATTERNS:
                reason = f"more than {MAX_INTERSECTED_PATTERNS} patterns in schemas that all apply"
                refuse(path, f"{reason} cannot be enforced")
        for pattern in patterns[:1]:
            written["pattern"] = pattern
        for pattern in patterns[1:]:
            _also(written, {"pattern": pattern})

    def _write_array(
        self, used: dict[str, Any], written: dict[str, Any], path: Path, closed: bool
    ) -> None:
        first, rest = used.get("prefixItems"), used.get("items")
        first_key, rest_key = "prefixItems", "items"
        if isinstance(rest, list):
            if not self._is_old:
                refuse((*path, "items"), "must be a schema: list the first items in prefixItems")
            first, rest = rest, used.get("additionalItems")
            first_key, rest_key = "items", "additionalItems"
        elif "additionalItems" in used and not self._is_old:
            refuse((*path, "additionalItems"), "unknown keyword in this draft: use items")
        if first is not None:
            if not isinstance(first, list):
                refuse((*path, first_key), "must be a list of schemas")
            written["prefixItems"] = [
                self._schema(each, (*path, first_key, number), closed)
                for number, each in enumerate(first)
            ]
        if rest is not None:
            written["items"] = self._schema(rest, (*path, rest_key), closed)

    def _write_object(
        self, used: dict[str, Any], written: dict[str, Any], path: Path, closed: bool
    ) -> None:
        patterned = self._by_name(used, "patternProperties", path)
        if patterned:
            for name in patterned:
                _pattern(name, (*path, "patternProperties", name))
            written["patternProperties"] = {
                _pattern(name, path): self._schema(
                    each, (*path, "patternProperties", name), closed=False
                )
                for name, each in patterned.items()
            }
        properties = self._by_name(used, "properties", path)
        if "properties" in used:
            written["properties"] = {
                name: self._schema(each, (*path, "properties", name), closed and not patterned)
                for name, each in properties.items()
            }
        if "required" in used:
            written["required"] = _names(used["required"], (*path, "required"))
        if "additionalProperties" in used:
            written["additionalProperties"] = self._schema(
                used["additionalProperties"], (*path, "additionalProperties"), closed
            )
        elif closed and _lists_all_properties(used):
            # An open object invites a model to add properties without end.
            for name in written.get("required", ()):
                written["properties"].setdefault(name, True)
            written["additionalProperties"] = False
        self._check_count_of_properties(written, path)

    def _by_name(self, used: dict[str, Any], key: str, path: Path) -> dict[str, Any]:
        found = used.get(key, {})
        if not isinstance(found, dict):
            refuse((*path, key), f"must be an object, got {shorten(found)}")
        most = MAX_PROPERTIES if key == "properties" else MAX_PATTERN_PROPERTIES
        if len(found) > most:
            refuse((*path, key), f"more than {most:,} cannot be enforced")
        return found

    def _check_count_of_properties(self, written: dict[str, Any], path: Path) -> None:
        """A model may repeat a name that is not in `properties`, so at most one such name can be
        counted on."""
        minimum = written.get("minProperties", 0)
        if minimum > 1 + len(written.get("required", ())):
            refuse((*path, "minProperties"), "cannot be enforced: list more properties in required")

    def _write_in_place(
        self, used: dict[str, Any], written: dict[str, Any], path: Path, closed: bool
    ) -> None:
        is_alone = closed and len(used.keys() - {"type"}) == 1
        if "$ref" in used:
            written["$ref"] = self._references.renamed(used["$ref"], (*path, "$ref"), is_alone)
        for key in ("allOf", "anyOf", "oneOf"):
            if key not in used:
                continue
            listed = used[key]
            if not isinstance(listed, list) or not listed:
                refuse((*path, key), "must be a list with at least one schema")
            inner = is_alone and key != "allOf"
            schemas = [
                self._schema(each, (*path, key, number), inner)
                for number, each in enumerate(listed)
            ]
            if key == "oneOf":
                self._alternatives.append((listed, (*path, key)))
            if key == "allOf":
                _also(written, *schemas)
            elif "anyOf" in written:
                _also(written, {"anyOf": schemas})
            else:
                written["anyOf"] = schemas

    def _check_disjoint(self, schemas: list[Any], path: Path) -> None:
        references = self._references
        comparison = Disjointness(lambda each: references.at(references.target(each, path)))
        for number, schema in enumerate(schemas):
            for earlier in range(number):
                if not comparison.holds(schemas[earlier], schema):
                    refuse(
                        path,
                        f"oneOf cannot be enforced: schemas {earlier} and {number} may both hold; "
                        "use anyOf, or give them different types or constants",
                    )


def _lists_all_properties(used: dict[str, Any]) -> bool:
    others = _IN_PLACE | {"const", "enum", "patternProperties", "minProperties"}
    return "properties" in used and used.keys().isdisjoint(others)


def _also(written: dict[str, Any], *schemas: Any) -> None:
    written["allOf"] = [*written.get("allOf", ()), *schemas]


def _names(value: Any, path: Path) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        refuse(path, f"must be a list of names, got {shorten(value)}")
    return list(dict.fromkeys(value))


def _pattern(pattern: Any, path: Path) -> str:
    if not isinstance(pattern, str):
        refuse(path, f"must be a regular expression, got {shorten(pattern)}")
    try:
        return f"^(?:{search_expression(pattern)})$"
    except ExpressionError as error:
        refuse(path, f"{shorten(pattern)}: {error}")
