"""Converts a run's request to the record in its checkpoint, and back."""

import time
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from mlxchat.app.loaded import Loaded
from mlxchat.request import Overnight, Request, Setup
from mlxchat.store.run_record import RunRecord


def record_of(request: Request, loaded: Loaded) -> RunRecord:
    """The record that a later process needs, including values chosen automatically."""
    setup, long = request.setup, request.overnight
    model = setup.model
    if model is None or Path(model).expanduser().exists():
        model = loaded.found
    path = long.output_path()
    assert path is not None
    return RunRecord(
        model=model,
        adapter=None if loaded.model.adapter is None else loaded.model.adapter.name,
        offline=setup.offline,
        device=setup.device,
        dtype=setup.dtype,
        pipeline=setup.pipeline,
        cache=loaded.settings,
        sampling=loaded.sampling,
        generation=request.generation_settings(),
        raw=request.raw,
        hides_thoughts=request.hides_thoughts,
        output=str(path.resolve()),
        rotate_bytes=long.rotate_bytes,
        checkpoint_every=long.checkpoint_every,
        until_s=long.deadline_s(time.time()),
        max_bytes=long.max_bytes,
        on_loop=long.action_on_loop(of_form=False),
        metrics=None if long.metrics is None else str(long.metrics.resolve()),
        kept=dict(request.kept),
    )


def request_of(record: RunRecord, directory: Path, changes: Mapping[str, Any]) -> Request:
    """The original request with the changed options."""
    sampling = asdict(record.sampling)
    seed = sampling.pop("seed")
    setup = Setup(
        model=record.model,
        adapter=record.adapter,
        offline=record.offline,
        device=record.device,
        dtype=record.dtype,
        window=record.cache.max_kv_size,
        keep=record.cache.keep,
        prefill_step_size=record.cache.prefill_step_size,
        sampling=sampling,
        seed=seed,
        pipeline=record.pipeline,
    )
    until_s = None if changes.keys() & {"until", "lasting_s"} else record.until_s
    overnight = Overnight(
        output=Path(record.output),
        rotate_bytes=record.rotate_bytes,
        checkpoint=directory,
        checkpoint_every=record.checkpoint_every,
        until=None if until_s is None else datetime.fromtimestamp(until_s).astimezone(),
        max_bytes=record.max_bytes,
        on_loop=record.on_loop,
        metrics=None if record.metrics is None else Path(record.metrics),
    )
    request = Request(
        setup=_changed(setup, changes),
        raw=record.raw,
        think="hide" if record.hides_thoughts else None,
        max_tokens=record.generation.max_tokens,
        stop=record.generation.stop,
        ignore_eos=record.generation.ignore_eos,
        overnight=_changed(overnight, changes),
        kept=record.kept,
    )
    return _changed(request, changes)


def _changed(value: Any, changes: Mapping[str, Any]) -> Any:
    """A dataclass with those changes that are among its fields."""
    names = {field.name for field in fields(value)}
    return replace(value, **{name: new for name, new in changes.items() if name in names})
