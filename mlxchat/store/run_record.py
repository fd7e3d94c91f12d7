"""The content of a checkpoint's run.json: the request, and its progress. Checked when read."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from mlxchat.errors import UsageError
from mlxchat.settings import CacheSettings, GenerationSettings, OnLoop, SamplingSettings

VERSION = 1
# Fields that earlier records do not have; their defaults are what those runs did.
ADDED = {
    *("adapter", "min_tokens", "presence_penalty", "frequency_penalty"),
    *(
        "dry_multiplier",
        "dry_base",
        "dry_allowed_length",
        "top_n_sigma",
        "xtc_probability",
        "xtc_threshold",
        "logit_bias",
    ),
}


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run, including the choices made for the user when it began, so that it continues the same.

    `until_s` is in seconds since the epoch. `kept` is the caller's own. `steps` are `[size, count]`
    of the steps the prompt was prefilled in. `ended` is why there is nothing to continue, if so.
    """

    model: str
    offline: bool
    device: str
    dtype: str
    pipeline: bool
    cache: CacheSettings
    sampling: SamplingSettings
    generation: GenerationSettings
    raw: bool
    hides_thoughts: bool
    output: str
    rotate_bytes: int | None
    checkpoint_every: int
    until_s: float | None
    max_bytes: int | None
    on_loop: OnLoop
    metrics: str | None
    kept: dict[str, bool | None]
    adapter: str | None = None
    steps: tuple[tuple[int, ...], ...] = ()
    ended: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, value: Any) -> "RunRecord":
        """Raises ValueError naming a field that is missing or has the wrong type."""
        if not isinstance(value, dict) or value.get("version") != VERSION:
            raise ValueError(f"not version {VERSION} of the format")
        return _checked({k: v for k, v in value.items() if k != "version"}, cls, "the run")


def _checked(value: Any, hint: Any, name: str) -> Any:
    """Convert a JSON value to the type `hint`."""
    inner = get_args(hint)
    if get_origin(hint) is Union:
        # A number or one of some words.
        return value if value in get_args(inner[1]) else _checked(value, inner[0], name)
    if isinstance(hint, UnionType):
        return None if value is None else _checked(value, inner[0], name)
    if is_dataclass(hint) and isinstance(value, Mapping):
        return _dataclass(value, hint, name)
    if get_origin(hint) is tuple and isinstance(value, list):
        return tuple(_checked(each, inner[0], name) for each in value)
    if get_origin(hint) is dict and isinstance(value, dict):
        return {key: _checked(each, inner[1], name) for key, each in value.items()}
    return _single(value, hint, name)


def _single(value: Any, hint: Any, name: str) -> Any:
    if hint is OnLoop and isinstance(value, str):
        return OnLoop(value)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise ValueError(f"invalid {name}: {value!r}")
    return value


def _dataclass(value: Mapping[str, Any], kind: Any, name: str) -> Any:
    hints = get_type_hints(kind)
    names = {field.name for field in fields(kind)}
    if strange := (value.keys() ^ names) - (ADDED - value.keys()):
        listed = ", ".join(sorted(strange))
        raise ValueError(f"{name} has missing or unknown fields: {listed}")
    try:
        return kind(**{each: _checked(value[each], hints[each], each) for each in value})
    except UsageError as error:
        raise ValueError(str(error)) from error
