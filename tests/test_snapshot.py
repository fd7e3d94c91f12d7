"""Snapshots: restored ones continue bit for bit; damaged and mismatched ones are refused."""

import errno
import os
import random
import struct
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from mlxchat.cache.build import make_cache
from mlxchat.cache.layers import Cache, windows
from mlxchat.chat.window import Ledger
from mlxchat.engine.generate import decode
from mlxchat.engine.prefill import prefill
from mlxchat.engine.sampling import Chooser
from mlxchat.errors import SnapshotBroken, SnapshotError, SnapshotTooLarge
from mlxchat.models.model import Model
from mlxchat.settings import SamplingSettings
from mlxchat.store import snapshot, tensor_file
from mlxchat.store.snapshot import Fingerprint, ModelPrint
from mlxchat.text.template import ChatTemplate
from mlxchat.text.tokens import Tokenizer
from scripts.tiny_model import byte_tokenizer
from tests.conftest import build_random_model
from tests.failing_disk import FailingDisk
from tests.test_prefix_cache import make_model

WINDOW, KEEP = 24, 3
# Empty, filling, one short of full, exactly full, and wrapped at different indices.
LENGTHS = [(0, 0), (5, 0), (5, 6), (24, 0), (23, 1), (24, 1), (24, 9), (24, 21), (60, 0), (60, 33)]


def fingerprint(model: Model, window: int | None = WINDOW) -> Fingerprint:
    return ModelPrint(model).of(window, KEEP, None)


class Run:
    """A cache, its ledger and the tokens drawn from it, continued on command."""

    def __init__(self, network: nn.Module, cache: Cache, ledger: Ledger) -> None:
        self.network, self.cache, self.ledger = network, cache, ledger

    def read(self, n: int) -> None:
        ids = np.arange(n, dtype=np.int32) * 7 % 200
        prefill(self.network, self.cache, ids, step_size=16, on_held=self.ledger.add)

    def draw(self, n: int, temp: float = 1.0) -> list[int]:
        start = np.array([65], np.int32)
        tokens = decode(
            self.network,
            self.cache,
            Chooser(start, SamplingSettings(temp=temp, seed=1)),
            int(start[-1]),
            max_tokens=n,
            on_held=self.ledger.add,
        )
        return [token.id for token in tokens if token.id is not None]

    def logits(self) -> np.ndarray:
        logits = self.network(mx.array([[65]]), cache=self.cache.fork())
        return np.array(logits.astype(mx.float32))


def begin(network: nn.Module, window: int | None = WINDOW) -> Run:
    keep = KEEP if window is not None else 0
    return Run(network, make_cache(network, window, keep), Ledger(window, keep))


def restore(path: Path, model: Model, window: int | None = WINDOW) -> Run:
    keep = KEEP if window is not None else 0
    empty = make_cache(model.network, window, keep)
    print_ = ModelPrint(model).of(window, KEEP, None)
    restored = snapshot.restore(path, empty, print_)
    assert restored.facts == {"said": "hello"}
    return Run(model.network, restored.cache, restored.ledger)


def save(path: Path, run: Run, model: Model, window: int | None = WINDOW) -> None:
    taken = snapshot.take(run.cache, run.ledger, fingerprint(model, window), {"said": "hello"})
    assert taken.write(path) == path.stat().st_size


def check_goes_on_to_the_bit(path: Path, run: Run, model: Model, window: int | None) -> None:
    save(path, run, model, window)
    logits = run.logits()
    drawn = run.draw(30)
    later = run.logits()
    again = restore(path, model, window)
    np.testing.assert_array_equal(again.logits(), logits)
    assert again.draw(30) == drawn
    np.testing.assert_array_equal(again.logits(), later)
    np.testing.assert_array_equal(again.ledger.ids, run.ledger.ids)


@pytest.mark.parametrize(("read", "drawn"), LENGTHS)
@pytest.mark.parametrize("window", [WINDOW, None])
def test_a_restored_state_continues_bit_for_bit(
    read: int, drawn: int, window: int | None, tmp_path: Path
) -> None:
    model = make_model(build_random_model())
    run = begin(model.network, window)
    run.read(read)
    if drawn:
        run.draw(drawn)
    check_goes_on_to_the_bit(tmp_path / "snapshot", run, model, window)


def test_so_does_a_rebased_cache(tmp_path: Path) -> None:
    """After a rebase, the kept keys' originals and their positions are part of the state."""
    model = make_model(build_random_model())
    run = begin(model.network)
    for window in windows(run.cache):
        window.position_limit = 64
    run.read(30)
    run.draw(150)
    assert all(window.total > 2 * window.offset for window in windows(run.cache))
    for window in windows(run.cache):
        window.position_limit = 2048
    check_goes_on_to_the_bit(tmp_path / "snapshot", run, model, WINDOW)


def test_the_file_is_plain_safetensors_without_padding(tmp_path: Path) -> None:
    model = make_model(build_random_model())
    run = begin(model.network)
    run.read(10)
    run.draw(3)
    save(tmp_path / "snapshot.safetensors", run, model)
    arrays: Any = mx.load(str(tmp_path / "snapshot.safetensors"))
    assert arrays["window.0.keys"].shape == (1, 2, 13, 8)
    assert arrays["ledger"].tolist() == run.ledger.ids.tolist()
    assert (tmp_path / "snapshot.safetensors").stat().st_mode & 0o777 == 0o600


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, bytes]:
    model = make_model(build_random_model())
    path = tmp_path_factory.mktemp("saved") / "snapshot"
    run = begin(model.network)
    run.read(60)
    run.draw(7)
    save(path, run, model)
    return model, path.read_bytes()


def test_a_change_of_any_byte_and_any_other_length_is_refused(
    saved: tuple[Model, bytes], tmp_path: Path
) -> None:
    model, data = saved
    path = tmp_path / "snapshot"
    empty, print_ = make_cache(model.network, WINDOW, KEEP), fingerprint(model)
    chance = random.Random(1)
    for place in [*range(16), *(chance.randrange(len(data)) for _ in range(500))]:
        changed = bytearray(data)
        changed[place] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(SnapshotError):
            snapshot.restore(path, empty, print_)
        path.write_bytes(data[:place])
        with pytest.raises(SnapshotBroken):
            snapshot.restore(path, empty, print_)
    path.write_bytes(data + b"\0")
    with pytest.raises(SnapshotBroken, match="wrong checksum"):
        snapshot.restore(path, empty, print_)


def test_differences_from_what_it_was_made_with_are_named(
    saved: tuple[Model, bytes], tmp_path: Path
) -> None:
    model, data = saved
    path = tmp_path / "snapshot"
    path.write_bytes(data)
    other_template = Tokenizer(byte_tokenizer(), ChatTemplate("{{ messages }}", {}), (258,))
    others: list[tuple[Model, int | None, int, str | None, str]] = [
        (make_model(build_random_model(seed=1)), WINDOW, KEEP, None, "a different set of weights"),
        (make_model(model.network, config={"a": 1}), WINDOW, KEEP, None, "a different model"),
        (make_model(model.network, mx.float16), WINDOW, KEEP, None, "a different dtype"),
        (
            Model("tiny", model.network, other_template, mx.float32, 4096, {}),
            WINDOW,
            KEEP,
            None,
            "a different chat template",
        ),
        (model, WINDOW + 1, KEEP, None, "a different window"),
        (model, WINDOW, KEEP + 1, None, "a different number of kept tokens"),
        (model, WINDOW, KEEP, "Be brief.", "a different system prompt or note"),
    ]
    for other, window, keep, system, difference in others:
        print_ = ModelPrint(other).of(window, keep, system)
        empty = make_cache(other.network, window, keep)
        with pytest.raises(SnapshotError, match=f"was made with {difference}$"):
            snapshot.restore(path, empty, print_)


def test_a_moved_gguf_file_is_the_same_model() -> None:
    """The embedded model of another installation counted as another one: sessions were read again,
    and no prefix was found."""
    network = build_random_model()
    here, there = (
        ModelPrint(make_model(network, config={"mlxchat": {"source": path}})) for path in "ab"
    )
    assert here.digest() == there.digest()


@pytest.mark.parametrize(
    "data",
    [
        b"",
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
    saved: tuple[Model, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counted as damaged, so a run began again. What is damaged as well is, whatever fits."""
    model, data = saved
    path = tmp_path / "snapshot"
    path.write_bytes(data)
    monkeypatch.setattr("mlxchat.platform.obtainable_memory_bytes", lambda: 5_000)
    with pytest.raises(SnapshotTooLarge, match=r"needs [\d.]+ kB of memory, but only 5.00 kB is"):
        restore(path, model)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(SnapshotBroken):
        restore(path, model)


def test_a_failed_write_leaves_the_previous_snapshot(
    saved: tuple[Model, bytes], tmp_path: Path
) -> None:
    model, data = saved
    path = tmp_path / "snapshot"
    path.write_bytes(data)
    run = begin(model.network)
    run.read(60)
    with FailingDisk(tmp_path).used() as disk:
        save(tmp_path / "whole", run, model)
        assert {"write", "sync", "replace"} <= set(disk.calls)
        calls = len(disk.calls)
        (tmp_path / "whole").unlink()
        for fails_at in range(calls):
            disk.calls.clear()
            disk.failing = [fails_at]
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                save(path, run, model)
            assert path.read_bytes() == data
            assert list(tmp_path.iterdir()) == [path]
    restore(path, model)
