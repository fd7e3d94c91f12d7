"""Fifty JSON Schemas as programs have them: records, configuration, forms, calls, unions.

Strings, property names and depth are limited where small models tend not to stop.
"""

from typing import Any

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


def record(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    """An object with these properties, of which all are required unless some are named."""
    names = list(required or properties)
    return {"type": "object", "properties": properties, "required": names, **more}


def text(**more: Any) -> dict[str, Any]:
    return {"type": "string", **more}


def integer(low: int | None = None, high: int | None = None) -> dict[str, Any]:
    bounds = {"minimum": low, "maximum": high}
    return {"type": "integer", **{key: bound for key, bound in bounds.items() if bound is not None}}


def number(**more: Any) -> dict[str, Any]:
    return {"type": "number", **more}


def array(items: Any, low: int = 0, high: int | None = None) -> dict[str, Any]:
    bounds = {"minItems": low} | ({} if high is None else {"maxItems": high})
    return {"type": "array", "items": items, **bounds}


def one_of(*values: Any) -> dict[str, Any]:
    return {"enum": list(values)}


def nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


BOOLEAN = {"type": "boolean"}
ADDRESS = record(
    {
        "street": text(minLength=1, maxLength=40),
        "city": text(maxLength=30),
        "postcode": text(pattern="^[0-9]{5}(-[0-9]{4})?$"),
        "country": text(pattern="^[A-Z]{2}$"),
    }
)

SCHEMAS: dict[str, Any] = {
    "person": record({"name": text(), "age": integer(0, 130), "bio": text(maxLength=200)}),
    "sentiment": record(
        {"label": one_of("positive", "negative", "neutral"), "score": number(minimum=0, maximum=1)}
    ),
    "contact": record(
        {"name": text(), "email": text(format="email"), "phone": text(pattern=r"^\+?[0-9 ]{7,15}$")}
    ),
    "address": ADDRESS,
    "event": record(
        {
            "title": text(maxLength=60),
            "begins": text(format="date-time"),
            "ends": nullable(text(format="date-time")),
            "attendees": array(text(format="email"), 1, 4),
        }
    ),
    "invoice": record(
        {
            "number": text(pattern=r"^INV-\d{6}$"),
            "date": text(format="date"),
            "lines": array(
                record(
                    {
                        "item": text(maxLength=30),
                        "count": integer(1, 999),
                        "price": number(minimum=0, maximum=10000, multipleOf=0.01),
                    }
                ),
                1,
                3,
            ),
            "paid": BOOLEAN,
        }
    ),
    "recipe": record(
        {
            "name": text(maxLength=60),
            "minutes": integer(1, 600),
            "ingredients": array(
                record({"what": text(maxLength=30), "grams": number(minimum=0)}), 1, 4
            ),
            "steps": array(text(minLength=3, maxLength=80), 1, 4),
        }
    ),
    "address book": {
        "$schema": DRAFT_2020,
        "$defs": {"address": ADDRESS},
        **record({"home": {"$ref": "#/$defs/address"}, "work": {"$ref": "#/$defs/address"}}),
    },
    "tree": {
        "$defs": {
            "node": record(
                {"value": integer(0, 9), "children": array({"$ref": "#/$defs/node"}, 0, 2)}
            )
        },
        "$ref": "#/$defs/node",
    },
    "linked list": {
        "definitions": {
            "link": record(
                {"value": text(maxLength=5), "next": nullable({"$ref": "#/definitions/last"})}
            ),
            "last": record({"value": text(maxLength=5), "next": {"type": "null"}}),
        },
        "$schema": DRAFT_7,
        "$ref": "#/definitions/link",
    },
    "shapes": array(
        {
            "oneOf": [
                record({"kind": {"const": "circle"}, "radius": number(exclusiveMinimum=0)}),
                record({"kind": {"const": "square"}, "side": number(exclusiveMinimum=0)}),
                record({"kind": {"const": "point"}}),
            ]
        },
        1,
        3,
    ),
    "pets": {
        "$defs": {
            "Cat": record({"pet": {"const": "cat"}, "lives": integer(1, 9)}, title="Cat"),
            "Dog": record({"pet": {"const": "dog"}, "barks": BOOLEAN}, title="Dog"),
        },
        "discriminator": {"propertyName": "pet"},
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
    },
    "optional fields": record(
        {"a": text(maxLength=9), "b": integer(), "c": BOOLEAN, "d": {"type": "null"}}, "a"
    ),
    "all optional": {
        "type": "object",
        "properties": {"debug": BOOLEAN, "level": integer(0, 5), "file": text(maxLength=20)},
        "additionalProperties": False,
    },
    "tool call": record(
        {
            "name": {"const": "get_weather"},
            "arguments": record(
                {"city": text(), "unit": one_of("celsius", "fahrenheit")},
                additionalProperties=False,
            ),
        }
    ),
    "two tools": {
        "anyOf": [
            record(
                {"name": {"const": "search"}, "arguments": record({"query": text(maxLength=80)})}
            ),
            record(
                {
                    "name": {"const": "open"},
                    "arguments": record({"url": text(format="uri", maxLength=80)}),
                }
            ),
        ]
    },
    "coordinates": record(
        {"lat": number(minimum=-90, maximum=90), "lon": number(minimum=-180, maximum=180)}
    ),
    "rgb": {"type": "array", "prefixItems": [integer(0, 255)] * 3, "items": False, "minItems": 3},
    "old tuple": {
        "$schema": DRAFT_7,
        "type": "array",
        "items": [text(maxLength=5), integer(0, 9)],
        "additionalItems": False,
        "minItems": 1,
    },
    "matrix": array(array(number(minimum=-1, maximum=1), 2, 2), 2, 2),
    "scores": {
        "type": "object",
        "patternProperties": {"^[A-Za-z ]{1,20}$": integer(0, 100)},
        "additionalProperties": False,
        "maxProperties": 3,
    },
    "labels": {
        "type": "object",
        "patternProperties": {"^[a-z]{1,8}$": text(maxLength=10)},
        "additionalProperties": False,
        "maxProperties": 3,
    },
    "environment": {
        "type": "object",
        "properties": {"PATH": text(maxLength=30)},
        "patternProperties": {"^X_[A-Z]{1,12}$": text(maxLength=10)},
        "additionalProperties": False,
        "maxProperties": 4,
        "required": ["PATH"],
    },
    "union with null": record({"nickname": {"type": ["string", "null"], "maxLength": 12}}),
    "many types": {"type": ["integer", "boolean", "null"], "minimum": 3, "maximum": 12},
    "typeless": {"minLength": 2, "maxLength": 6, "minimum": 0, "maxItems": 1, "maxProperties": 1},
    "grade": one_of("A", "B", "C", "D", "E", "F"),
    "mixed enum": one_of(1, 2.5, "two", True, None, [1, "x"], {"k": 1}),
    "constant": {"const": {"version": 2, "tags": ["a", "b"]}},
    "unicode enum": one_of("één", "日本", "😀", 'quote " and \\', "tab\there"),
    "network": record(
        {
            "host": text(format="hostname"),
            "v4": text(format="ipv4"),
            "v6": text(format="ipv6"),
            "port": integer(1, 65535),
        }
    ),
    "times": record(
        {"day": text(format="date"), "at": text(format="time"), "lasts": text(format="duration")}
    ),
    "identifier": record({"id": text(format="uuid"), "slug": text(pattern="^[a-z0-9-]{1,40}$")}),
    "even numbers": array({"type": "integer", "multipleOf": 2}, 1, 3),
    "quarters": array(number(multipleOf=0.25, minimum=-10, maximum=10), 1, 3),
    "open interval": number(exclusiveMinimum=0, exclusiveMaximum=1),
    "narrow": number(minimum=-1.5, exclusiveMaximum=-0.25),
    "large integers": array({"type": "integer"}, 1, 3),
    "any number": array(number(), 1, 3),
    "negative": integer(-1000, -7),
    "all of": {
        "allOf": [
            record({"id": integer(1, 99)}),
            record({"name": text(maxLength=10)}),
            {"maxProperties": 2},
        ]
    },
    "reference with siblings": {
        "$defs": {"named": record({"name": text(maxLength=8)})},
        "$ref": "#/$defs/named",
        "properties": {"age": integer(0, 9)},
        "required": ["age"],
        "maxProperties": 2,
    },
    "one of two keys": {
        "type": "object",
        "properties": {"email": text(format="email"), "phone": text(pattern="^[0-9]{3,9}$")},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    },
    "by type": {
        "oneOf": [text(maxLength=5), integer(0, 9), array(BOOLEAN, 0, 2), {"type": "null"}]
    },
    "by range": {"oneOf": [integer(0, 9), integer(20, 29), number(minimum=30.5, maximum=31)]},
    "pattern within": record({"code": text(pattern="[0-9]{3}", maxLength=8)}),
    "pattern and format": text(format="date", pattern="^20"),
    "words": array(text(pattern=r"^\w+( \w+)*$", maxLength=20), 1, 2),
    "anything inside": record(
        {
            "payload": {"type": ["object", "string"], "maxLength": 40, "maxProperties": 2},
            "ok": BOOLEAN,
        }
    ),
    "annotated": {
        "$schema": DRAFT_2020,
        "$id": "https://example.com/annotated",
        "$comment": "nothing of this restricts anything but the type",
        "title": "Annotated",
        "description": "d",
        "type": "object",
        "properties": {
            "a": {
                **text(maxLength=5),
                "default": "x",
                "examples": ["y"],
                "deprecated": True,
                "readOnly": True,
                "x-order": 1,
            }
        },
        "required": ["a"],
    },
}
