"""Options, each declared once, as a field of the dataclass that holds it, and which exclude others.

    temp: float = option(0.0, "Temperature; 0 is greedy", must=at_least(0))

The flag, environment variable, configuration key, `/set`, saved setting, help and check are derived
from it. `settings` and `request` declare the options; the command line decides how they look.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from enum import EnumType, StrEnum
from functools import cache
from itertools import combinations
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from mlxchat.errors import UsageError


@dataclass(frozen=True, eq=False)
class Must:
    """A constraint on an option's values: a check, and the words after "must" in its error. `ends`
    are the values next to which others are invalid."""

    words: str
    holds: Callable[[Any], bool]
    ends: tuple[float, ...] = ()


NOT_EMPTY = Must("not be empty", bool)
A_FILE = Must("be a file (leave it out for stdout)", lambda path: str(path) != "-")

# Of options whose text may be that of a path, which may have any bytes.
OF_PATHS = ("DIR", "FILE", "MODEL", "PATTERN", "SCHEMA")


def check_utf8(name: str, *texts: Any) -> None:
    """Raise UsageError for text with surrogates, which stand for bytes that are not UTF-8."""
    if any(isinstance(x, str) and x.encode("utf-8", "replace").decode() != x for x in texts):
        raise UsageError(f"{name} is not UTF-8 text")


def at_least(low: float) -> Must:
    return Must(f"be at least {low:g}", lambda value: low <= value, (low,))


def between(low: float, high: float) -> Must:
    return Must(f"be between {low:g} and {high:g}", lambda value: low <= value <= high, (low, high))


# The values of a boolean option as text, and how they may be written.
SWITCH = ("on", "off")
SWITCHES = {"on": True, "off": False, "true": True, "false": False, "1": True, "0": False}

# How to read values from text, what they must be, and their types in Python.
FROM_TEXT: Mapping[type, tuple[Callable[[str], Any], str, Any]] = {
    int: (int, "a whole number", int),
    float: (float, "a number", int | float),
    bool: (lambda text: SWITCHES[text.lower()], "on or off", bool),
}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Option:
    """How users set a field.

    `help` is a phrase of at most ten words; `--help` shows the option if it is `common`, else only
    `--help-all` does. `name` is the flag without dashes, `short` is a letter; `aliases` are other
    programs' names, which work but are not in help. `parse` converts the written text to the value
    or raises ValueError. `if_unset` describes the default if it is not a value. `in_chat` means
    /set can change it, `saved` that sessions store it; it has no effect while the field that it
    `needs` is 0. The field gives `field`, `type` and `default`, and whether there can be `many`:
    then the option is repeatable, and `parse` gets all its values.
    """

    help: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    short: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    must: Must | None = None
    parse: Callable[[Any], Any] | None = None
    if_unset: str | None = None
    completes: str = ""
    needs: str = ""
    common: bool = False
    in_chat: bool = False
    saved: bool = False
    field: str = ""
    type: Any = None
    many: bool = False
    default: Any = None

    @property
    def flag(self) -> str:
        """As messages name it: `--max-kv-size`."""
        return f"--{self.name}"

    def value_of(self, written: Any) -> Any:
        """The field's value, from one of its type or from text. Raises UsageError."""
        if written is None:
            return None
        value = [written] if self.many and isinstance(written, str | Path) else written
        if self.type is not Path and self.metavar not in OF_PATHS:
            check_utf8(self.flag, *(value if isinstance(value, list | tuple) else [value]))
        if self.parse is not None:
            try:
                value = self.parse(value)
            except ValueError as error:
                raise UsageError(f"{self.flag} {error}") from error
        elif self.many:
            value = tuple(value)
        elif isinstance(value, str) and self.type in FROM_TEXT:
            read, wanted, _ = FROM_TEXT[self.type]
            try:
                value = read(value)
            except (ValueError, KeyError):
                raise UsageError(f"{self.flag} must be {wanted}, got {value!r}") from None
        self.check(value)
        return self.type(value) if isinstance(self.type, EnumType) else value

    def text_of(self, value: Any) -> str:
        """The value as text, for showing; the default's first words if unset."""
        if value in (None, self.default) and self.if_unset is not None:
            return self.if_unset.partition(",")[0]
        return SWITCH[not value] if isinstance(value, bool) else str(value)

    def check(self, value: Any) -> None:
        """Raise UsageError naming the flag if the value is invalid."""
        if value is None:
            return
        for each in value if isinstance(value, tuple) else (value,):
            got = each if isinstance(each, Path) else repr(each)
            if self.type in FROM_TEXT and not isinstance(each, FROM_TEXT[self.type][2]):
                raise UsageError(f"{self.flag} must be {FROM_TEXT[self.type][1]}, got {got}")
            if isinstance(each, float) and not math.isfinite(each):
                raise UsageError(f"{self.flag} must be a finite number, got {got}")
            if self.choices and each not in self.choices:
                raise UsageError(f"{self.flag} must be one of {', '.join(self.choices)}, got {got}")
            if self.must is not None and not self.must.holds(each):
                raise UsageError(f"{self.flag} must {self.must.words}, got {got}")


def option(default: Any, help_text: str, **more: Any) -> Any:
    """A dataclass field that users can set; `more` are fields of Option. A type makes defaults."""
    metadata = {"option": Option(help=help_text, **more)}
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def same_as(kind: type, name: str, *, default: Any = MISSING, **other: Any) -> Any:
    """A field declared in another dataclass; `other` overrides fields of its Option."""
    declared = next(each for each in fields(kind) if each.name == name)
    metadata = {"option": replace(declared.metadata["option"], **other)}
    if default is MISSING and declared.default_factory is not MISSING:
        return field(default_factory=declared.default_factory, metadata=metadata)
    return field(default=declared.default if default is MISSING else default, metadata=metadata)


@cache
def options_of(kind: type) -> MappingProxyType[str, Option]:
    """The options of a dataclass, by field name: its own before those it inherits."""
    hints = get_type_hints(kind)
    declared = {each.name: each for each in fields(kind) if "option" in each.metadata}
    names = (name for base in kind.__mro__ for name in getattr(base, "__annotations__", ()))
    found = {name: _completed(declared[name], hints[name]) for name in names if name in declared}
    return MappingProxyType(found)


def changed(value: Any, changes: Mapping[str, Any]) -> Any:
    """The dataclass with those changes that are of its options."""
    known = options_of(type(value))
    return replace(value, **{name: new for name, new in changes.items() if name in known})


def in_home(path: str | Path) -> Path:
    """The path, in the home directory if it begins with ~, as a shell would."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def _completed(declared: Field[Any], hint: Any) -> Option:
    """The option with what follows from its field: a path, an enumeration, a tuple, a default."""
    option: Option = declared.metadata["option"]
    kinds = [each for each in get_args(hint) if each is not type(None)]
    kind = kinds[0] if isinstance(hint, UnionType) and len(kinds) == 1 else hint
    return replace(
        option,
        field=declared.name,
        name=option.name or declared.name.replace("_", "-"),
        many=get_origin(hint) in (tuple, Mapping),
        choices=option.choices or (tuple(map(str, kind)) if isinstance(kind, EnumType) else ()),
        parse=option.parse or (in_home if kind is Path else None),
        type=kind,
        default=None if declared.default is MISSING else declared.default,
    )


def check_options(value: Any, *parts: Any) -> None:
    """Raise UsageError for the first invalid value, and for options that exclude each other."""
    for name, each in options_of(type(value)).items():
        given = getattr(value, name)
        # From Python, a path, a choice, one of several texts or a list may be given as it is.
        if isinstance(given, Path) and each.type is str:
            given = str(given)
        if isinstance(given, str | Path | list) and (each.many or each.parse or each.choices):
            given = each.value_of(given)
        object.__setattr__(value, name, given)
        each.check(given)
    refuse_pairs(value, *parts)


def flag(field_name: str) -> str:
    """The flag of a field that is named like it."""
    return f"--{field_name.replace('_', '-')}"


# Options that exclude each other

CONSTRAINTS = ("schema", "schema_multi", "regex", "choice", "grammar")
INPUT_FORMS = ("lines", "csv", "pattern")
READINGS = ("overflow=passages", "overflow=map")
OF_TEMPLATE = (
    *("system", "think", "think_budget", "template_args", "schema_prompt", "prefill"),
    *("chat_template", *READINGS),
)

# At most one of each can be given.
ONE_OF = (CONSTRAINTS, ("until", "lasting_s"), INPUT_FORMS, ("latest", "session", "save"))

# What needs one of these. If it is only configured, it is ignored without them.
NEEDED = {
    "schema_prompt": ("schema", "schema_multi"),
    "logprobs": ("events",),
    "checkpoint_every": ("checkpoint",),
}

# A field, those that it excludes, and what to say after both, or instead. A field counts if it is
# not at its default; `overflow=map` stands for one of its values.
PAIRS = (
    ("raw", OF_TEMPLATE, "{other} needs the chat template, which --raw bypasses"),
    ("checkpoint", ("lookup",), ": a resumed run must write the same bytes"),
    ("checkpoint", (*CONSTRAINTS, "extract", "chat_template", "prefill", "overflow=map"), ""),
    ("blocks", ("checkpoint", *READINGS), ": pass the documents with --file"),
    ("blocks", ("prefix_cache",), ""),
    ("events", ("checkpoint", "extract"), ""),
    *((each, CONSTRAINTS, "") for each in ("ignore_eos", "min_tokens")),
    *((each, ("extract",), "") for each in CONSTRAINTS),
    *((one, (other,), "") for each in ONE_OF for other, one in combinations(each, 2)),
)


def refuse_pairs(*values: Any, constraint: str | None = None) -> None:
    """Raise UsageError for options of these dataclasses that exclude each other. `constraint` is a
    field of Answer that constrains a message or a row of its own."""
    given = dict(each for value in values for each in _given(value))
    if constraint is not None:
        given[constraint] = flag(constraint)
    for name, others, text in PAIRS:
        for other in others:
            if name in given and other in given:
                both = f"{given[other]} and {given[name]} cannot be combined{text}"
                raise UsageError(text.format(other=given[other]) if "{" in text else both)
    flags = {name: each.flag for one in values for name, each in options_of(type(one)).items()}
    for name, needed in NEEDED.items():
        if name in given and needed[0] in flags and not given.keys() & {*needed}:
            raise UsageError(f"{given[name]} needs {flags[needed[0]]}")


def _given(value: Any) -> Iterator[tuple[str, str]]:
    """The fields that are not at their defaults, as the table and as messages name them."""
    for name, each in options_of(type(value)).items():
        chosen = getattr(value, name)
        if isinstance(chosen, StrEnum):
            yield f"{name}={chosen}", f"{each.flag} {chosen}"
        elif chosen != each.default if type(chosen) is int else bool(chosen) != bool(each.default):
            yield name, f"--no-{each.name}" if chosen is False else each.flag
