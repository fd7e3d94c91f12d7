"""Adapters: the same logits as in mlx-lm, and one clear line for those that cannot be used."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from mlxchat.errors import AdapterError, HubError, MlxchatError, ModelBroken, ModelNotFound
from mlxchat.models.adapters.adapter import Adapter
from mlxchat.models.adapters.apply import exchange
from mlxchat.models.adapters.find import FoundAdapter, are_different_models, find_adapter
from mlxchat.models.adapters.read import read_adapter
from mlxchat.models.hub_cache import repo_dir
from mlxchat.models.load import load_directory
from mlxchat.models.model import Model
from scripts.families import build_family, write_family
from scripts.tiny_model import tiny_config
from tests.conftest import RunMlxchat, build_random_model
from tests.fake_hub import FakeHub, FakeRepo
from tests.trained_adapter import as_peft, parameters_of, rewrite, train

TOKENS = mx.array([[72, 101, 108, 108, 111]])
FAMILIES = ("llama", "gemma3_text", "qwen3")
KINDS = [(family, kind) for family in FAMILIES for kind in ("lora", "dora", "full")]


def adapter_in(directory: Path) -> Adapter:
    return read_adapter(FoundAdapter(str(directory), directory))


def load(model: Path, adapter: Path | None = None, dtype: str = "stored") -> Model:
    return load_directory(
        model,
        "tiny",
        dtype=dtype,
        notify=lambda _: None,
        adapter=None if adapter is None else adapter_in(adapter),
    )


def logits(network: nn.Module) -> np.ndarray:
    return np.array(network(TOKENS).astype(mx.float32))


def their_logits(model: Path, adapter: Path) -> np.ndarray:
    from mlx_lm.tuner.utils import load_adapters
    from mlx_lm.utils import load_model

    network, _ = load_model(model)
    return logits(load_adapters(network, str(adapter)))


@pytest.fixture(scope="session")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(build_random_model(), tmp_path_factory.mktemp("adapters") / "lora", "lora")


@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_logits_equal_mlx_lms(family: str, kind: str, tmp_path: Path) -> None:
    """In float32, bfloat16 and 4 bits; bit for bit, since the same modules compute them."""
    adapter = train(build_family(family), tmp_path / "adapter", kind)
    for form in ("float32", "bfloat16", "4-bit"):
        model = write_family(tmp_path / form, family, form)
        if (kind, form) == ("full", "4-bit"):
            with pytest.raises(AdapterError, match="has shape"):
                load(model, adapter)
            continue
        if kind == "full":
            adapter = train(load(model).network, tmp_path / f"full-{form}", kind)
        adapted = logits(load(model, adapter).network)
        assert not np.array_equal(adapted, logits(load(model).network))
        np.testing.assert_array_equal(adapted, their_logits(model, adapter))


def test_experts_are_adapted(tmp_path: Path) -> None:
    """MLX computes them on a CPU in float32 only, or packed."""
    model = write_family(tmp_path / "model", "qwen3_moe")
    adapter = train(build_family("qwen3_moe"), tmp_path / "adapter", "lora")
    assert any("switch_mlp" in path for path in adapter_in(adapter).low_rank)
    np.testing.assert_array_equal(
        logits(load(model, adapter).network), their_logits(model, adapter)
    )


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_an_adapter_for_packed_weights_works_on_them_unpacked(kind: str, tmp_path: Path) -> None:
    model = write_family(tmp_path / "model", "llama", "4-bit")
    adapter = train(load(model).network, tmp_path / "adapter", kind)
    packed, unpacked = load(model, adapter), load(model, adapter, "float32")
    assert unpacked.dtype == mx.float32
    assert {each.dtype for each in parameters_of(unpacked.network).values()} == {mx.float32}
    assert packed.dtype == mx.bfloat16  # of the activations, though the factors are in float32
    np.testing.assert_allclose(logits(unpacked.network), logits(packed.network), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_pefts_layout_is_converted(kind: str, tiny_model: Path, tmp_path: Path) -> None:
    ours = train(build_random_model(), tmp_path / "ours", kind)
    theirs = as_peft(ours, tmp_path / "theirs")
    np.testing.assert_array_equal(
        logits(load(tiny_model, theirs).network), logits(load(tiny_model, ours).network)
    )


def test_pefts_scale_may_depend_on_the_root_of_the_rank_or_on_the_module(
    lora: Path, tmp_path: Path
) -> None:
    directories = {
        "plain": as_peft(lora, tmp_path / "plain", lora_alpha=8),
        "root": as_peft(lora, tmp_path / "root", lora_alpha=8, use_rslora=True),
        "own": as_peft(lora, tmp_path / "own", alpha_pattern={"self_attn.q_proj": 16}),
    }
    scales = {
        name: {
            low_rank.scale
            for path, low_rank in adapter_in(directory).low_rank.items()
            if "q_proj" in path
        }
        for name, directory in directories.items()
    }
    assert scales == {"plain": {2.0}, "root": {4.0}, "own": {4.0}}


def test_paths_may_have_another_wrapper_around_the_layers(lora: Path) -> None:
    """PEFT uses the names of Hugging Face's models, and mlx-lm puts some of them elsewhere."""
    adapter = adapter_in(lora)
    moved = {f"model.language_{path}": each for path, each in adapter.low_rank.items()}
    network = build_random_model()
    expected = build_random_model()
    exchange(adapter, expected, mx.float32)
    exchange(Adapter("moved", moved, {}, ""), network, mx.float32)
    np.testing.assert_array_equal(logits(network), logits(expected))


@pytest.mark.parametrize(
    "changes",
    [
        {"peft_type": "IA3"},
        {"bias": "all"},
        {"modules_to_save": ["lm_head"]},
        {"init_lora_weights": "pissa_niter_4"},
        {"alpha_pattern": {"(a+)+$": 4}},
        {"lora_alpha": "many"},
    ],
)
def test_variants_of_peft_that_cannot_be_converted_are_named(
    changes: dict[str, Any], lora: Path, tmp_path: Path
) -> None:
    directory = as_peft(lora, tmp_path / "peft", **changes)
    (name,) = changes
    shown = {"bias": "biases", "peft_type": "IA3"}.get(name, name)
    with pytest.raises(AdapterError, match=shown):
        adapter_in(directory)


def test_an_adapter_of_another_model_is_refused_before_weights_are_read(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wider = train(
        build_random_model(tiny_config() | {"hidden_size": 64}), tmp_path / "wider", "lora"
    )
    deeper = train(
        build_random_model(tiny_config() | {"num_hidden_layers": 3}), tmp_path / "deeper", "lora"
    )
    monkeypatch.setattr("mlxchat.models.load._fill", None)
    for adapter, why in ((wider, "has shape"), (deeper, "the model has no")):
        with pytest.raises(AdapterError) as error:
            load(tiny_model, adapter)
        message = str(error.value)
        assert f"adapter {adapter}, trained on org/tiny-4bit, does not fit" in message
        assert why in message
        assert "\n" not in message


def truncated(directory: Path) -> None:
    path = directory / "adapters.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def halved(directory: Path) -> None:
    path = str(directory / "adapters.safetensors")
    arrays: Any = mx.load(path)
    mx.save_safetensors(path, {name: a for name, a in arrays.items() if "lora_b" not in name})


def emptied(directory: Path) -> None:
    mx.save_safetensors(str(directory / "adapters.safetensors"), {})


def replaced(name: str) -> Any:
    def replace(directory: Path) -> None:
        (directory / "adapters.safetensors").rename(directory / name)

    return replace


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncated, "is truncated"),
        (halved, "is incomplete"),
        (emptied, "has no arrays"),
        (replaced("adapter_model.bin"), "a pickle"),
        (replaced("adapters.npz"), "old mlx-lm"),
        (replaced("elsewhere"), "has no adapters.safetensors or adapter_model.safetensors"),
        (lambda d: (d / "adapters.safetensors").write_bytes(b"x" * 50), "not a safetensors file"),
        (lambda d: (d / "adapter_config.json").write_text("[]"), "not a JSON object"),
        (lambda d: (d / "adapter_config.json").write_bytes(b"\xff\x00"), "cannot read"),
        (lambda d: rewrite(d, lora_parameters={"alpha": 16}), "a rank and a scale"),
        (lambda d: rewrite(d, fine_tune_type="soft"), "unknown fine_tune_type 'soft'"),
        (lambda d: rewrite(d, lora_parameters={"rank": 10**9, "scale": 1}), "has shape"),
        (lambda d: rewrite(d, lora_parameters={"rank": -1, "scale": 1}), "a rank and a scale"),
    ],
)
def test_damage_is_one_clear_line(
    damage: Any, message: str, lora: Path, tiny_model: Path, tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(lora, tmp_path / "damaged"))
    damage(directory)
    with pytest.raises((AdapterError, ModelBroken)) as error:
        load(tiny_model, directory)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_names_that_lead_to_no_adapter(tmp_path: Path, lora: Path) -> None:
    def find(name: str) -> FoundAdapter:
        return find_adapter(name, offline=True, notify=lambda _: None, show_progress=False)

    (tmp_path / "empty").mkdir()
    cases: list[tuple[str, type[MlxchatError], str]] = [
        (str(tmp_path / "empty"), AdapterError, "is not an adapter"),
        (str(lora / "adapters.safetensors"), AdapterError, "name the directory"),
        (str(tmp_path / "missing"), ModelNotFound, "no adapter named"),
        ("", AdapterError, "is not an adapter"),
        ("org/lora", HubError, "the network is off"),
    ]
    for name, kind, message in cases:
        with pytest.raises(kind, match=message):
            find(name)
    assert find(str(lora)).directory == lora


def test_exchanging_adapters_leaves_nothing_behind(tmp_path: Path, lora: Path) -> None:
    network = build_random_model()
    plain = logits(network)
    names = parameters_of(network).keys()
    exchange(adapter_in(lora), network, mx.float32)
    adapted = logits(network)
    other = adapter_in(train(build_random_model(), tmp_path / "other", "dora", seed=1))
    exchange(other, network, mx.float32)
    assert not np.array_equal(logits(network), adapted)
    misfit = adapter_in(train(build_family("llama", hidden_size=64), tmp_path / "misfit", "lora"))
    before = logits(network)
    with pytest.raises(AdapterError):
        exchange(misfit, network, mx.float32)
    np.testing.assert_array_equal(logits(network), before)
    exchange(adapter_in(lora), network, mx.float32)
    np.testing.assert_array_equal(logits(network), adapted)
    exchange(None, network, mx.float32)
    np.testing.assert_array_equal(logits(network), plain)
    assert parameters_of(network).keys() == names


def test_only_the_files_of_an_adapter_are_downloaded(
    lora: Path, tiny_model: Path, run_program: RunMlxchat, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {each.name: each.read_bytes() for each in lora.iterdir()}
    others = {"README.md": b"# no", "0000003_adapters.safetensors": b"", "config.json": b"{}"}
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")

    def generate(adapter: str) -> "subprocess.CompletedProcess[str]":
        options = ("-m", str(tiny_model), "--adapter", adapter, "-n", "5", "--temp", "0")
        return run_program("generate", *options, "to be")

    with FakeHub({"org/lora": FakeRepo(files | others), "org/other": FakeRepo(others)}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        done = generate("org/lora")
        assert (done.returncode, done.stderr.count("\n")) == (0, 1)
        assert done.stderr.startswith("mlxchat: downloading org/lora, ")
        (snapshot,) = (repo_dir("org/lora") / "snapshots").iterdir()
        assert {each.name for each in snapshot.iterdir()} == set(files)
        seen = len(hub.requests)
        assert generate("org/lora").stdout == done.stdout == generate(str(lora)).stdout
        assert len(hub.requests) == seen
        refused = generate("org/other")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr.startswith("mlxchat: error: org/other is not an adapter: ")
        assert refused.stderr.count("\n") == 1
    found = find_adapter("org/lora", offline=True, notify=print, show_progress=False)
    assert found.directory == snapshot


def test_conversions_of_a_model_are_the_same_model() -> None:
    same = "mlx-community/Llama-3.2-1B-Instruct-4bit"
    assert not are_different_models("unsloth/llama-3.2-1b-instruct-bnb-4bit", same)
    assert not are_different_models("/home/me/models/anything", same)
    assert are_different_models("meta-llama/Llama-3.2-1B", same)
    assert are_different_models("Qwen/Qwen3-0.6B", same)
