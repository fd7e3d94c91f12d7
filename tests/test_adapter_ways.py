"""Adapters by all ways in, and what was saved with another adapter is never used."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import mlxchat
from mlxchat.app.chat import Chat
from mlxchat.app.ranks import check_ranks
from mlxchat.errors import UsageError
from mlxchat.request import ChatOptions, Request, Setup
from scripts.tiny_model import write_tiny_model
from tests.conftest import build_random_model
from tests.in_process import run_in_process
from tests.trained_adapter import rewrite, train

LOUDER = {"rank": 4, "scale": 20.0, "dropout": 0.0}
LONG = "".join(f"Line {n} tells of the sea. " for n in range(120))


@pytest.fixture(scope="session")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(build_random_model(), tmp_path_factory.mktemp("adapters") / "lora", "lora")


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
    with mlxchat.begin(Request(setup, LONG, max_tokens=12, ignore_eos=True)) as run:
        assert "".join(piece.text for piece in run) == adapted
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
    tokens = mlxchat.Generation(model, prompt.ids, model.make_cache(), settings=settings)
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
    begun = ("-o", str(out), "--checkpoint", str(place), "--max-bytes", "20")
    begun += ("--checkpoint-every", "5")
    assert run_in_process("generate", *chosen, *begun, "to be").returncode == 0
    done = run_in_process("generate", "--resume", str(place), "--max-bytes", "30")
    assert (done.returncode, done.stderr) == (0, "")
    assert whole.startswith(out.read_text().rstrip("\n")[:20])
    refused = run_in_process("generate", "--resume", str(place), "--adapter", str(lora))
    assert refused.returncode == 2
    assert "--adapter" in refused.stderr
    rewrite(adapter, lora_parameters=LOUDER)
    changed = run_in_process("generate", "--resume", str(place), "--max-bytes", "40")
    assert (changed.returncode, changed.stderr.count("\n")) == (1, 1)
    assert "a different adapter" in changed.stderr
    assert "different weights" not in changed.stderr


def test_a_session_keeps_its_adapter_for_its_model(tiny_model: Path, lora: Path) -> None:
    setup = Setup(str(tiny_model), adapter=str(lora), keep=0, sampling={"temp": 0.0})
    with Chat.open(ChatOptions(setup, generation=SHORT), session="one") as chat:
        for _ in chat.say("hello"):
            pass
        held = list(chat.conversation.held_ids)
    with Chat.open(ChatOptions(generation=SHORT), session="one") as chat:
        assert applied(chat) == str(lora)
        assert list(chat.conversation.held_ids) == held
        assert chat.notices == []
    with Chat.open(ChatOptions(Setup(str(tiny_model)), generation=SHORT), session="one") as chat:
        assert applied(chat) is None


def test_a_snapshot_with_another_adapter_is_read_again(
    tiny_model: Path, lora: Path, louder: Path
) -> None:
    setup = Setup(str(tiny_model), adapter=str(lora), keep=0)
    with Chat.open(ChatOptions(setup, generation=SHORT), session="one") as chat:
        for _ in chat.say("hello"):
            pass
    changed = ChatOptions(Setup(str(tiny_model), adapter=str(louder), keep=0))
    with Chat.open(changed, session="one") as chat:
        assert chat.conversation.turns[0].user == "hello"
        assert any("a different adapter" in str(each) for each in chat.notices)


def test_a_model_changed_in_a_chat_has_no_adapter(
    tiny_model: Path, lora: Path, tmp_path: Path
) -> None:
    other = write_tiny_model(tmp_path / "other", seed=5)
    setup = Setup(str(tiny_model), adapter=str(lora), keep=0)
    with Chat.open(ChatOptions(setup, generation=SHORT), save=False) as chat:
        chat.conversation  # noqa: B018
        chat.change_model(str(other))
        assert applied(chat) is None


def test_several_machines_cannot_have_an_adapter(lora: Path) -> None:
    ranks: Any = object()
    with pytest.raises(UsageError, match=r"--adapter cannot be used under mlx\.launch"):
        check_ranks(ranks, adapter=True)
    with pytest.raises(UsageError, match="adapter cannot be used"):
        Chat.open(ChatOptions(Setup(adapter=str(lora))), save=False, ranks=ranks)


def test_the_benchmarks_measure_with_the_adapter(tiny_model: Path, lora: Path) -> None:
    chosen = ("-m", str(tiny_model), "--adapter", str(lora), "--quick")
    done = run_in_process("bench", "decode", *chosen)
    assert done.returncode == 0, done.stderr
    refused = run_in_process("bench", "startup", *chosen, "--against", "mlx-lm")
    assert refused.returncode != 0
    assert "startup is compared only without --adapter" in refused.stderr
