"""Snapshots: restored ones continue bit for bit; damaged and mismatched ones are refused."""

import random
import struct
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxchat.cache import build
from mlxchat.cache.build import make_cache
from mlxchat.cache.layers import Cache, windows
from mlxchat.chat.window import Ledger
from mlxchat.engine.prefill import prefill
from mlxchat.errors import SnapshotBroken, SnapshotError, SnapshotTooLarge
from mlxchat.store import snapshot, tensor_file
from mlxchat.store.snapshot import ModelPrint
from tests import conversations
from tests.conftest import build_random_model
from tests.reference import logits
from tests.test_prefix_cache import make_model

WINDOW, KEEP = 24, 3
# Tokens read and decoded: empty, filling, one short of full, exactly full, wrapped at different
# indices, and after keys have moved back several times.
LENGTHS = [(0, 0), (5, 0), (5, 6), (24, 0), (23, 1), (24, 1), (24, 21), (60, 0), (60, 33), (9, 150)]
MODEL = make_model()


@pytest.fixture(autouse=True)
def keys_that_move_back_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "POSITION_LIMIT", 64)


def filled(window: int | None, read: int, decoded: int) -> tuple[Cache, Ledger]:
    keep = KEEP if window is not None else 0
    cache, ledger = make_cache(MODEL.network, window, keep), Ledger(window, keep)
    for count, step_size in ((read, 16), (decoded, 1)):
        ids = np.arange(count, dtype=np.int32) * 7 % 200
        prefill(MODEL.network, cache, ids, step_size=step_size, on_held=ledger.add)
    return cache, ledger


def save(path: Path, cache: Cache, ledger: Ledger, window: int | None = WINDOW) -> None:
    write = snapshot.take(cache, ledger, ModelPrint(MODEL).of(window, KEEP, None), {"a": "b"})
    assert write(path) == path.stat().st_size


def restore(path: Path, window: int | None = WINDOW) -> Any:
    empty = make_cache(MODEL.network, window, KEEP if window is not None else 0)
    return snapshot.restore(path, empty, ModelPrint(MODEL).of(window, KEEP, None))


@pytest.mark.parametrize(
    ("read", "decoded", "window"),
    [*((*each, WINDOW) for each in LENGTHS), (0, 0, None), (60, 33, None)],
)
def test_a_restored_state_continues_bit_for_bit(
    read: int, decoded: int, window: int | None, tmp_path: Path
) -> None:
    """The kept keys' originals and their positions are part of the state."""
    cache, ledger = filled(window, read, decoded)
    save(tmp_path / "snapshot", cache, ledger, window)
    again = restore(tmp_path / "snapshot", window)
    assert again.facts == {"a": "b"}
    np.testing.assert_array_equal(again.ledger.ids, ledger.ids)
    for token in range(40):
        found, expected = (logits(MODEL.network, each, [token]) for each in (again.cache, cache))
        np.testing.assert_array_equal(found, expected)
    moved = [each.total > each.offset for each in windows(cache)]
    assert all(moved) == (window is not None and read + decoded + 40 >= 64)


def test_the_file_is_plain_safetensors_without_padding(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.safetensors"
    cache, ledger = filled(WINDOW, 10, 3)
    save(path, cache, ledger)
    arrays: Any = mx.load(str(path))
    assert arrays["window.0.keys"].shape == (1, 2, 13, 8)
    assert arrays["ledger"].tolist() == ledger.ids.tolist()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "snapshot"
    save(path, *filled(WINDOW, 60, 7))
    return path.read_bytes()


def test_a_change_of_any_byte_and_any_other_length_is_refused(saved: bytes, tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    chance = random.Random(1)
    for place in [*range(16), *(chance.randrange(len(saved)) for _ in range(50))]:
        changed = bytearray(saved)
        changed[place] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(SnapshotError):
            restore(path)
        path.write_bytes(saved[:place])
        with pytest.raises(SnapshotBroken):
            restore(path)
    path.write_bytes(saved + b"\0")
    with pytest.raises(SnapshotBroken, match="wrong checksum"):
        restore(path)


def test_differences_from_what_it_was_made_with_are_named(saved: bytes, tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    path.write_bytes(saved)
    retold = conversations.make_model("{{ messages }}", MODEL.network)
    for other, window, keep, system, difference in [
        (make_model(build_random_model(seed=1)), WINDOW, KEEP, None, "set of weights"),
        (make_model(MODEL.network, config={"a": 1}), WINDOW, KEEP, None, "model"),
        (make_model(MODEL.network, mx.float16), WINDOW, KEEP, None, "dtype"),
        (retold, WINDOW, KEEP, None, "chat template"),
        (MODEL, WINDOW + 1, KEEP, None, rf"window \({WINDOW}\)"),
        (MODEL, WINDOW, KEEP + 1, None, rf"number of kept tokens \({KEEP}\)"),
        (MODEL, WINDOW, KEEP, "Be brief.", "system prompt, note or remembered lines"),
    ]:
        empty, print_ = make_cache(MODEL.network), ModelPrint(other).of(window, keep, system)
        with pytest.raises(SnapshotError, match=f"with a different {difference}$"):
            snapshot.restore(path, empty, print_)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 100_000) + b"[" * 100_000,
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 19) + b'{"__metadata__": 1} ',
        struct.pack("<Q", 4) + b"\xff\xfe{}",
    ],
)
def test_a_file_that_is_not_a_snapshot_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "snapshot").write_bytes(data)
    with pytest.raises(SnapshotBroken):
        tensor_file.read(tmp_path / "snapshot")


def test_a_state_that_does_not_fit_into_memory_now_is_not_damaged(
    saved: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as damaged, so a run began again. What is damaged as well is, whatever fits."""
    path = tmp_path / "snapshot"
    path.write_bytes(saved)
    monkeypatch.setattr("mlxchat.platform.obtainable_memory_bytes", lambda: 5_000)
    with pytest.raises(SnapshotTooLarge, match=r"needs [\d.]+ kB of memory, but only 5.00 kB is"):
        restore(path)
    path.write_bytes(saved[:-1] + bytes([saved[-1] ^ 1]))
    with pytest.raises(SnapshotBroken):
        restore(path)
