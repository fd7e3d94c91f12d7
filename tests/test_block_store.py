"""Blocks on the disk: bit for bit, never another model's, limited, and never an error."""

import errno
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlxchat.cache import Block, BlockRecorder, make_cache
from mlxchat.engine.loops import prefill
from mlxchat.models.model import Model
from mlxchat.store import tensor_file
from mlxchat.store.block_store import DiskBlocks
from scripts.families import build_family
from tests.conftest import build_random_model
from tests.test_prefix_cache import PLENTY, make_model, text

HEAD, IDS = text(7, seed=1), text(80, seed=2)
Open = Callable[..., DiskBlocks]


@pytest.fixture(scope="module")
def model() -> Model:
    return make_model()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "prefixes"


@pytest.fixture
def open_blocks(directory: Path) -> Open:
    """Opens the same directory each time, as another process would."""

    def open_(model: Model, limit_bytes: int = PLENTY) -> DiskBlocks:
        return DiskBlocks(directory, model, limit_bytes)

    return open_


def block_of(model: Model, ids: np.ndarray = IDS, head: np.ndarray = HEAD) -> Block:
    cache = make_cache(model.network)
    prefill(model.network, cache, head, step_size=32)
    recorder = BlockRecorder(cache)
    prefill(model.network, cache, ids, step_size=32, on_held=recorder)
    return recorder.block()


def assert_equal(a: Block, b: Block) -> None:
    assert (a.position, a.tokens, len(a.layers)) == (b.position, b.tokens, len(b.layers))
    for ours, theirs in zip(a.layers, b.layers, strict=True):
        assert (ours is None) == (theirs is None)
        for x, y in zip(ours or (), theirs or (), strict=True):
            assert x.dtype == y.dtype
            assert bool(mx.array_equal(x, y))


@pytest.mark.parametrize("family", ["llama", "deepseek_v3", "gemma3n"])
def test_a_block_is_restored_exactly(family: str, open_blocks: Open) -> None:
    network = build_random_model() if family == "llama" else build_family(family)
    model = make_model(network)
    block = block_of(model)
    open_blocks(model).save(HEAD, IDS, block)
    read = open_blocks(model).load(HEAD, IDS)
    assert read is not None
    assert_equal(read, block)


def test_a_block_is_found_only_by_the_same_model_head_and_tokens(
    model: Model, open_blocks: Open
) -> None:
    """A block is more than a text: another model or another head makes another block."""
    blocks = open_blocks(model)
    blocks.save(HEAD, IDS, block_of(model))
    assert blocks.load(HEAD, IDS) is not None
    assert blocks.load(HEAD[1:], IDS) is None
    assert blocks.load(np.append(HEAD, IDS[0]), IDS[1:]) is None
    assert blocks.load(HEAD, IDS[1:]) is None
    assert blocks.load(HEAD[::-1], IDS) is None
    assert open_blocks(make_model(build_random_model(seed=1))).load(HEAD, IDS) is None


def files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.safetensors"))


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "gone", "another's"])
def test_a_damaged_block_is_deleted(
    damage: str, model: Model, open_blocks: Open, directory: Path
) -> None:
    blocks = open_blocks(model)
    blocks.save(HEAD, IDS, block_of(model))
    (file,) = files(directory)
    data = file.read_bytes()
    if damage == "gone":
        file.unlink()
    elif damage == "another's":
        other = text(80, seed=3)
        blocks.save(HEAD, other, block_of(model, other))
        (another,) = set(files(directory)) - {file}
        file.write_bytes(another.read_bytes())
    else:
        changed = bytearray(data)
        changed[-5] ^= 1
        file.write_bytes({"cut": data[:-9], "changed": bytes(changed), "empty": b""}[damage])
    assert blocks.load(HEAD, IDS) is None
    assert not file.exists()
    blocks.save(HEAD, IDS, block_of(model))
    assert blocks.load(HEAD, IDS) is not None
    assert blocks.error is None


def test_the_least_recently_used_block_is_deleted_first(
    model: Model, open_blocks: Open, directory: Path
) -> None:
    texts = [text(80, seed) for seed in range(4)]
    blocks = open_blocks(model)
    for ids in texts[:3]:
        blocks.save(HEAD, ids, block_of(model, ids))
    size = sum(file.stat().st_size for file in files(directory))
    assert blocks.load(HEAD, texts[0]) is not None
    tight = open_blocks(model, limit_bytes=size)
    tight.save(HEAD, texts[3], block_of(model, texts[3]))
    found = [tight.load(HEAD, ids) is not None for ids in texts]
    assert found == [True, False, True, True]
    assert sum(file.stat().st_size for file in files(directory)) <= size


def test_a_full_disk_loses_only_the_block(
    model: Model, open_blocks: Open, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **how: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tensor_file, "write", fail)
    blocks = open_blocks(model)
    blocks.save(HEAD, IDS, block_of(model))
    assert blocks.error is not None
    assert "No space left" in str(blocks.error)
    assert blocks.load(HEAD, IDS) is None


def test_without_free_space_blocks_are_read_but_not_written(
    model: Model, open_blocks: Open, directory: Path
) -> None:
    open_blocks(model).save(HEAD, IDS, block_of(model))
    full = open_blocks(model, 1 << 60)
    assert full.load(HEAD, IDS) is not None
    other = text(80, seed=5)
    full.save(HEAD, other, block_of(model, other))
    assert full.load(HEAD, other) is None
    assert "less free space" in str(full.error)
