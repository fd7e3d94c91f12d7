"""Blocks through the program and on the disk: read once, found in any order, never another model's,
and refused if unsupported."""

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxchat import paths
from mlxchat.cache.block import Block, BlockRecorder
from mlxchat.cache.build import make_cache
from mlxchat.engine.prefill import prefill
from mlxchat.models.model import Model
from mlxchat.store import tensor_file
from mlxchat.store.prefix_cache import DiskBlocks
from scripts.families import build_family, family_config
from scripts.tiny_model import write_tiny_model
from tests.conftest import RunMlxchat, build_random_model
from tests.test_prefix_cache import PLENTY, make_model, text

TEXTS = {
    "a.md": "A boat lay in the harbour, and nobody knew whose boat it was. " * 4,
    "b.md": "The ladder was taken away at night; in the morning it was back. " * 3,
    "c.md": "Three kettles stood on the shelf, of which two were of copper. " * 3,
}
TOKENS = {name: len(text) + len("\n\n") for name, text in TEXTS.items()}  # a byte is a token


@pytest.fixture(autouse=True)
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in TEXTS.items():
        Path(name).write_text(content)


@pytest.fixture
def ask(tiny_model: Path, run_mlxchat: RunMlxchat) -> Any:
    """Ask about the blocks; returns the last event."""

    def ask(*arguments: str, stdin: str | None = None) -> dict[str, Any]:
        done = run_mlxchat(
            *("generate", "-m", str(tiny_model), "--json", "--temp", "0", "-n", "20"),
            *("--ignore-eos", *arguments, "What is this?"),
            stdin=stdin,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout.splitlines()[-1])

    return ask


def blocks(*names: str) -> list[str]:
    return [argument for name in names for argument in ("--block", name)]


def test_documents_are_read_once_in_any_order(ask: Any) -> None:
    first = ask(*blocks("a.md", "b.md"))
    assert first["cached_tokens"] == 0
    again = ask(*blocks("a.md", "b.md"))
    assert again["cached_tokens"] == TOKENS["a.md"] + TOKENS["b.md"]
    assert again["text"] == first["text"]
    other = ask(*blocks("b.md", "c.md", "a.md"))
    assert other["cached_tokens"] == TOKENS["b.md"] + TOKENS["a.md"]
    assert ask(*blocks("c.md"), "-f", "a.md")["cached_tokens"] == TOKENS["c.md"]
    stored = list(paths.prefix_cache_dir().rglob("*.safetensors"))
    assert len(stored) == 3
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in stored)


def test_raw_text_can_contain_blocks(ask: Any) -> None:
    ask("--raw", *blocks("a.md"))
    again = ask("--raw", *blocks("a.md"))
    assert again["cached_tokens"] == TOKENS["a.md"]
    assert again["text"] == ask("--raw", "-f", "a.md")["text"]


def test_a_block_can_be_deleted(ask: Any, run_mlxchat: RunMlxchat) -> None:
    ask(*blocks("a.md"))
    assert run_mlxchat("cache", "clear", "--yes").returncode == 0
    assert ask(*blocks("a.md"))["cached_tokens"] == 0


def failure(run_mlxchat: RunMlxchat, model: Path, *arguments: str) -> tuple[int, str]:
    done = run_mlxchat("generate", "-m", str(model), "-n", "3", *arguments, "What?")
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [*blocks("a.md"), "--no-prefix-cache"],
            "--no-prefix-cache and --block cannot be combined",
        ),
        ([*blocks("a.md"), "--checkpoint", "run"], "cannot be combined"),
        ([*blocks("-"), "-f", "-"], "only one - is allowed"),
    ],
)
def test_invalid_combinations_are_refused_immediately(
    arguments: list[str], message: str, tiny_model: Path, run_mlxchat: RunMlxchat
) -> None:
    status, error = failure(run_mlxchat, tiny_model, *arguments)
    assert status == 2
    assert message in error
    assert error.count("\n") == 1
    assert not Path("run").exists()


def test_a_family_that_cannot_join_blocks_is_refused_by_name(
    tmp_path: Path, run_mlxchat: RunMlxchat
) -> None:
    model = write_tiny_model(tmp_path / "model", config=family_config("qwen3_next"))
    status, error = failure(run_mlxchat, model, *blocks("a.md"))
    assert status == 1
    assert "has recurrent layers" in error
    assert "give the documents with --file" in error


def test_beyond_the_window_blocks_are_read_like_other_text(
    tiny_model: Path, run_mlxchat: RunMlxchat
) -> None:
    options = ("-m", str(tiny_model), "-n", "5", "--ignore-eos", "--max-kv-size", "300")
    done = run_mlxchat("generate", *options, *blocks("a.md", "b.md"), "What?")
    plain = run_mlxchat("generate", *options, "-f", "a.md", "-f", "b.md", "What?")
    assert done.returncode == 0
    assert "blocks are read as ordinary text: the prompt (" in done.stderr
    assert done.stdout == plain.stdout


# On the disk: bit for bit, never another model's, limited, and never an error


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
        for x, y in zip(ours.arrays, theirs.arrays, strict=True):
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


def test_without_free_space_blocks_are_read_but_not_written(
    model: Model, open_blocks: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_blocks(model).save(HEAD, IDS, block_of(model))
    usage = shutil.disk_usage("/")._replace(free=900_000_000)
    full, other = open_blocks(model), text(80, seed=5)
    assert full.load(HEAD, IDS) is not None
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        full.save(HEAD, other, block_of(model, other))
    assert full.load(HEAD, other) is None
    assert str(full.error) == "the disk has less than 1 GB of free space"

    def fail(*_: object, **how: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tensor_file, "write", fail)
    blocks = open_blocks(model)
    blocks.save(HEAD, other, block_of(model, other))
    assert blocks.load(HEAD, other) is None
    assert "No space left" in str(blocks.error)
