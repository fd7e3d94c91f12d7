"""JSON Schemas: rewritten for llguidance, whose compiler does the rest, and the check of the
finished answer, by jsonschema, for what a grammar cannot enforce.

Answers become narrower than llguidance would have them: numbers are bounded, so that digits cannot
repeat without end; an object with `properties` gets no others unless the schema asks for them;
excluded bounds are moved inwards. jsonschema is imported only when it is needed.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date, datetime, time
from decimal import Decimal
from difflib import get_close_matches
from functools import cached_property, lru_cache, partial
from typing import Any
from urllib.parse import unquote

from mlxchat.constraint.library import FORMATS, has_format, matches_others, may_match_together
from mlxchat.request.written import finite, parse_strictly

# Beyond this, programs that read numbers as doubles, and llguidance, round integers.
MAX_INTEGER = 2**53 - 1

# Numbers have at most nine decimals, or some models add digits without end.
FINEST = 1e-9

# llguidance compares names and patterns with each other.
MAX_PROPERTIES, MAX_PATTERNS, MAX_TOGETHER = 2_000, 100, 10

_BOUNDS = (("minimum", "exclusiveMinimum", 1), ("maximum", "exclusiveMaximum", -1))
_IN_PLACE = {"allOf", "anyOf", "oneOf", "$ref"}
_MAPS = {"properties", "patternProperties", "$defs", "definitions"}
_MAPS |= {"dependentSchemas", "dependencies"}
_SCHEMAS = {
    *("items", "prefixItems", "additionalItems", "contains", "unevaluatedItems"),
    *("additionalProperties", "propertyNames", "unevaluatedProperties"),
    *("not", "if", "then", "else", *_MAPS, *_IN_PLACE),
}
# Beside `properties`, these may describe or count others, or the value is one of a list.
_OPEN = _IN_PLACE | {
    *("const", "enum", "patternProperties", "additionalProperties", "minProperties"),
    *("if", "dependencies", "dependentSchemas", "$dynamicRef", "$recursiveRef"),
}
# Without effect on a grammar whose references are pointers, or reported by another name.
_DROPPED = {"$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"}
_DROPPED |= {"deprecated", "contentSchema", "then", "else", "minContains", "maxContains"}

NO_KEYWORD = "the schema has no keyword that limits the answer: any JSON is one"
_ANY = "mlxchat any"
_ANYTHING = {"$ref": "#/$defs/mlxchat%20any"}
_TYPES = ["null", "boolean", "number", "string", "array", "object"]
_WIDEST = {"minimum": -MAX_INTEGER, "maximum": MAX_INTEGER}
_DEFINITION = {"type": _TYPES, "items": _ANYTHING, "additionalProperties": _ANYTHING}
_DEFINITION |= {**_WIDEST, "multipleOf": FINEST}

_PLAIN = frozenset(("type", "properties", "required", "items"))
_DRAFT = "https://json-schema.org/draft/2020-12/schema"

_closest = lru_cache(get_close_matches)


class SchemaError(ValueError):
    """What is wrong with a schema, in one line."""


class Schema:
    """A valid schema; `grammar` is that for llguidance. `misspelled` are warnings of keywords,
    `left_out` names what the grammar lacks. Raises SchemaError."""

    def __init__(self, schema: Any) -> None:
        self.keywords, self.formats, named = _PLAIN, frozenset[str](), _DRAFT
        if not _is_plain(schema):
            from referencing import Registry

            draft = _draft_of(schema)
            valid = draft(_metaschema(draft), registry=Registry())
            if (problem := _problem(valid, schema)) is not None:
                raise SchemaError(problem)
            self.keywords = frozenset(draft.VALIDATORS)
            self.formats = frozenset(_formats(draft).checkers)
            named = draft.META_SCHEMA.get("$id", draft.META_SCHEMA.get("id"))
        is_void = isinstance(schema, dict) and schema and self.keywords.isdisjoint(schema)
        self.misspelled = dict[str, None].fromkeys([NO_KEYWORD] if is_void else [])
        self.left_out: dict[str, None] = {}
        self._root = schema
        self._by_pointer = True
        self._open: set[str] = set()
        known, written = None, schema
        while known != (known := (len(self._open), self._by_pointer)):
            written = self._written(schema, "#", closed=True)
        grammar: dict[str, Any] = {"allOf": [written]} if isinstance(written, bool) else written
        definitions = {**grammar.get("$defs", {}), _ANY: _DEFINITION}
        self.grammar = grammar | {"$schema": named, "$defs": definitions}

    @cached_property
    def _validator(self) -> Any:
        from referencing import Registry

        draft, schema = _draft_of(self._root), self._root
        if isinstance(schema, dict):
            # With it, the library would choose a validator without our extensions.
            schema = {key: value for key, value in schema.items() if key != "$schema"}
        return _extended(draft)(schema, registry=Registry(), format_checker=_formats(draft))

    def problem(self, answer: str) -> str | None:
        """Why a text is no valid answer, with the place; None if it is one."""
        from referencing.exceptions import Unresolvable

        try:
            return _problem(self._validator, parse_strictly(answer, parse_float=finite))
        except RecursionError:
            return "nested too deeply to be checked"
        except Unresolvable as error:
            return f"not checked: {error}"
        except ValueError as error:
            return f"invalid JSON: {error}"

    def _written(self, schema: Any, place: str, closed: bool) -> Any:
        """The schema for llguidance; `closed` if it alone decides which properties exist."""
        closed = closed and place not in self._open and self._by_pointer
        if not isinstance(schema, dict):
            return _ANYTHING if schema is True and closed else schema
        for key in schema.keys() - (self.keywords | _SCHEMAS | _DROPPED | {"const"}):
            for meant in _closest(key, self.keywords, 1, 0.75):
                self.misspelled[f"{key!r} has no effect: did you mean {meant!r}?"] = None
        used = self.keywords & schema.keys()
        alone = closed and len(used - {"type"}) == 1
        if "$ref" in used:
            self._follow(schema["$ref"], place, alone)
        inside = {
            **dict.fromkeys(("items", "prefixItems", "additionalItems"), closed),
            **dict.fromkeys(("anyOf", "oneOf"), alone),
            **dict.fromkeys(("$defs", "definitions"), True),
            "allOf": alone and len(schema.get("allOf", ())) == 1,
            "properties": closed and "patternProperties" not in used,
            "additionalProperties": closed,
        }
        written: dict[str, Any] = {}
        for key, value in schema.items():
            there, alone = f"{place}/{key}", inside.get(key, False)
            if key in _SCHEMAS and isinstance(value, list):
                written[key] = [
                    self._written(each, f"{there}/{number}", alone)
                    for number, each in enumerate(value)
                ]
            elif key in _MAPS and isinstance(value, dict):
                written[key] = {
                    name: self._written(
                        each, f"{there}/{name.replace('~', '~0').replace('/', '~1')}", alone
                    )
                    for name, each in value.items()
                }
            elif key in _SCHEMAS - {"$ref"}:
                written[key] = self._written(value, there, alone)
            elif key.startswith(("min", "max")) and key[3:] in ("Length", "Items", "Properties"):
                written[key] = int(value)
            elif (key, value) != ("uniqueItems", False):
                written[key] = value
        if closed and schema.get("properties") and used.isdisjoint(_OPEN):
            # An open object invites a model to add properties without end.
            for name in schema.get("required", ()):
                written["properties"].setdefault(name, _ANYTHING)
            written["additionalProperties"] = False
        self._drop(written, place)
        exact = _bound_numbers(written)
        return _with_anything(written, exact) if closed else written

    def _drop(self, written: dict[str, Any], place: str) -> None:
        """Drop what llguidance would misunderstand, or cannot enforce."""
        for key in _DROPPED if self._by_pointer else ("then", "else"):
            written.pop(key, None)
        for key, most in (("properties", MAX_PROPERTIES), ("patternProperties", MAX_PATTERNS)):
            if len(written.get(key, ())) > most:
                raise SchemaError(f"{place}/{key}: more than {most:,}")
        all_of = written.get("allOf", ())
        if sum("pattern" in each for each in all_of if isinstance(each, dict)) > MAX_TOGETHER:
            raise SchemaError(f"{place}/allOf: more than {MAX_TOGETHER} patterns of one text")
        if "patternProperties" in written:
            self._drop_patterns(written)
        # Only required ones are counted.
        names, required = written.get("properties", ()), written.get("required", ())
        if written.get("minProperties", 0) > 1 and len(names) > len(required):
            del written["minProperties"]
            self.left_out["minProperties"] = None

    def _follow(self, reference: Any, place: str, alone: bool) -> None:
        """Check that a reference leads somewhere; what is not `alone` there stays open."""
        if not isinstance(reference, str) or not re.match("#(/|$)", reference):
            self._by_pointer = False
            return
        target, found = unquote(reference), self._root
        for step in target.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                raise SchemaError(f"{place}: refers to {reference!r}, which does not exist")
        if not alone:
            self._open.add(target)

    def _drop_patterns(self, written: dict[str, Any]) -> None:
        """Drop patterns of names that overlap with others, and move those that match only listed
        names to these: llguidance would allow a separator before a property that cannot come."""
        properties, patterns = written.get("properties", {}), written["patternProperties"]
        while len(patterns) > 1 and may_match_together(patterns):
            pattern = [*patterns][-1]
            del patterns[pattern]
            self.left_out[f"patternProperties {pattern!r}"] = None
        for pattern in [*patterns]:
            names = [name for name in properties if _finds(pattern, name)]
            if names and not matches_others(pattern, properties):
                schema = patterns.pop(pattern)
                properties |= {name: {"allOf": [properties[name], schema]} for name in names}


def _bound_numbers(written: dict[str, Any]) -> bool:
    """Write bounds as llguidance enforces them; return whether nine decimals may lie between."""
    types = written.get("type", ())
    listed = {types} if isinstance(types, str) else {*types}
    is_number = bool(listed & {"number", "integer"}) and not written.keys() & {"const", "enum"}
    for key, open_key, _ in _BOUNDS:
        if isinstance(written.get(open_key), bool):  # in draft 4
            excludes = written.pop(open_key)
            written |= {open_key: written.pop(key)} if excludes else {}
    ends = [written[key] for bound in _BOUNDS for key in bound[:2] if key in written]
    for key, open_key, sign in _BOUNDS:
        excluded = written.get(open_key)
        if (
            excluded is not None
            and excluded == math.floor(excluded)
            and sign * excluded >= 0
            and any(0 < abs(end - excluded) < 1 for end in ends)
        ):
            # llguidance would allow it. It also rounds the last digits.
            moved = sign * written.pop(open_key) + max(1e-15, 8 * math.ulp(excluded))
            written[key] = sign * max(sign * written.get(key, -sign * MAX_INTEGER), moved)
        if is_number and sign * written.get(open_key, -sign * math.inf) < -MAX_INTEGER:
            written.pop(open_key, None)
            written[key] = sign * max(-MAX_INTEGER, sign * written.get(key, -sign * MAX_INTEGER))
    return all(round(end, 8) == end for end in ends)


def _with_anything(written: dict[str, Any], exact: bool) -> dict[str, Any]:
    """The schema with the values that it leaves open, if no other schema applies to the same value:
    llguidance cannot intersect recursive schemas."""
    if written.keys() & (_IN_PLACE | {"const", "enum"}):
        return written
    named = written.get("type", _TYPES)
    types = {named} if isinstance(named, str) else {*named}
    defaults: dict[str, Any] = {} if "type" in written else dict(_WIDEST)
    if "number" in types and exact:
        defaults["multipleOf"] = FINEST
    if "array" in types:
        defaults["items"] = _ANYTHING
    if "object" in types:
        defaults["additionalProperties"] = _ANYTHING
    return {**defaults, **written}


def _is_plain(schema: Any) -> bool:
    """Whether it is as the short form has it, and so valid: jsonschema is slow to import."""
    match schema:
        case {"type": "object", "properties": dict(fields), "required": list(names), **others}:
            return not others and names == [*fields] and all(map(_is_plain, fields.values()))
        case {"type": "array", "items": each, **others}:
            return not others and _is_plain(each)
        case {"type": "string" | "integer" | "number" | "boolean", **others}:
            return others in ({}, {"description": str(others.get("description"))})
    return False


def _finds(pattern: str, text: str) -> bool:
    with suppress(re.error):
        return re.search(pattern, text) is not None
    return False


def _problem(validator: Any, value: Any) -> str | None:
    from jsonschema.exceptions import best_match

    error = best_match(validator.iter_errors(value))
    if error is None:
        return None
    text = error.message
    return f"{error.json_path}: {text if len(text) <= 300 else f'{text[:150]} … {text[-150:]}'}"


def _draft_of(schema: Any) -> Any:
    from jsonschema import Draft3Validator, Draft202012Validator
    from jsonschema.validators import validator_for

    named = schema.get("$schema", "") if isinstance(schema, dict) else ""
    # Both schemes are common.
    newer = validator_for({"$schema": re.sub("^http:", "https:", str(named))}, Draft202012Validator)
    draft = validator_for({"$schema": re.sub("^https:", "http:", str(named))}, newer)
    if draft is Draft3Validator:
        raise SchemaError(f"$.$schema: unsupported draft {named!r}: use draft 4 or later")
    return draft


@lru_cache
def _metaschema(draft: Any) -> dict[str, Any]:
    """That of the draft, in one piece if it has several, which are slow to look up."""
    from jsonschema_specifications import REGISTRY

    whole = draft.META_SCHEMA
    place = whole.get("$id", "").rpartition("/")[0]
    pieces = [REGISTRY[f"{place}/{piece['$ref']}"].contents for piece in whole.get("allOf", ())]
    if not pieces:
        # Many schemas of older drafts have them, too.
        own = whole["properties"]
        return whole | {"properties": own | {"$defs": own.get("definitions", {})}}
    merged: dict[str, Any] = {"type": whole["type"], "properties": {}, "$defs": {}}
    for piece in [*pieces, whole]:
        for key in ("properties", "$defs"):
            merged[key] |= piece.get(key, {})
    text = re.sub(r'"\$(dynamic|recursive)Ref": "#(meta)?"', '"$ref": "#"', json.dumps(merged))
    return json.loads(re.sub('"meta/[a-z]+#', '"#', text))


@lru_cache
def _extended(draft: Any) -> Any:
    """The validator of a draft, but exact for multiples, without patterns that Python rejects."""
    from jsonschema.validators import extend

    names = {"pattern", "patternProperties", "additionalProperties", "unevaluatedProperties"}
    checks = {name: _tried(draft.VALIDATORS[name]) for name in names & draft.VALIDATORS.keys()}
    return extend(draft, checks | {"multipleOf": _multiple_of})


def _tried(check: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    def tried(*args: Any) -> Iterator[Any]:
        with suppress(re.error):
            yield from check(*args) or ()

    return tried


def _multiple_of(validator: Any, factor: Any, value: Any, schema: Any) -> Iterator[Any]:
    from jsonschema import ValidationError

    if validator.is_type(value, "number") and Decimal(str(value)) % Decimal(str(factor)):
        yield ValidationError(f"{value!r} is not a multiple of {factor}")


@lru_cache
def _formats(draft: Any) -> Any:
    """The draft's format checker, with what llguidance knows."""
    from jsonschema import FormatChecker

    formats = FormatChecker(())
    own = {name: (partial(_has_format, name), ValueError) for name in FORMATS.split()}
    formats.checkers = own | draft.FORMAT_CHECKER.checkers
    return formats


def _has_format(name: str, value: object) -> bool:
    """For formats that the library needs further packages for, or knows in some drafts only."""
    parse = {"date": date, "time": time, "date-time": datetime}.get(name)
    return not isinstance(value, str) or (
        has_format(value, name) and (parse is None or bool(parse.fromisoformat(value.upper())))
    )
