"""A snapshot: the complete state of a cache and its ledger, in one file.

Entries are in temporal order, without padding, and with the numbers that restore each one's slot,
so that the next output matches bit for bit. Facts added by the caller identify the conversation or
generation.
"""

from dataclasses import asdict, astuple, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat import platform
from mlxchat.cache import Cache, WindowCache, run_lazily, tokens_held
from mlxchat.cache.layers import recurrent_states, windows
from mlxchat.cache.placement import Entries, Placement
from mlxchat.chat.ledger import Ledger
from mlxchat.errors import CacheError, SnapshotBroken, SnapshotMismatch, SnapshotTooLarge
from mlxchat.store import tensor_file
from mlxchat.store.fingerprint import Fingerprint
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
        "fingerprint": asdict(fingerprint),
        "placement": [asdict(window.placement) for window in windows(cache)],
        "overflowed": ledger.overflowed,
        "facts": facts,
    }
    return Snapshot(tensors, own)


def restore(path: Path, network: nn.Module, empty: Cache, fingerprint: Fingerprint) -> Restored:
    """Read a snapshot into a fork of `empty`, a cache made for the same fingerprint.

    Raises SnapshotMismatch naming the differences, SnapshotTooLarge if it does not fit into memory
    now, SnapshotBroken if the file is damaged or inconsistent, OSError if it cannot be read.
    """
    bits, own = tensor_file.read_bits(path)
    differences = fingerprint.differences(own.get("fingerprint"))
    if differences:
        raise SnapshotMismatch(f"{path} was made with {' and '.join(differences)}")
    needed_bytes = COPIES * sum(each.bits.nbytes for each in bits.values())
    # Metal's recommendation is no limit.
    certain = platform.shortage_is_certain()
    free_bytes = (platform.free_memory_bytes if certain else platform.obtainable_memory_bytes)()
    if needed_bytes > free_bytes:
        sizes = f"{format_bytes(needed_bytes)} of memory, but only {format_bytes(free_bytes)}"
        raise SnapshotTooLarge(f"{path} needs {sizes} is free")
    try:
        return _restored(tensor_file.loaded(bits), own, network, empty, fingerprint)
    except (KeyError, IndexError, ValueError, TypeError, CacheError) as error:
        raise SnapshotBroken(f"{path} is inconsistent: {error}") from error


def _restored(
    tensors: dict[str, mx.array],
    own: dict[str, Any],
    network: nn.Module,
    empty: Cache,
    fingerprint: Fingerprint,
) -> Restored:
    like = run_lazily(network)
    cache = empty.fork()
    placements = zip(windows(cache), windows(like), own["placement"], strict=True)
    for i, (window, filled, placement) in enumerate(placements):
        entries = Entries(*(tensors.get(f"window.{i}.{name}") for name in Entries._fields))
        _fill_window(window, filled, entries, _placement(placement))
    for i, (state, filled) in enumerate(
        zip(recurrent_states(cache), recurrent_states(like), strict=True)
    ):
        arrays = [tensors.get(f"recurrent.{i}.{j}") for j in range(len(state.cache))]
        for array, expected in zip(arrays, filled.cache, strict=True):
            _require(array is None or _of_same_kind(array, expected), "a recurrent layer")
        state.cache = arrays
    ids: TokenIds = np.array(tensors["ledger"])
    overflowed, facts = own["overflowed"], own["facts"]
    _require(ids.ndim == 1 and ids.dtype == np.int32 and len(ids) >= tokens_held(cache), "ledger")
    _require(type(overflowed) is int and overflowed >= 0, "ledger")
    _require(isinstance(facts, dict), "facts")
    ledger = Ledger(fingerprint.window, fingerprint.keep, ids, overflowed)
    return Restored(cache, ledger, facts)


def _fill_window(
    window: WindowCache, like: WindowCache, entries: Entries, placement: Placement
) -> None:
    """Restore a layer. `like` is what the model itself stores for one token."""
    in_values = window.shift is not None and window.shift.in_values
    rotated = like.values if in_values else like.keys
    for array, expected in zip(entries, (like.keys, like.values, rotated), strict=True):
        _require(array is None or _of_same_layer(array, expected), "a layer")
    window.restore(entries, placement)


def _placement(saved: Any) -> Placement:
    """Raises ValueError or TypeError if it is invalid."""
    _require(isinstance(saved, dict), "a layer's numbers")
    placement = Placement.of(saved)
    *numbers, originals = astuple(placement)
    numbers += chain.from_iterable(originals)
    _require(all(type(number) is int for number in numbers), "a layer's numbers")
    return placement


def _of_same_layer(array: mx.array, expected: mx.array | None) -> bool:
    return _of_same_kind(array, expected) and _without_tokens(array) == _without_tokens(expected)


def _of_same_kind(array: mx.array, expected: mx.array | None) -> bool:
    return (
        expected is not None
        and array.dtype == expected.dtype
        and array.ndim == expected.ndim
        and array.shape[0] == expected.shape[0]
    )


def _without_tokens(array: mx.array | None) -> tuple[int, ...]:
    return () if array is None else (*array.shape[:2], *array.shape[3:])


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)
