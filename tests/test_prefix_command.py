"""What was read is not read again: known beginnings and blocks. The output stays the same."""

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxchat import paths
from mlxchat.app.chat import Chat
from mlxchat.cache.block import Block
from mlxchat.cache.ring import Entries
from mlxchat.request import ChatOptions, Setup
from mlxchat.settings import GenerationSettings
from mlxchat.store.prefix_cache import PAGE, DiskBlocks
from mlxchat.units import format_bytes
from scripts.families import family_config
from scripts.tiny_model import tiny_config, write_tiny_model
from tests.in_process import run_in_process, run_quietly
from tests.test_prefix_cache import PLENTY, make_model, text

TEXTS = {
    "a.md": "A boat lay in the harbour, and nobody knew whose boat it was. " * 4,
    "b.md": "The ladder was taken away at night; in the morning it was back. " * 3,
    "c.md": "Three kettles stood on the shelf, of which two were of copper. " * 3,
    "long.md": "".join(f"Line {n} tells of the sea and of what lives in it.\n" for n in range(60)),
}
TOKENS = {name: len(text) + len("\n\n") for name, text in TEXTS.items()}  # a byte is a token
LONG = ("-f", "long.md")


@pytest.fixture(autouse=True)
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in TEXTS.items():
        Path(name).write_text(content)


@pytest.fixture
def ask(tiny_model: Path) -> Any:
    """Ask about documents; returns the last event."""

    def ask(*arguments: str, question: str = "What is this?") -> dict[str, Any]:
        how = ("generate", "-m", str(tiny_model), "--json", "--temp", "0", "-n", "10")
        return json.loads(run_quietly(*how, "--ignore-eos", *arguments, question).splitlines()[-1])

    return ask


def pages() -> list[Path]:
    return sorted(paths.prefix_cache_dir().rglob("*.safetensors"))


def test_a_document_is_read_once_for_all_questions(ask: Any) -> None:
    fresh = ask(*LONG, "--no-prefix-cache")
    assert pages() == []
    first = ask(*LONG)
    stored = pages()
    assert first["cached_tokens"] == 0
    again = ask(*LONG)
    assert again["cached_tokens"] == (again["prompt_tokens"] - 1) // PAGE * PAGE
    assert fresh["text"] == first["text"] == again["text"]
    other = ask(*LONG, question="How many lines?")
    assert other["cached_tokens"] >= TOKENS["long.md"] // PAGE * PAGE
    assert other["text"] == ask(*LONG, "--no-prefix-cache", question="How many lines?")["text"]
    assert set(stored) <= set(pages())
    assert paths.prefix_cache_dir().stat().st_mode & 0o777 == 0o700
    assert all(page.stat().st_mode & 0o777 == 0o600 for page in pages())


def test_short_prompts_checkpoints_and_no_save_store_no_prefix(ask: Any, tiny_model: Path) -> None:
    """Other steps of prefill round otherwise, but a run with checkpoints must be reproducible."""
    model = ("-m", str(tiny_model), "-n", "3")
    run_in_process("generate", *model, "hello")
    run_in_process("chat", *model, "--no-save", stdin=TEXTS["long.md"].replace("\n", " "))
    assert pages() == []
    ask(*LONG)
    done = run_in_process("generate", *model, "--stats", *LONG, "--checkpoint", "night", "What?")
    assert done.returncode == 0
    assert "cached" not in done.stderr


def test_a_chats_next_model_has_its_own_known_prefixes(tiny_model: Path, tmp_path: Path) -> None:
    """It would have looked for them in the store of the model before."""
    other = write_tiny_model(tmp_path / "other", config=tiny_config(layers=1))

    def reply(*, prefix_cache: bool) -> tuple[str, int]:
        setup = Setup(str(tiny_model), prefix_cache=prefix_cache, sampling={"temp": 0.0})
        with Chat.open(ChatOptions(setup, generation=GenerationSettings(max_tokens=9))) as chat:
            list(chat.say(TEXTS["long.md"][: 9 * PAGE]))
            chat.change_model(chat.find(str(other)))
            text = "".join(said.text for said in chat.say("and then?"))
            assert chat.conversation.stats is not None
            return text, chat.conversation.stats.cached_tokens

    plain, first, second = (reply(prefix_cache=wanted) for wanted in (False, True, True))
    assert first == plain
    assert second == (plain[0], 9 * PAGE)


def test_the_size_of_the_cache_is_that_of_its_pages(ask: Any) -> None:
    shown = f"{{}} in {paths.prefix_cache_dir()}\n0 B in {paths.document_indexes_dir()}\n"
    assert run_in_process("cache", "size").stdout == shown.format("0 B")
    ask(*LONG)
    held = format_bytes(sum(page.stat().st_size for page in pages()))
    assert run_in_process("cache", "size").stdout == shown.format(held)


def blocks(*names: str) -> list[str]:
    return [argument for name in names for argument in ("--block", name)]


def test_documents_are_read_once_in_any_order(ask: Any) -> None:
    first = ask(*blocks("a.md", "b.md"))
    assert first["cached_tokens"] == 0
    again = ask(*blocks("a.md", "b.md"))
    assert again["cached_tokens"] == TOKENS["a.md"] + TOKENS["b.md"]
    assert again["text"] == first["text"]
    assert ask(*blocks("b.md", "c.md", "a.md"))["cached_tokens"] == TOKENS["b.md"] + TOKENS["a.md"]
    assert ask(*blocks("c.md"), "-f", "a.md")["cached_tokens"] == TOKENS["c.md"]
    assert ask("--raw", *blocks("a.md"))["text"] == ask("--raw", "-f", "a.md")["text"]
    assert len(pages()) == 4, "a.md alone has no template before it"
    assert all(page.stat().st_mode & 0o777 == 0o600 for page in pages())


def test_a_family_that_cannot_join_blocks_is_refused_by_name(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", config=family_config("qwen3_next"))
    done = run_in_process("generate", "-m", str(model), *blocks("a.md"), "What?")
    assert (done.returncode, done.stdout) == (1, "")
    assert "has recurrent layers" in done.stderr
    assert "give documents with --file" in done.stderr


def test_beyond_the_window_blocks_are_read_like_other_text(tiny_model: Path) -> None:
    options = ("-m", str(tiny_model), "-n", "5", "--ignore-eos", "--max-kv-size", "300")
    done = run_in_process("generate", *options, *blocks("a.md", "b.md"), "What?")
    plain = run_in_process("generate", *options, "-f", "a.md", "-f", "b.md", "What?")
    assert done.returncode == 0
    assert "blocks are read as ordinary text: the prompt (" in done.stderr
    assert done.stdout == plain.stdout


# On the disk


def test_without_free_space_blocks_are_read_but_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, head, ids, other = make_model(), text(7, seed=1), text(80, seed=2), text(80, seed=5)
    keys = mx.zeros((1, 2, 80, 8))
    block = Block(len(head), (Entries(keys, keys),) * 2)
    blocks = DiskBlocks(tmp_path, model, PLENTY)
    blocks.save(head, ids, block)
    usage = shutil.disk_usage("/")._replace(free=900_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    blocks = DiskBlocks(tmp_path, model, PLENTY)
    blocks.save(head, other, block)
    assert str(blocks.error) == "the disk has less than 1 GB of free space"
    assert (blocks.load(head, other), blocks.load(head, ids) is None) == (None, False)
