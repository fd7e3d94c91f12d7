"""The lines of `--json`, checked against the schema in the manual."""

import json
from functools import cache
from typing import Any

from jsonschema.validators import validator_for

from tests import docs


@cache
def validator() -> Any:
    """Of the schema, which is checked itself only once."""
    written = json.loads(docs.text().split("```json schema\n")[1].split("```")[0])
    kind = validator_for(written)
    kind.check_schema(written)
    return kind(written)


def events_of(stdout: str) -> list[dict[str, Any]]:
    """Each line as an event of the schema."""
    events = [json.loads(line) for line in stdout.splitlines()]
    for event in events:
        validator().validate(event)
    return events
