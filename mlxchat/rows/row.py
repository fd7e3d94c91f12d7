"""One row of a batch, and the checks of its texts."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from mlxchat.errors import UsageError
from mlxchat.request.batch import RowTemplate
from mlxchat.text.template import Message
from mlxchat.units import beginning

RowId = str | int

MAX_ERROR_CHARS = 1_000
QUOTED_CHARS = 60

# A longer line, record or file is an error.
MAX_CHARS = 16_000_000
TOO_LONG = f"longer than {MAX_CHARS:,} characters"


class RowError(Exception):
    """A malformed row: the message is for its line in the output."""


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt or messages, with options.

    `number` is that of the line, record or file, from 1. `id` is as given, so that 7 and "7" are
    two ids; a row of JSON without one has None, and is called by its number. `options`
    are checked values by field, such as temp and max_tokens, except that constraints are only
    checked for their types. A system message is not in `messages` but in the options. A malformed
    row has an `error` and nothing to run; its `id` is None if it has no valid and unique one.
    `openai` says whether it has the form of OpenAI's batch files, which its result then gets.
    """

    number: int
    id: RowId | None
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    error: str | None = None
    openai: bool = False

    @property
    def key(self) -> bytes:
        """What identifies the row among all rows and in a second run: a hash of 16 bytes."""
        return key_of(self.id, self.number)

    def broken(self, error: object, **changes: Any) -> "Row":
        """The row with an error instead of something to run."""
        message = beginning(str(error), MAX_ERROR_CHARS)
        return replace(self, prompt=None, messages=None, options={}, error=message, **changes)

    def filled(self, template: RowTemplate, values: Mapping[str, str]) -> "Row":
        """The row with the template's prompt. Raises RowError."""
        return replace(self, prompt=check_text("prompt", template.fill(values)))


def key_of(id_: RowId | None, number: int | None) -> bytes:
    """The key of a row with this id, or if it has none, this number."""
    named = ["id", id_] if id_ is not None else ["row", number]
    return blake2b(json.dumps(named).encode(), digest_size=16).digest()


def check_text(name: str, text: str) -> str:
    """The text, if it is not blank. Raises RowError, also for bytes that were not UTF-8, which are
    surrogates in it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) - 0xDC00
        raise RowError(f"not UTF-8: invalid byte 0x{byte:02X}; convert the file to UTF-8") from None
    if "\0" in text:
        raise RowError(f"{name} contains a NUL character")
    if not text.strip():
        raise RowError(f"{name} is empty")
    return text


def check_fields(template: RowTemplate, known: Collection[str]) -> None:
    """Raise UsageError for a field that rows do not have."""
    for name in template.fields:
        if name not in known:
            fields = ", ".join(shortened(each) for each in list(known)[:20])
            raise UsageError(
                f"rows have no field {shortened(name)}, only {fields}: use those in --template"
            )


def shortened(value: Any) -> str:
    """The value in one short line."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value) if isinstance(value, bool | None) else repr(value)
    return beginning(text, QUOTED_CHARS)
