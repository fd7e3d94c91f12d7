"""Adapters: the same logits as in mlx-lm, and one clear line for those that cannot be used."""

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

import mlxchat
from mlxchat.app.chat import Chat
from mlxchat.errors import MlxchatError, ModelError
from mlxchat.models.adapter import find_adapter
from mlxchat.models.load import load_directory
from mlxchat.models.model import Model
from mlxchat.models.skeleton import named_parameters
from mlxchat.request import ChatOptions, Request, Setup
from scripts.families import build_family, write_family
from scripts.tiny_model import tiny_config
from tests.conftest import build_random_model
from tests.in_process import run_in_process
from tests.trained_adapter import rewrite, train

TOKENS = mx.array([[72, 101, 108, 108, 111]])
KINDS = [("llama", "lora"), ("llama", "dora"), ("llama", "full"), ("gemma3_text", "lora")]


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
            with pytest.raises(ModelError, match="does not match"):
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
    adapted = load(model, adapter).network
    assert any("switch_mlp" in name and "lora_a" in name for name, _ in named_parameters(adapted))
    np.testing.assert_array_equal(logits(adapted), their_logits(model, adapter))


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_an_adapter_for_packed_weights_works_on_them_unpacked(kind: str, tmp_path: Path) -> None:
    model = write_family(tmp_path / "model", "llama", "4-bit")
    adapter = train(load(model).network, tmp_path / "adapter", kind)
    packed, unpacked = load(model, adapter), load(model, adapter, "float32")
    assert {each.dtype for _, each in named_parameters(unpacked.network)} == {mx.float32}
    assert packed.dtype == mx.bfloat16  # of the activations, though the factors are in float32
    np.testing.assert_allclose(logits(unpacked.network), logits(packed.network), rtol=0.1, atol=0.1)


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
    for adapter, why in ((wider, "does not match"), (deeper, "not an adapter parameter")):
        with pytest.raises(ModelError) as error:
            load(tiny_model, adapter)
        message = str(error.value)
        assert message.startswith(f"cannot use adapter {adapter}: ")
        assert why in message
        assert "\n" not in message


def truncated(directory: Path) -> None:
    path = directory / "adapters.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def halved(directory: Path) -> None:
    path = str(directory / "adapters.safetensors")
    arrays: Any = mx.load(path)
    mx.save_safetensors(path, {name: a for name, a in arrays.items() if "lora_b" not in name})


def parameters(**changes: Any) -> Any:
    values = {"rank": 4, "scale": 5.0, "dropout": 0.0} | changes
    return lambda directory: rewrite(directory, lora_parameters=values)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncated, "is damaged; download it again"),
        (halved, "is incomplete"),
        (lambda d: (d / "adapters.safetensors").unlink(), "it needs adapter_config.json and"),
        (lambda d: (d / "adapters.safetensors").rename(d / "adapter_model.bin"), "a PEFT adapter"),
        (lambda d: (d / "adapter_config.json").write_text("[]"), "cannot use adapter"),
        (lambda d: rewrite(d, lora_parameters={"alpha": 16}), "required key 'scale'"),
        (parameters(rank=10**9), "does not match"),
        (parameters(scale="loud"), "fails on its first tokens"),
    ],
)
def test_damage_is_one_clear_line(
    damage: Any, message: str, lora: Path, tiny_model: Path, tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(lora, tmp_path / "damaged"))
    damage(directory)
    with pytest.raises(MlxchatError) as error:
        load(tiny_model, directory)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


# Ways in: what was saved with another adapter is never used


LOUDER = {"rank": 4, "scale": 20.0, "dropout": 0.0}
LONG = "".join(f"Line {n} tells of the sea. " for n in range(120))


SHORT = mlxchat.GenerationSettings(max_tokens=10)


@pytest.fixture
def louder(lora: Path, tmp_path: Path) -> Path:
    """The same arrays with another scale: only the configuration tells them apart."""
    directory = Path(shutil.copytree(lora, tmp_path / "louder"))
    return rewrite(directory, lora_parameters=LOUDER)


def ask(model: Path, adapter: Path | None, *options: str, prompt: str = LONG) -> dict[str, Any]:
    """The last event of `generate`."""
    chosen = () if adapter is None else ("--adapter", str(adapter))
    done = run_in_process(
        *("generate", "-m", str(model), "--json", "--temp", "0", "-n", "12", "--ignore-eos"),
        *(*chosen, *options, prompt),
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout.splitlines()[-1])


def applied(chat: Chat) -> str | None:
    """The name of the adapter in the chat's model."""
    adapter = chat.conversation.model.adapter
    return None if adapter is None else adapter.name


def test_every_way_in_gives_the_same_text(tiny_model: Path, lora: Path, tmp_path: Path) -> None:
    plain, adapted = ask(tiny_model, None)["text"], ask(tiny_model, lora)["text"]
    assert plain != adapted
    setup = Setup(str(tiny_model), adapter=str(lora), sampling={"temp": 0})
    request = Request(setup, LONG, max_tokens=12, ignore_eos=True)
    with mlxchat.begin(request) as run:
        assert "".join(piece.text for piece in run).rstrip("\n") == adapted.rstrip("\n")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"id": n, "prompt": LONG}) + "\n" for n in range(2)))
    done = run_in_process(
        *("batch", str(rows), "-m", str(tiny_model), "--adapter", str(lora), "--temp", "0"),
        *("-n", "12", "--ignore-eos"),
    )
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == [adapted] * 2
    once = ("-m", str(tiny_model), "--temp", "0", "-n", "12", LONG)
    answers = [run_in_process(*each, *once).stdout for each in ((), ("--adapter", str(lora)))]
    assert answers[0] != answers[1]
    model = mlxchat.load(str(tiny_model), adapter=str(lora))
    prompt = model.tokenizer.prompt(LONG)
    settings = mlxchat.GenerationSettings(max_tokens=12, ignore_eos=True)
    tokens = mlxchat.generate(
        mlxchat.Reply(model, prompt.ids, model.make_cache(), settings=settings)
    )
    assert "".join(token.text for token in tokens) == adapted


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
        assert again["cached_tokens"] > 2000
        assert again["text"] == first["text"]


def test_a_checkpoint_remembers_its_adapter_and_notices_another_one(
    tiny_model: Path, lora: Path, tmp_path: Path
) -> None:
    adapter = Path(shutil.copytree(lora, tmp_path / "adapter"))
    out, place = tmp_path / "out.txt", tmp_path / "run"
    chosen = ("-m", str(tiny_model), "--adapter", str(adapter), "--temp", "0", "--ignore-eos")
    whole = ask(tiny_model, adapter, "-n", "40", prompt="to be")["text"]
    begun = ("-o", str(out), "--checkpoint", str(place), "-n", "20")
    begun += ("--checkpoint-every", "5")
    assert run_in_process("generate", *chosen, *begun, "to be").returncode == 0
    done = run_in_process("generate", "--resume", str(place), "-n", "30")
    assert (done.returncode, done.stderr) == (0, "")
    assert whole.startswith(out.read_text().rstrip("\n")[:20])
    refused = run_in_process("generate", "--resume", str(place), "--adapter", str(lora))
    assert refused.returncode == 2
    assert "--adapter" in refused.stderr
    rewrite(adapter, lora_parameters=LOUDER)
    changed = run_in_process("generate", "--resume", str(place), "-n", "40")
    assert (changed.returncode, changed.stderr.count("\n")) == (1, 1)
    assert "a different adapter" in changed.stderr
    assert "different weights" not in changed.stderr


def test_a_session_keeps_its_adapter_for_its_model(tiny_model: Path, lora: Path) -> None:
    setup = Setup(str(tiny_model), adapter=str(lora), keep=0, sampling={"temp": 0.0})
    with Chat.open(ChatOptions(setup, generation=SHORT), session="one") as chat:
        for _ in chat.say("hello"):
            pass
        held = list(chat.conversation.ledger.ids)
    with Chat.open(ChatOptions(generation=SHORT), session="one") as chat:
        assert applied(chat) == str(lora)
        assert list(chat.conversation.ledger.ids) == held
        assert chat.notices == []
        chat.change_model(chat.find(str(tiny_model)))
        assert applied(chat) is None
    with Chat.open(ChatOptions(Setup(str(tiny_model)), generation=SHORT), session="one") as chat:
        assert applied(chat) is None


def test_a_snapshot_with_another_adapter_is_read_again(
    tiny_model: Path, lora: Path, louder: Path
) -> None:
    setup = Setup(str(tiny_model), adapter=str(lora))
    with Chat.open(ChatOptions(setup, generation=SHORT), session="one") as chat:
        for _ in chat.say("hello"):
            pass
    changed = ChatOptions(Setup(str(tiny_model), adapter=str(louder)))
    with Chat.open(changed, session="one") as chat:
        assert chat.conversation.turns[0].user == "hello"
        assert any("a different adapter" in str(each) for each in chat.notices)
