"""Converts a run's request to the record in its checkpoint, and back."""

import time
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from mlxchat.app.loaded import Loaded
from mlxchat.request import Request
from mlxchat.store.run_record import RunRecord


def record_of(request: Request, loaded: Loaded) -> RunRecord:
    """The record that a later process needs, including values chosen automatically."""
    setup, long = request.setup, request.overnight
    model = setup.model
    if model is None or Path(model).expanduser().exists():
        model = loaded.found
    path, until_s = long.output_path(), long.deadline_s(time.time())
    assert path is not None
    setup = replace(
        setup,
        model=model,
        adapter=None if loaded.model.adapter is None else loaded.model.adapter.name,
        window=loaded.settings.max_kv_size,
        keep=loaded.settings.keep,
        prefill_step_size=loaded.settings.prefill_step_size,
        sampling={},
    )
    long = replace(
        long,
        output=path.resolve(),
        until=None if until_s is None else datetime.fromtimestamp(until_s).astimezone(),
        lasting_s=None,
    )
    request = replace(
        request,
        prompt=None if request.prompt is None else _readable(request.prompt),
        files=tuple(map(_readable, request.files)),
        blocks=tuple(map(_readable, request.blocks)),
        setup=setup,
        overnight=long,
    )
    return RunRecord(2, request, loaded.sampling)


def _readable(text: str) -> str:
    """Without bytes of the shell that are not UTF-8: what was read of them is in the tokens."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def request_of(record: RunRecord, directory: Path, changes: Mapping[str, Any]) -> Request:
    """The original request with the changed options."""
    request, sampling = record.request, asdict(record.sampling)
    setup = replace(request.setup, seed=sampling.pop("seed"), sampling=sampling)
    long = replace(request.overnight, checkpoint=directory)
    if changes.keys() & {"until", "lasting_s"}:
        long = replace(long, until=None)
    request = replace(request, setup=_changed(setup, changes), overnight=_changed(long, changes))
    return _changed(request, changes)


def _changed(value: Any, changes: Mapping[str, Any]) -> Any:
    """A dataclass with those changes that are among its fields."""
    names = {field.name for field in fields(value)}
    return replace(value, **{name: new for name, new in changes.items() if name in names})
