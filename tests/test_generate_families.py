"""The program on families whose caches are not the plain ones."""

import json
from pathlib import Path

import pytest

from scripts.families import family_config
from scripts.tiny_model import write_tiny_model
from tests.conftest import RunMlxchat

PROMPT = "All work and no play makes Jack a dull boy. " * 3


@pytest.mark.parametrize(
    "name", ["gemma3n", "gpt_oss", "llama4", "qwen3_next", "falcon_h1", "deepseek_v3", "lille-130m"]
)
def test_a_window_is_kept_and_a_long_prompt_evicted(
    name: str, run_mlxchat: RunMlxchat, tmp_path: Path
) -> None:
    model = write_tiny_model(tmp_path / "model", config=family_config(name))
    done = run_mlxchat(
        *[
            "generate",
            "--raw",
            "-m",
            str(model),
            "--max-kv-size",
            "32",
            "--prefill-step-size",
            "16",
        ],
        *["-n", "40", "--ignore-eos", "--json", PROMPT],
    )
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["finish_reason"], last["kv_tokens"]) == ("length", 32)
    assert last["evicted_tokens"] == len(PROMPT) + 40 - 1 - 32
    assert "are evicted" in done.stderr
    assert "positions" not in done.stderr


def test_positions_that_run_on_are_said_once_in_scripts_too(
    run_mlxchat: RunMlxchat, tmp_path: Path
) -> None:
    model = write_tiny_model(tmp_path / "model", config=family_config("bailing_moe_linear"))
    done = run_mlxchat("generate", "-m", str(model), "--max-kv-size", "32", "-n", "40", "hello")
    assert done.returncode == 0
    assert done.stderr.count("positions cannot be moved") == 1


def test_a_model_of_learned_positions_stops_at_their_end(
    run_mlxchat: RunMlxchat, tmp_path: Path
) -> None:
    """GPT-2 once read past the end of its table of positions, and said nonsense."""
    config = family_config("gpt2") | {"n_positions": 64, "n_ctx": 64}
    model = write_tiny_model(tmp_path / "model", config=config)
    generate = ["generate", "--raw", "-m", str(model), "--ignore-eos", "--json"]

    refused = run_mlxchat(*generate, "--max-kv-size", "32", "hello")
    assert refused.returncode == 1
    assert "cannot bound a gpt2 model: it has learned a vector for each position" in refused.stderr

    ended = run_mlxchat(*generate, "-n", "-1", "x" * 50)
    assert ended.returncode == 0, ended.stderr
    assert "memory will grow with the text" in ended.stderr
    done = json.loads(ended.stdout.splitlines()[-1])
    assert (done["finish_reason"], done["generated_tokens"]) == ("length", 14)

    too_long = run_mlxchat(*generate, "x" * 64)
    assert (too_long.returncode, too_long.stdout) == (1, "")
    assert too_long.stderr.splitlines()[-1] == (
        "mlxchat: error: the prompt is 64 tokens and this model has learned 64 positions, with no "
        "way past them: shorten the prompt or choose another model"
    )
