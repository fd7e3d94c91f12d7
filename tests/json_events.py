"""The lines of `--json`, checked against README.md's schema."""

import json
from functools import cache
from typing import Any

import jsonschema

from tests import readme


@cache
def _schema() -> Any:
    return json.loads(readme.PATH.read_text().split("```json schema\n")[1].split("```")[0])


def events_of(stdout: str) -> list[dict[str, Any]]:
    """Each line as an event of the schema."""
    events = [json.loads(line) for line in stdout.splitlines()]
    for event in events:
        jsonschema.validate(event, _schema())
    return events
