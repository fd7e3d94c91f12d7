"""Adapters: the same logits as in mlx-lm, and one clear line for those that cannot be used."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_flatten

import mlxchat
from mlxchat.app.chat import Chat
from mlxchat.errors import MlxchatError
from mlxchat.models.adapter import CONFIG, WEIGHTS, find_adapter
from mlxchat.models.load import load_directory
from mlxchat.models.model import Model
from mlxchat.models.skeleton import named_parameters
from mlxchat.request import ChatOptions, Setup
from scripts.families import write_family
from tests.conftest import build_random_model
from tests.in_process import run_in_process, run_quietly

TOKENS = mx.array([[72, 101, 108, 108, 111]])
PARAMETERS = {"rank": 4, "scale": 5.0, "dropout": 0.0}
FORMS = [
    *(("llama", "lora", "float32"), ("llama", "lora", "4-bit"), ("llama", "dora", "bfloat16")),
    *(("llama", "dora", "4-bit"), ("llama", "full", "bfloat16")),
    ("gemma3_text", "lora", "bfloat16"),
    # MLX computes experts on a CPU in float32 only, or packed.
    ("qwen3_moe", "lora", "float32"),
]


def make_adapter(network: nn.Module, directory: Path, kind: str) -> Path:
    """Adapt `network` in place, by random numbers, and save them: `kind` is lora, dora or full."""
    from mlx_lm.tuner.utils import linear_to_lora_layers

    mx.random.seed(0)
    layers: Any = network.layers
    network.freeze()
    if kind == "full":
        layers[-1].unfreeze()
    else:
        linear_to_lora_layers(network, len(layers), PARAMETERS, use_dora=kind == "dora")
    config = {"fine_tune_type": kind, "num_layers": len(layers), "lora_parameters": PARAMETERS}
    directory.mkdir(parents=True)
    (directory / CONFIG).write_text(json.dumps(config))
    trained: Any = tree_flatten(network.trainable_parameters())
    arrays = {name: a + (0.1 * mx.random.normal(a.shape)).astype(a.dtype) for name, a in trained}
    mx.save_safetensors(str(directory / WEIGHTS), arrays)
    return directory


def rewrite(directory: Path, **changes: Any) -> Path:
    """Change the configuration of an adapter."""
    path = directory / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return directory


def load(model: Path, adapter: Path | None = None, dtype: str = "stored") -> Model:
    return load_directory(
        model,
        "tiny",
        dtype=dtype,
        notify=lambda _: None,
        adapter=None if adapter is None else find_adapter(str(adapter)),
    )


def logits(network: nn.Module) -> np.ndarray:
    return np.array(network(TOKENS).astype(mx.float32))


def their_logits(model: Path, adapter: Path, dtype: str = "stored") -> np.ndarray:
    from mlx_lm.tuner.utils import load_adapters

    return logits(load_adapters(load(model, dtype=dtype).network, str(adapter)))


@pytest.fixture(scope="session")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(build_random_model(), tmp_path_factory.mktemp("adapters") / "lora", "lora")


@pytest.mark.parametrize(("family", "kind", "form"), FORMS)
def test_logits_equal_mlx_lms(family: str, kind: str, form: str, tmp_path: Path) -> None:
    """Bit for bit, since the same modules compute them; and with packed weights also unpacked."""
    model = write_family(tmp_path / "model", family, form)
    network = load(model).network
    plain = logits(network)
    adapter = make_adapter(network, tmp_path / "adapter", kind)
    adapted = load(model, adapter)
    assert not np.array_equal(logits(adapted.network), plain)
    np.testing.assert_array_equal(logits(adapted.network), their_logits(model, adapter))
    if form == "4-bit":
        unpacked = load(model, adapter, "float32").network
        assert {each.dtype for _, each in named_parameters(unpacked)} == {mx.float32}
        assert adapted.dtype == mx.bfloat16  # of the activations, though the factors are in float32
        theirs = their_logits(model, adapter, "float32")
        np.testing.assert_allclose(logits(unpacked), theirs, rtol=1e-5, atol=1e-5)


def rename(directory: Path, of: Callable[[str], str | None]) -> None:
    """Give the arrays of an adapter the names `of` theirs, or leave them out."""
    path = str(directory / WEIGHTS)
    arrays: Any = mx.load(path)
    mx.save_safetensors(path, {new: a for name, a in arrays.items() if (new := of(name))})


DAMAGE: dict[str, Callable[[Path], object]] = {
    "is damaged; download it again": lambda d: os.truncate(d / WEIGHTS, 1000),
    "is incomplete": lambda d: rename(d, lambda n: None if "lora_b" in n else n),
    "not an adapter parameter": lambda d: rename(d, lambda n: n.replace("layers.1", "layers.2")),
    "it needs adapter_config.json and": lambda d: (d / WEIGHTS).unlink(),
    "a PEFT adapter": lambda d: (d / WEIGHTS).rename(d / "adapter_model.bin"),
    "cannot use adapter": lambda d: (d / CONFIG).write_text("[]"),
    "required key 'scale'": lambda d: rewrite(d, lora_parameters={"alpha": 16}),
    "does not match": lambda d: rewrite(d, lora_parameters=PARAMETERS | {"rank": 10**9}),
    "fails on its first tokens": lambda d: rewrite(d, lora_parameters=PARAMETERS | {"scale": "x"}),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_is_one_clear_line_before_weights_are_read_if_possible(
    message: str, lora: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if message != "fails on its first tokens":
        monkeypatch.setattr("mlxchat.models.load._fill", None)
    directory = Path(shutil.copytree(lora, tmp_path / "damaged"))
    DAMAGE[message](directory)
    with pytest.raises(MlxchatError) as error:
        load(tiny_model, directory)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


# Ways in: what was saved with another adapter is never used


LOUDER = PARAMETERS | {"scale": 20.0}
LONG = "".join(f"Line {n} tells of the sea. " for n in range(60))


@pytest.fixture
def louder(lora: Path, tmp_path: Path) -> Path:
    """The same arrays with another scale: only the configuration tells them apart."""
    return rewrite(Path(shutil.copytree(lora, tmp_path / "louder")), lora_parameters=LOUDER)


def ask(model: Path, adapter: Path | None, *options: str, prompt: str = LONG) -> dict[str, Any]:
    """The last event of `generate`."""
    chosen = () if adapter is None else ("--adapter", str(adapter))
    how = ("generate", "-m", str(model), "--json", "--temp", "0", "-n", "12", "--ignore-eos")
    return json.loads(run_quietly(*how, *chosen, *options, prompt).splitlines()[-1])


def test_generate_batch_and_python_agree(tiny_model: Path, lora: Path, tmp_path: Path) -> None:
    plain, adapted = ask(tiny_model, None)["text"], ask(tiny_model, lora)["text"]
    assert plain != adapted
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"id": n, "prompt": LONG}) + "\n" for n in range(2)))
    done = run_in_process(
        *("batch", str(rows), "-m", str(tiny_model), "--adapter", str(lora), "--temp", "0"),
        *("-n", "12", "--ignore-eos"),
    )
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == [adapted] * 2
    model = mlxchat.load(str(tiny_model), adapter=str(lora))
    settings = mlxchat.GenerationSettings(max_tokens=12, ignore_eos=True)
    ids = model.tokenizer.prompt(LONG).ids
    reply = mlxchat.Reply(model, ids, model.make_cache(), settings=settings)
    assert "".join(token.text for token in mlxchat.generate(reply)) == adapted


@pytest.mark.parametrize("kind", ["prefix", "block"])
def test_what_was_stored_with_another_adapter_is_not_used(
    kind: str, tiny_model: Path, lora: Path, louder: Path, tmp_path: Path
) -> None:
    block = tmp_path / "block.md"
    block.write_text(LONG)
    options, prompt = ((), LONG) if kind == "prefix" else (("--block", str(block)), "What?")
    for adapter in (None, lora, louder):
        first = ask(tiny_model, adapter, *options, prompt=prompt)
        assert first["cached_tokens"] == 0
        again = ask(tiny_model, adapter, *options, prompt=prompt)
        assert again["cached_tokens"] > 1000
        assert again["text"] == first["text"]


def test_a_checkpoint_remembers_its_adapter_and_notices_another_one(
    tiny_model: Path, lora: Path, tmp_path: Path
) -> None:
    adapter = Path(shutil.copytree(lora, tmp_path / "adapter"))
    place = str(tmp_path / "run")
    chosen = ("-m", str(tiny_model), "--adapter", str(adapter), "--temp", "0", "--ignore-eos")
    whole = ask(tiny_model, adapter, "-n", "30", prompt="to be")["text"]
    begun = (*chosen, "--checkpoint", place, "-n", "20", "--checkpoint-every", "5", "to be")
    assert run_in_process("generate", *begun).returncode == 0
    run_quietly("generate", "--resume", place, "-n", "30")
    assert (tmp_path / "run" / "output.txt").read_text().rstrip("\n") == whole.rstrip("\n")
    rewrite(adapter, lora_parameters=LOUDER)
    changed = run_in_process("generate", "--resume", place, "-n", "40")
    assert (changed.returncode, changed.stderr.count("\n")) == (1, 1)
    assert "with a different adapter" in changed.stderr
    assert "weights" not in changed.stderr


def test_a_session_keeps_its_adapter_for_its_model_and_notices_another_one(
    tiny_model: Path, lora: Path, louder: Path
) -> None:
    setup = Setup(str(tiny_model), adapter=str(lora), keep=0, sampling={"temp": 0.0})
    short = mlxchat.GenerationSettings(max_tokens=10)
    with Chat.open(ChatOptions(setup, generation=short), session="one") as chat:
        list(chat.say("hello"))
        held = list(chat.conversation.ledger.ids)
    with Chat.open(session="one") as chat:
        adapter = chat.conversation.model.adapter
        assert adapter is not None
        assert adapter.name == str(lora)
        assert list(chat.conversation.ledger.ids) == held
        assert chat.notices == []
    with Chat.open(ChatOptions(Setup(str(tiny_model), adapter=str(louder))), session="one") as chat:
        assert chat.conversation.turns[0].user == "hello"
        notice = "with a different adapter: the text will be read again"
        assert any(each.endswith(notice) for each in chat.notices)
        chat.change_model(chat.find(str(tiny_model)))
        assert chat.conversation.model.adapter is None
