"""Options, each declared once, as a field of the dataclass that holds it.

    temp: float = option(0.0, "Temperature; 0 is greedy", Panel.SAMPLING, must=at_least(0))

The flag, environment variable, configuration key, `/set`, saved setting, help and check are derived
from it. `settings` and `request` declare the options; the command line decides how they look.
"""

import math
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from enum import EnumType, StrEnum
from functools import cache
from types import MappingProxyType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from mlxchat.errors import UsageError


class Panel(StrEnum):
    """Headings of the help page, in order."""

    INPUT = "Input"
    SESSION = "Session"
    MODEL = "Model"
    WINDOW = "Window"
    SAMPLING = "Sampling"
    ANSWER = "Answer"
    END = "Stopping"
    OUTPUT = "Output"
    OVERNIGHT = "Overnight runs"


@dataclass(frozen=True, eq=False)
class Must:
    """A constraint on an option's values: a check, and the words after "must" in its error."""

    words: str
    holds: Callable[[Any], bool]


def at_least(low: float, words: str = "") -> Must:
    return Must(words or f"be at least {low:g}", lambda value: low <= value < math.inf)


def finite() -> Must:
    return Must("be a finite number", math.isfinite)


def above(low: float, words: str = "") -> Must:
    return Must(words or f"be above {low:g}", lambda value: low < value < math.inf)


def between(low: float, high: float, words: str = "") -> Must:
    return Must(words or f"be between {low:g} and {high:g}", lambda value: low <= value <= high)


# The values of a boolean option as text.
SWITCH = ("on", "off")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Option:
    """How users set a field.

    `help` is a phrase of at most ten words; `--help` shows the option if it is `common`, else only
    `--help-all` does. `name` is the flag without dashes, `aliases` are other names, `short` is a
    letter. `parse` converts the written text to the value or raises ValueError; `written` is then
    the default as text. `if_unset` describes the default if it is not a value. `in_chat` means /set
    can change it, `saved` that sessions store it. A `many` option is repeatable, and `parse` gets
    all its values.
    """

    help: str
    group: Panel
    name: str = ""
    aliases: tuple[str, ...] = ()
    short: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    must: Must | None = None
    parse: Callable[[Any], Any] | None = None
    written: Any = None
    if_unset: str | None = None
    completes: str = ""
    many: bool = False
    negatable: bool = True
    common: bool = False
    in_chat: bool = False
    saved: bool = False
    field: str = ""
    type: Any = None
    default: Any = None

    @property
    def flag(self) -> str:
        """As messages name it: `--max-kv-size`."""
        return f"--{self.name}"

    def value_of(self, written: Any) -> Any:
        """The field's value, from a value of its type or, with `parse`, from text.

        Raises UsageError naming the flag.
        """
        if written is None:
            return None
        value = written
        if self.parse is not None:
            try:
                value = self.parse(written)
            except ValueError as error:
                raise UsageError(f"{self.flag} {error}") from error
        elif self.many:
            value = tuple(written)
        elif isinstance(self.type, EnumType) and written in list(self.type):
            value = self.type(written)
        self.check(value)
        return value

    def text_of(self, value: Any) -> str:
        """The inverse of `value_of_text`, for showing; the default's first words if unset."""
        if value is None and self.if_unset is not None:
            return self.if_unset.partition(",")[0]
        if isinstance(value, bool):
            return SWITCH[not value]
        return str(value)

    def value_of_text(self, text: str) -> Any:
        """Like `value_of`, but always from text. Raises UsageError."""
        if self.parse is not None or self.many:
            return self.value_of([text] if self.many else text)
        if self.type is bool:
            if text not in SWITCH:
                raise UsageError(f"{self.flag} must be on or off, got {text!r}")
            return text == "on"
        try:
            return self.value_of(self.type(text) if self.type in (int, float) else text)
        except ValueError:
            wanted = {int: "a whole number", float: "a number"}[self.type]
            raise UsageError(f"{self.flag} must be {wanted}, got {text!r}") from None

    def check(self, value: Any) -> None:
        """Raise UsageError naming the flag if the value is invalid."""
        if value is None:
            return
        for each in value if isinstance(value, tuple) else (value,):
            if self.choices and each not in self.choices:
                wanted = f"must be one of {', '.join(self.choices)}"
                raise UsageError(f"{self.flag} {wanted}, got {each!r}")
            if self.must is not None and not self.must.holds(each):
                raise UsageError(f"{self.flag} must {self.must.words}, got {each!r}")


def option(
    default: Any,
    help_text: str,
    group: Panel,
    *,
    factory: Callable[[], Any] | None = None,
    **more: Any,
) -> Any:
    """A dataclass field that users can set; `more` are fields of Option."""
    metadata = {"option": Option(help=help_text, group=group, **more)}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def same_as(kind: type, name: str, *, default: Any = MISSING, **other: Any) -> Any:
    """A field declared in another dataclass; `other` overrides fields of its Option."""
    declared = _fields(kind)[name]
    metadata = {"option": replace(declared.metadata["option"], **other)}
    if default is MISSING and declared.default_factory is not MISSING:
        return field(default_factory=declared.default_factory, metadata=metadata)
    return field(default=declared.default if default is MISSING else default, metadata=metadata)


@cache
def options_of(kind: type) -> MappingProxyType[str, Option]:
    """The options of a dataclass, by field name."""
    hints = get_type_hints(kind)
    return MappingProxyType(
        {
            name: replace(
                each.metadata["option"],
                field=name,
                name=each.metadata["option"].name or name.replace("_", "-"),
                many=each.metadata["option"].many or get_origin(hints[name]) is tuple,
                choices=each.metadata["option"].choices or _choices(hints[name]),
                type=_without_none(hints[name]),
                default=None if each.default is MISSING else each.default,
            )
            for name, each in _fields(kind).items()
            if "option" in each.metadata
        }
    )


def check_options(value: Any) -> None:
    """Raise UsageError for the first field with an invalid value."""
    for name, each in options_of(type(value)).items():
        each.check(getattr(value, name))


def flag(field_name: str) -> str:
    """The flag of a field that is named like it."""
    return f"--{field_name.replace('_', '-')}"


def _fields(kind: type) -> dict[str, Field[Any]]:
    return {each.name: each for each in fields(kind)}


def _choices(hint: Any) -> tuple[str, ...]:
    return tuple(str(each) for each in hint) if isinstance(hint, EnumType) else ()


def _without_none(hint: Any) -> Any:
    """The type without `None`."""
    if isinstance(hint, UnionType):
        kinds = [each for each in get_args(hint) if each is not type(None)]
        return kinds[0] if len(kinds) == 1 else hint
    return hint
