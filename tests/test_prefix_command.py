"""The prefix cache through the program: nothing is read twice, and the output stays the same."""

import json
import multiprocessing
from pathlib import Path
from typing import Any

import mlxchat  # noqa: F401  first, as in the tests' own process: this is imported by others

# isort: split

import numpy as np
import pytest

from mlxchat import paths
from mlxchat.store.prefix_cache import PAGE, PrefixCache
from mlxchat.units import format_bytes
from tests.conftest import RunMlxchat
from tests.test_prefix_cache import PLENTY, Run, make_model, record, text, text_like

DOCUMENT = "".join(f"Line {n} tells of the sea and of what lives in it.\n" for n in range(60))


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "document.txt"
    # With its name, which the model reads first, it has as many characters as DOCUMENT.
    path.write_text(DOCUMENT[len(f"# {path}\n\n") :])
    return path


@pytest.fixture
def ask(tiny_model: Path, document: Path, run_mlxchat: RunMlxchat) -> Any:
    """Ask about the document; returns the last event."""

    def ask(question: str, *options: str, model: Path = tiny_model) -> dict[str, Any]:
        done = run_mlxchat(
            *("generate", "-m", str(model), "--json", "--temp", "0", "-n", "10", "--ignore-eos"),
            *("-f", str(document), *options, question),
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == "" or "are evicted" in done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return ask


def pages() -> list[Path]:
    return sorted(paths.prefix_cache_dir().rglob("*.safetensors"))


def test_a_document_is_read_once_for_all_questions(ask: Any) -> None:
    fresh = ask("What lives there?", "--no-prefix-cache")
    assert pages() == []
    first = ask("What lives there?")
    stored = pages()
    assert first["cached_tokens"] == 0
    assert first["text"] == fresh["text"]
    again = ask("What lives there?")
    assert again["cached_tokens"] == (again["prompt_tokens"] - 1) // PAGE * PAGE
    assert again["text"] == fresh["text"]
    other = ask("How many lines has it?")
    assert other["cached_tokens"] == again["cached_tokens"]
    assert other["text"] == ask("How many lines has it?", "--no-prefix-cache")["text"]
    assert set(stored) <= set(pages())
    assert paths.prefix_cache_dir().stat().st_mode & 0o777 == 0o700
    assert all(page.stat().st_mode & 0o777 == 0o600 for page in pages())


def test_a_run_with_checkpoints_does_not_use_the_prefix_cache(
    ask: Any, tiny_model: Path, document: Path, tmp_path: Path, run_mlxchat: RunMlxchat
) -> None:
    """Prefilling in other steps differs by rounding, but such a run must be reproducible."""
    ask("What?")
    done = run_mlxchat(
        *("generate", "-m", str(tiny_model), "-n", "5", "--stats", "-f", str(document)),
        *("--checkpoint", str(tmp_path / "night"), "What?"),
    )
    assert done.returncode == 0
    assert "cached" not in done.stderr


def test_short_prompts_and_unsaved_chats_are_not_cached(
    tiny_model: Path, run_mlxchat: RunMlxchat
) -> None:
    run_mlxchat("generate", "-m", str(tiny_model), "-n", "3", "hello")
    line = DOCUMENT.replace("\n", " ")
    chat = ["chat", "-m", str(tiny_model), "-n", "3", "--json"]
    run_mlxchat(*chat, "--no-save", stdin=line)
    assert pages() == []


def test_a_chat_reuses_a_prefix_of_another(tiny_model: Path, run_mlxchat: RunMlxchat) -> None:
    line = DOCUMENT.replace("\n", " ")
    chat = ["chat", "-m", str(tiny_model), "--temp", "0", "-n", "9", "--json"]

    def first_done(*options: str) -> dict[str, Any]:
        stdout = run_mlxchat(*chat, *options, stdin=f"{line}\nand then?\n").stdout
        events = [json.loads(each) for each in stdout.splitlines()]
        return next(each for each in events if each["event"] == "done")

    fresh = first_done("--no-prefix-cache")
    assert first_done()["cached_tokens"] == 0
    again = first_done()
    assert again["cached_tokens"] >= 2048
    assert again["text"] == fresh["text"]


def test_the_cache_commands(ask: Any, run_mlxchat: RunMlxchat) -> None:
    directory = paths.prefix_cache_dir()
    assert run_mlxchat("cache", "size").stdout == f"0 B in {directory}\n"
    ask("What?")
    held = format_bytes(sum(page.stat().st_size for page in pages()))
    assert run_mlxchat("cache", "size").stdout == f"{held} in {directory}\n"
    assert run_mlxchat("cache", "clear", "--yes").returncode == 0
    assert pages() == []


@pytest.mark.parametrize("command", [["size"], ["clear", "-y"]])
def test_an_unusable_cache_directory_is_reported(
    command: list[str], run_mlxchat: RunMlxchat
) -> None:
    directory = paths.prefix_cache_dir()
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.touch()
    done = run_mlxchat("cache", *command)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"mlxchat: error: cannot use {directory}: Not a directory\n"


def test_an_unusable_directory_only_costs_the_prefill(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    model, ids = make_model(), text(PAGE + 1)
    pages = PrefixCache(tmp_path / "file", model, PLENTY)
    run = Run(model, ids, pages)
    pages.close()
    assert run.cached == 0
    assert isinstance(pages.error, OSError)
    np.testing.assert_array_equal(run.logits(), Run(model, ids).logits())


def run_prompts(directory: Path, limit_bytes: int, seeds: list[int]) -> None:
    """Runs in another process: prompts, some of them used by both processes, in little space."""
    model = make_model()
    for seed in seeds:
        pages = PrefixCache(directory, model, limit_bytes)
        ids = text_like(text(2_000, 1), PAGE * (seed % 3), 3 * PAGE, seed)
        plain = Run(model, ids)
        for _ in range(2):
            # Where the other process has just pruned, other steps are computed, and rounded.
            run = Run(model, ids, pages)
            np.testing.assert_allclose(run.logits(1), plain.logits(1), atol=1e-5)
        pages.close()
        assert pages.error is None, pages.error


def test_processes_can_fill_and_prune_concurrently(tmp_path: Path) -> None:
    pages = PrefixCache(tmp_path, make_model(), PLENTY)
    record(make_model(), text(PAGE + 1), pages)
    limit = pages.files.size_bytes() * 6
    context = multiprocessing.get_context("spawn")
    arguments = [(tmp_path, limit, [*range(n, n + 8)]) for n in (0, 2)]
    processes = [context.Process(target=run_prompts, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert pages.files.size_bytes() <= limit
    pages.close()
