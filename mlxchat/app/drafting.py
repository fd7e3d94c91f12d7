"""Makes the drafter of a model, with the row costs measured on this machine before, if any.

The costs are kept on disk, so that the same command drafts the same tokens again.
"""

import hashlib
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from mlxchat import paths, platform
from mlxchat.engine.drafts import Drafter
from mlxchat.engine.lookup import History
from mlxchat.engine.row_costs import ROWS, RowCosts
from mlxchat.files import exclusive, make_private_directory, open_to_read, write_atomically
from mlxchat.models.model import Model
from mlxchat.settings import MAX_DRAFT, GenerationSettings

MAX_FILE_BYTES = 1 << 20


def make_drafter(
    model: Model, generation: GenerationSettings, notify: Callable[[str], None]
) -> Drafter | None:
    """None if lookup is off or the model is shared by several machines."""
    if generation.lookup is False or model.peers is not None:
        return None
    key = _key(model)

    def keep(context: int, costs: RowCosts) -> None:
        try:
            _write(key, context, costs)
        except OSError as error:
            notify(f"cannot write {paths.row_costs_file()}: {error.strerror}")

    limit = generation.num_draft_tokens or MAX_DRAFT
    return Drafter(History(), limit, _read(paths.row_costs_file()).get(key, {}), keep)


def _key(model: Model) -> str:
    """Identifies everything that the costs depend on."""
    parts = (model.config, str(model.dtype), platform.backend_name(), platform.device_name())
    described = json.dumps([*parts, version("mlx")], sort_keys=True, default=str)
    return hashlib.blake2b(described.encode(), digest_size=16).hexdigest()


def _write(key: str, context: int, costs: RowCosts) -> None:
    path = paths.row_costs_file()
    make_private_directory(path.parent)
    # Others keep the costs of their models in the same file.
    with exclusive(path.parent):
        known = _read(path)
        known.setdefault(key, {})[context] = costs
        data = {
            key: {context: list(costs.by_rows.values()) for context, costs in contexts.items()}
            for key, contexts in known.items()
        }
        write_atomically(path, json.dumps(data, indent=1).encode(), full_sync=False)


def _read(path: Path) -> dict[str, dict[int, RowCosts]]:
    """The costs of each model by context; none if the file is missing or damaged: they are measured
    again."""
    try:
        with open_to_read(path) as file:
            saved = json.loads(file.read(MAX_FILE_BYTES))
        return {
            key: {int(context): _costs(seconds) for context, seconds in contexts.items()}
            for key, contexts in saved.items()
        }
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _costs(seconds: list[float]) -> RowCosts:
    by_rows = dict(zip(ROWS, map(float, seconds), strict=True))
    if not all(0 < each < float("inf") for each in by_rows.values()):
        raise ValueError("not a duration")
    return RowCosts(by_rows)
