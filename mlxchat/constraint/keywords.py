"""What happens to each keyword of JSON Schema: drafts 6, 7, 2019-09 and 2020-12.

llguidance enforces some, skips annotations, and ignores unknown ones without a word, so every
keyword of a schema is looked up here first, and whatever is not listed is an error.
"""

# Enforced, all of them in every draft that has them.
ENFORCED = frozenset(
    {
        *("type", "enum", "const", "$ref"),
        *("allOf", "anyOf", "oneOf"),
        *("properties", "patternProperties", "additionalProperties", "required"),
        *("minProperties", "maxProperties"),
        *("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
        *("minLength", "maxLength", "pattern", "format"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    }
)

# These do not affect which values are valid. `discriminator` and `example` are OpenAPI's.
ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "example", "examples", "deprecated"),
        *("readOnly", "writeOnly", "discriminator"),
        *("$comment", "$schema", "$id", "$anchor", "$defs", "definitions"),
    }
)

# Valid keywords that cannot be enforced, and what to write instead, if there is anything.
REFUSED = {
    "not": "",
    "if": "use anyOf",
    "then": "use anyOf",
    "else": "use anyOf",
    "contains": "",
    "minContains": "",
    "maxContains": "",
    "uniqueItems": "",
    "propertyNames": "use patternProperties",
    "dependencies": "use anyOf",
    "dependentRequired": "use anyOf",
    "dependentSchemas": "use anyOf",
    "unevaluatedItems": "use items",
    "unevaluatedProperties": "use additionalProperties",
    "$dynamicRef": "use $ref",
    "$dynamicAnchor": "use $ref",
    "$recursiveRef": "use $ref",
    "$recursiveAnchor": "use $ref",
    "$vocabulary": "",
    "contentEncoding": "use pattern",
    "contentMediaType": "",
    "contentSchema": "",
}

# Programs mark their own annotations with this prefix.
OWN_PREFIX = "x-"

# Values of `$schema`, without scheme and fragment. Draft 4 has other meanings for `id` and
# exclusive bounds.
_SITE = "json-schema.org"
OLD_DRAFTS = frozenset(
    {f"{_SITE}/draft-06/schema", f"{_SITE}/draft-07/schema", f"{_SITE}/draft/2019-09/schema"}
)
NEWEST_DRAFT = f"{_SITE}/draft/2020-12/schema"
