"""What a checkpoint's run.json holds: what was asked, and how far it came. Checked when read."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from mlxchat.errors import UsageError
from mlxchat.settings import CacheSettings, GenerationSettings, OnLoop, SamplingSettings

VERSION = 1


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run, with whatever was chosen for the user when it began: it continues with the same.

    `until_s` is in seconds since the epoch. `kept` is the caller's own. `steps` are `[size, count]`
    of the steps that the prompt was read in; `ended` is the reason if there is nothing to continue.
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
    steps: tuple[tuple[int, ...], ...] = ()
    ended: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, value: Any) -> "RunRecord":
        """Raises ValueError naming what is missing or of another type."""
        if not isinstance(value, dict) or value.get("version") != VERSION:
            raise ValueError(f"it is not of version {VERSION}")
        return _checked({k: v for k, v in value.items() if k != "version"}, cls, "the run")


def _checked(value: Any, hint: Any, name: str) -> Any:
    """The value as the type that `hint` names, made of what JSON has."""
    inner = get_args(hint)
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
        raise ValueError(f"its {name} is {value!r}")
    return value


def _dataclass(value: Mapping[str, Any], kind: Any, name: str) -> Any:
    hints = get_type_hints(kind)
    names = {field.name for field in fields(kind)}
    if value.keys() != names:
        strange = ", ".join(sorted(value.keys() ^ names))
        raise ValueError(f"{name} lacks a field, or has another one: {strange}")
    try:
        return kind(**{each: _checked(value[each], hints[each], each) for each in names})
    except UsageError as error:
        raise ValueError(str(error)) from error
