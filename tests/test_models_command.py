"""`mlxchat models`: what each command prints, changes and refuses."""

import json
from pathlib import Path

import pytest

from mlxchat import platform
from mlxchat.models.catalog import CATALOG, HUB_ALIASES
from mlxchat.models.describe import describe
from mlxchat.models.hub_cache import hub_cache_dir, repo_dir
from scripts.families import write_family
from scripts.tiny_model import tiny_config, write_tiny_model
from tests.fake_hub import put_in_cache, tiny_model_files
from tests.gguf_files import tiny_gguf
from tests.in_process import run_in_process, run_quietly

# scripts.tiny_model's default has 2 layers, 2 key-value heads of 8 values, float32.
TINY_KV_BYTES = 2 * 2 * 2 * 8 * 4


@pytest.fixture
def cached_tiny(tiny_model: Path) -> Path:
    """The tiny model in the hub's cache, as org/tiny."""
    files = {path.name: path.read_bytes() for path in tiny_model.iterdir()}
    return put_in_cache(hub_cache_dir(), "org/tiny", files)


def listed() -> list[dict[str, object]]:
    """The output of `list --json`, without the embedded model that may be installed."""
    lines = run_quietly("models", "list", "--json").splitlines()
    return [each for each in map(json.loads, lines) if each["name"] != "smollm2"]


def test_list_shows_the_facts_about_a_cached_model(cached_tiny: Path):
    (entry,) = listed()
    files_bytes = sum(path.stat().st_size for path in cached_tiny.iterdir())
    assert entry == {
        "name": "org/tiny",
        "hub_id": "org/tiny",
        "here": "yes",
        "model_type": "llama",
        "parameters": entry["parameters"],
        "size_bytes": files_bytes + len(cached_tiny.name),  # the ref names the commit
        "quantization": "float32",
        "context_length": 4096,
        "kv_bytes_per_token": TINY_KV_BYTES,
        "lookup": "works",
        "memory_needed_bytes": 4 * int(str(entry["parameters"])) + 4096 * TINY_KV_BYTES,
        "fits": True,
        "directory": str(cached_tiny),
        "problem": None,
    }


def test_list_omits_models_that_do_not_generate_text(tiny_model: Path):
    files = {path.name: path.read_bytes() for path in tiny_model.iterdir()}
    encoder = {"model_type": "bert", "architectures": ["BertModel"]}
    newer = {"model_type": "unknown", "architectures": ["NewForCausalLM"]}
    for name, config in (("org/encoder", encoder), ("org/newer", newer)):
        put_in_cache(hub_cache_dir(), name, files | {"config.json": json.dumps(config).encode()})
    (entry,) = listed()
    assert entry["name"] == "org/newer"
    assert entry["problem"] == "the installed mlx-lm does not support the model type 'unknown'"


def test_list_all_shows_the_catalogue_and_other_models_on_the_disk(cached_tiny: Path):
    known = CATALOG[0]
    put_in_cache(hub_cache_dir(), known.hub_id, tiny_model_files())
    repo_dir(CATALOG[1].hub_id).mkdir()
    done = run_in_process("models", "list", "--all", "--json")
    choices = {each["name"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert list(choices)[: len(CATALOG)] == list(HUB_ALIASES)
    assert choices[known.alias]["hub_id"] == known.hub_id
    assert choices[known.alias]["memory_needed_bytes"] == known.memory_bytes(float32=False)
    here = {name: each["here"] for name, each in choices.items() if each["here"] != "no"}
    wanted = {known.alias: "yes", CATALOG[1].alias: "partly", "org/tiny": "yes"}
    assert here.items() >= wanted.items()


def test_quantization_is_described_from_the_configuration(tmp_path: Path):
    directory = write_tiny_model(tmp_path / "model")
    four: dict[str, object] = {"bits": 4, "group_size": 32}
    for quantization, words in (
        (four | {"mode": "mxfp4"}, "4-bit, group 32, mxfp4"),
        (four | {"lm_head": {"bits": 8}}, "32.0 bits per weight"),
    ):
        config = tiny_config() | {"quantization": quantization}
        (directory / "config.json").write_text(json.dumps(config))
        assert describe("x", directory).quantization == words


def test_the_memory_needed_is_that_of_the_stored_dtype_which_most_weights_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A CPU converts weights to float32, and so keys and values."""
    directory = write_family(tmp_path / "model", "llama", "bfloat16")
    monkeypatch.setattr(platform, "on_gpu", lambda: False)
    facts = describe("x", directory)
    weights = (directory / "model.safetensors").stat().st_size
    assert facts.kv_bytes_per_token is not None
    assert facts.context_length is not None
    cache_bytes = min(facts.context_length, 8192) * facts.kv_bytes_per_token // 2
    needed_bytes = facts.memory_needed_bytes or 0
    assert needed_bytes == pytest.approx(weights + cache_bytes, rel=0.01)
    for free_bytes in (needed_bytes, needed_bytes - 1):
        monkeypatch.setattr(platform, "free_memory_bytes", lambda free=free_bytes: free)
        assert describe("x", directory).fits is (free_bytes == needed_bytes)


def test_rm_removes_one_model_from_the_hubs_cache_and_never_the_users_own_directory(
    cached_tiny: Path, tiny_model: Path
):
    """A copy of a repository has the same commits, and the library deleted the copy instead."""
    other = put_in_cache(hub_cache_dir(), "org/other", {"config.json": b"{}"})
    assert other.name == cached_tiny.name
    assert run_quietly("models", "rm", "--yes", "org/tiny").startswith("deleted org/tiny, ")
    assert not repo_dir("org/tiny").exists()
    assert (other / "config.json").is_file()
    for name, status, error in (
        ("org/tiny", 1, "org/tiny is not on this disk: nothing to delete"),
        (str(tiny_model), 2, f"{tiny_model} is your own directory: mlxchat does not delete it"),
    ):
        done = run_in_process("models", "rm", "--yes", name)
        assert (done.returncode, done.stderr) == (status, f"mlxchat: error: {error}\n")
    assert (tiny_model / "config.json").is_file()


@pytest.mark.model
def test_the_embedded_model_is_listed_before_it_is_converted():
    (line,) = run_in_process("models", "list", "--json").stdout.splitlines()
    assert json.loads(line)["problem"] == "installed; converted when first used"


def test_rm_removes_the_converted_copy_and_never_the_file(tmp_path: Path):
    """`models rm my.gguf` printed "removed my.gguf", as if the user's own file were gone."""
    file = tiny_gguf("llama").write(tmp_path / "mine.gguf")
    done = run_in_process("models", "rm", "--yes", str(file))
    assert done.stderr == f"mlxchat: error: {file} has not been converted: nothing to delete\n"
    facts = json.loads(run_in_process("models", "info", str(file), "--json").stdout)
    assert (facts["problem"], facts["context_length"]) == (None, 512)
    done = run_in_process("models", "rm", "--yes", str(file))
    assert done.stdout.startswith(f"deleted the converted copy of {file}, ")
    assert not Path(facts["directory"]).exists()
    assert file.exists()
