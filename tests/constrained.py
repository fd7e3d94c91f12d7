"""What constraints allow and refuse, without a model."""

from collections.abc import Callable
from typing import Any

import pytest

from mlxchat.constraint import library
from mlxchat.constraint.constraint import Constraint
from mlxchat.errors import UsageError


def accepted(constraint: Constraint, texts: list[str]) -> list[str]:
    """The texts that are complete answers, on a vocabulary of bytes."""
    matcher = library.new_matcher(library.byte_tokenizer(), constraint.grammar)
    found: list[str] = []
    for text in texts:
        data = list(text.encode())
        if matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting():
            found.append(text)
        if matcher.is_error():  # too complex
            return found
        matcher.reset()
    return found


def assert_works_or_is_refused(build: Callable[[Any], Constraint], value: Any) -> None:
    """A constraint made of anything is either usable, or a UsageError of one printable line."""
    try:
        constraint = build(value)
    except UsageError as error:
        message = str(error)
    else:
        accepted(constraint, ["\0", ""])
        return
    assert message.partition(": ")[0] in ("--schema", "--regex", "--choice", "--grammar")
    assert message.isprintable()
    assert len(message) < 500


def refusal(build: Callable[[Any], Constraint], value: Any) -> str:
    """The one line in which it is refused."""
    with pytest.raises(UsageError) as caught:
        build(value)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message
