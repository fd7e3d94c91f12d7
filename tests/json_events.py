"""The lines of `--json`, checked against the schema in the manual."""

import json
from functools import cache
from typing import Any

import jsonschema

from tests import docs


@cache
def schema() -> Any:
    return json.loads(docs.text().split("```json schema\n")[1].split("```")[0])


def events_of(stdout: str) -> list[dict[str, Any]]:
    """Each line as an event of the schema."""
    events = [json.loads(line) for line in stdout.splitlines()]
    for event in events:
        jsonschema.validate(event, schema())
    return events
