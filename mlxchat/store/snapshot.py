"""A snapshot: the complete state of a cache and its ledger, in one file.

Entries are in temporal order, without padding, and with the numbers that restore each one's slot,
so that the next output matches bit for bit. Facts added by the caller identify the conversation or
generation.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from mlxchat import platform
from mlxchat.cache import Cache, tokens_held
from mlxchat.cache.layers import recurrent_states, windows
from mlxchat.cache.ring import Entries, Placement
from mlxchat.chat.ledger import Ledger
from mlxchat.errors import SnapshotBroken, SnapshotError, SnapshotTooLarge
from mlxchat.store import tensor_file
from mlxchat.store.fingerprint import Fingerprint, differences
from mlxchat.store.tensor_file import Tensor
from mlxchat.text.spans import TokenIds
from mlxchat.units import format_bytes

# What is restored, and the copy that the next snapshot takes.
COPIES = 2


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A frozen state, which any thread may write while the cache continues to change."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]

    def write(self, path: Path) -> int:
        """Replace `path` atomically; return its size in bytes. Raises OSError."""
        return tensor_file.write(path, self.tensors, self.facts)


@dataclass(frozen=True, slots=True)
class Restored:
    """The contents of a snapshot. `facts` are the caller's own JSON, unchecked."""

    cache: Cache
    ledger: Ledger
    facts: dict[str, Any]


def take(cache: Cache, ledger: Ledger, fingerprint: Fingerprint, facts: dict[str, Any]) -> Snapshot:
    """Freeze the state, with at most one copy of the window."""
    assert len(ledger) >= tokens_held(cache)
    arrays: dict[str, mx.array | None] = {}
    for i, window in enumerate(windows(cache)):
        for name, array in window.entries._asdict().items():
            arrays[f"window.{i}.{name}"] = array
    for i, state in enumerate(recurrent_states(cache)):
        for j, array in enumerate(state.cache):
            arrays[f"recurrent.{i}.{j}"] = array
    tensors = tensor_file.hold({name: each for name, each in arrays.items() if each is not None})
    tensors["ledger"] = Tensor("I32", ledger.ids.shape, ledger.ids.astype(np.int32))
    own = {
        "fingerprint": fingerprint,
        "placement": [asdict(window.placement) for window in windows(cache)],
        "ledger": {
            "window": ledger.window,
            "keep": ledger.keep,
            "overflowed": ledger.overflowed,
        },
        "facts": facts,
    }
    return Snapshot(tensors, own)


def restore(path: Path, empty: Cache, fingerprint: Fingerprint) -> Restored:
    """Read a snapshot into a fork of `empty`, a cache made for the same fingerprint.

    Raises SnapshotError naming the differences, SnapshotTooLarge if it does not fit into memory
    now, SnapshotBroken if the file is damaged or inconsistent, OSError if it cannot be read.
    """
    bits, own = tensor_file.read(path)
    different = differences(fingerprint, own.get("fingerprint", {}))
    if different:
        raise SnapshotError(f"{path} was made with a {' and a '.join(different)}")
    needed_bytes = COPIES * sum(each.bits.nbytes for each in bits.values())
    # Metal's recommendation is no limit.
    certain = platform.shortage_is_certain()
    free_bytes = (platform.free_memory_bytes if certain else platform.obtainable_memory_bytes)()
    if needed_bytes > free_bytes:
        sizes = f"{format_bytes(needed_bytes)} of memory, but only {format_bytes(free_bytes)}"
        raise SnapshotTooLarge(f"{path} needs {sizes} is free")
    try:
        return _restored(tensor_file.loaded(bits), own, empty)
    except (KeyError, ValueError, TypeError) as error:
        raise SnapshotBroken(f"{path} is inconsistent: {error}") from error


def _restored(tensors: dict[str, mx.array], own: dict[str, Any], empty: Cache) -> Restored:
    cache = empty.fork()
    for i, (window, saved) in enumerate(zip(windows(cache), own["placement"], strict=True)):
        entries = Entries(*(tensors.get(f"window.{i}.{name}") for name in Entries._fields))
        window.restore(entries, Placement.of(saved))
    for i, state in enumerate(recurrent_states(cache)):
        state.cache = [tensors.get(f"recurrent.{i}.{j}") for j in range(len(state.cache))]
    ids: TokenIds = np.array(tensors["ledger"])
    return Restored(cache, Ledger(ids=ids, **own["ledger"]), own["facts"])
