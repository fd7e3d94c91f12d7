"""The numbers and texts in a schema: whether they can be enforced exactly."""

from decimal import Decimal
from typing import Any

from mlxchat.constraint.json_path import Path, shorten
from mlxchat.constraint.schema_error import refuse

# Beyond this, programs that read numbers as doubles, and llguidance, round integers.
MAX_INTEGER = 2**53 - 1

# Numbers have at most nine decimals, or some models add digits without end.
FINEST = 1e-9

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")

# A mask tracks the remainder of each number.
MAX_MULTIPLE = 2_000

# JSON has short escapes for these; other control characters are kept out of answers.
_ESCAPED = "\b\f\n\r\t"


def checked_number(value: Any, path: Path) -> int | float:
    """The number at `path`. Raises SchemaError, as the others here do."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(path, f"must be a number, got {shorten(value)}")
    if abs(value) > MAX_INTEGER:
        refuse(path, "cannot be enforced exactly beyond 2^53")
    return value


def check_multiple(value: int | float, path: Path) -> None:
    if value <= 0:
        refuse(path, "must be positive")
    digits = "".join(map(str, Decimal(repr(value)).as_tuple().digits)).strip("0")
    if int(digits) > MAX_MULTIPLE:
        refuse(path, f"multiples of {shorten(value)} cannot be enforced: too many digits")


def allows_finest(*bounds: int | float) -> bool:
    """Whether numbers between these bounds, themselves excluded, can have nine decimals."""
    return all(round(bound, 8) == bound for bound in bounds)


def excludes_nothing(key: str, bound: Any) -> bool:
    """Whether the bound is beyond all numbers that are written anyway."""
    if isinstance(bound, bool) or not isinstance(bound, int | float):
        return False
    return (key in ("maximum", "exclusiveMaximum") and bound > MAX_INTEGER) or (
        key in ("minimum", "exclusiveMinimum") and bound < -MAX_INTEGER
    )


def check_literal(value: Any, path: Path) -> None:
    match value:
        case bool() | None:
            return
        case int() | float():
            checked_number(value, path)
        case str():
            _check_text(value, path)
        case list():
            for number, each in enumerate(value):
                check_literal(each, (*path, number))
        case dict():
            for key, each in value.items():
                check_literal(each, (*path, key))


def _is_control(char: str) -> bool:
    return (char < " " and char not in _ESCAPED) or char == "\x7f"


def _check_text(text: str, path: Path) -> None:
    wrong = next((char for char in text if _is_control(char)), None)
    if wrong is not None:
        refuse(path, f"control character U+{ord(wrong):04X} cannot be enforced")
