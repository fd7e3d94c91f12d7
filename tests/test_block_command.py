"""Blocks through the program: read once, found in any order, and refused if unsupported."""

import json
from pathlib import Path
from typing import Any

import pytest

from mlxchat import paths
from scripts.families import family_config
from scripts.tiny_model import write_tiny_model
from tests.conftest import RunMlxchat

TEXTS = {
    "a.md": "A boat lay in the harbour, and nobody knew whose boat it was. " * 4,
    "b.md": "The ladder was taken away at night; in the morning it was back. " * 3,
    "c.md": "Three kettles stood on the shelf, of which two were of copper. " * 3,
}
TOKENS = {name: len(text) + len("\n\n") for name, text in TEXTS.items()}  # a byte is a token


@pytest.fixture(autouse=True)
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in TEXTS.items():
        Path(name).write_text(text)


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


def test_a_single_block_gives_the_same_answer_as_the_document(ask: Any) -> None:
    """It stays at the position it was computed at, so nothing is approximate."""
    plain = ask(stdin=TEXTS["a.md"])
    assert ask(*blocks("a.md"))["text"] == plain["text"]
    again = ask(*blocks("a.md"))
    assert again["cached_tokens"] == TOKENS["a.md"]
    assert again["text"] == plain["text"]


def test_standard_input_can_be_a_block(ask: Any) -> None:
    ask(*blocks("a.md"))
    piped = ask(*blocks("-"), stdin=TEXTS["a.md"])
    assert piped["cached_tokens"] == TOKENS["a.md"]


def test_raw_text_can_contain_blocks(ask: Any) -> None:
    ask("--raw", *blocks("a.md"))
    again = ask("--raw", *blocks("a.md"))
    assert again["cached_tokens"] == TOKENS["a.md"]
    assert again["text"] == ask("--raw", "-f", "a.md")["text"]


def test_another_system_prompt_makes_another_block(ask: Any) -> None:
    ask(*blocks("a.md"))
    assert ask(*blocks("a.md"), "-s", "Be brief.")["cached_tokens"] == 0


def test_a_block_can_be_warmed_and_is_listed(
    ask: Any, tiny_model: Path, run_mlxchat: RunMlxchat
) -> None:
    warmed = run_mlxchat("cache", "warm", "--block", "-m", str(tiny_model), "a.md")
    assert (warmed.returncode, warmed.stdout) == (0, "")
    assert ask(*blocks("a.md"))["cached_tokens"] == TOKENS["a.md"]
    listed = run_mlxchat("cache", "list").stdout.splitlines()
    key, kind, tokens, *_ = listed[0].split("\t")
    assert (len(listed), kind, tokens) == (1, "block", str(TOKENS["a.md"]))
    (event,) = map(json.loads, run_mlxchat("cache", "list", "--json").stdout.splitlines())
    assert event["kind"] == "block"
    assert run_mlxchat("cache", "rm", "--yes", key).returncode == 0
    assert ask(*blocks("a.md"))["cached_tokens"] == 0


def test_warming_a_short_block_fails(tiny_model: Path, run_mlxchat: RunMlxchat) -> None:
    done = run_mlxchat("cache", "warm", "--block", "-m", str(tiny_model), "-", stdin="short")
    assert done.returncode == 1
    assert "standard input is not kept as a block: it has 7 tokens" in done.stderr


def failure(run_mlxchat: RunMlxchat, model: Path, *arguments: str) -> tuple[int, str]:
    done = run_mlxchat("generate", "-m", str(model), "-n", "3", *arguments, "What?")
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*blocks("a.md"), "--no-prefix-cache"], "--block needs the prefix cache"),
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


def test_a_file_that_cannot_be_read_is_named(tiny_model: Path, run_mlxchat: RunMlxchat) -> None:
    status, error = failure(run_mlxchat, tiny_model, *blocks("nowhere.md"))
    assert (status, error) == (
        1,
        "mlxchat: error: cannot read nowhere.md: No such file or directory\n",
    )


@pytest.mark.parametrize(
    ("family", "reason"),
    [("qwen3_next", "has recurrent layers"), ("gpt2", "cannot be shifted")],
)
def test_families_that_cannot_join_blocks_are_refused_by_name(
    family: str, reason: str, tmp_path: Path, run_mlxchat: RunMlxchat
) -> None:
    model = write_tiny_model(tmp_path / "model", config=family_config(family))
    status, error = failure(run_mlxchat, model, *blocks("a.md"))
    assert status == 1
    assert reason in error
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


def test_a_short_block_is_read_with_a_notice(tiny_model: Path, run_mlxchat: RunMlxchat) -> None:
    Path("short.md").write_text("Hello.")
    options = ("-m", str(tiny_model), "-n", "5", "--ignore-eos")
    done = run_mlxchat("generate", *options, *blocks("short.md"), "What?")
    assert done.returncode == 0
    assert "short.md is not kept as a block: it has 8 tokens" in done.stderr
    assert done.stdout == run_mlxchat("generate", *options, "What?", stdin="Hello.").stdout
