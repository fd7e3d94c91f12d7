"""A chat's default sampling, and replies that repeat themselves."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from mlxchat.app import opening
from mlxchat.app.chat import Chat
from mlxchat.models.load import load_directory
from mlxchat.models.model import Model
from mlxchat.models.sampling import GENERAL, chat_sampling
from mlxchat.request import ChatOptions, Setup
from mlxchat.settings import GenerationSettings
from scripts.tiny_model import write_tiny_model
from tests.conftest import RunMlxchat
from tests.scripted_model import Scripted

Configured = Callable[..., Model]

QWEN_THINKING = {"temp": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0}
QWEN_PLAIN = {"temp": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.0}


@pytest.fixture(scope="module")
def configured(tiny_model: Path) -> Configured:
    """The tiny model, with another name and other configuration files."""
    model = load_directory(tiny_model, "tiny", dtype="auto", notify=print)

    def make(name: str, model_type: str, **generation_config: Any) -> Model:
        config = {"model_type": model_type}
        return replace(model, name=name, config=config, generation_config=generation_config)

    return make


@pytest.mark.parametrize(
    ("name", "model_type", "expected"),
    [
        ("mlx-community/Qwen3-8B-4bit", "qwen3", QWEN_THINKING),
        ("/models/Llama-3.2-3B-Instruct-Q4_K_M.gguf", "llama", {"temp": 0.6, "top_p": 0.9}),
        ("smollm2", "llama", {"temp": 0.2, "top_p": 0.9}),
        ("mlx-community/DeepSeek-R1-Distill-Qwen-7B-4bit", "qwen2", {"temp": 0.6}),
        ("mlx-community/Mistral-7B-Instruct-v0.3-4bit", "llama", {"temp": 0.7}),
        # Of a type that mlx-lm runs with another family's module.
        ("mlx-community/MiniMax-M2.7-4bit", "minimax_m2", {"temp": 1.0, "top_k": 40}),
        ("somebody/finetune", "llama", GENERAL),
        ("somebody/unheard-of", "unheard_of", GENERAL),
    ],
)
def test_a_family_without_sampling_values_gets_its_model_cards(
    configured: Configured, name: str, model_type: str, expected: dict[str, Any]
) -> None:
    found = chat_sampling(configured(name, model_type), think=True)
    assert found | expected == found


@pytest.mark.parametrize(
    ("generation_config", "expected"),
    [
        ({"eos_token_id": 2}, GENERAL),
        ({"temperature": 0.3}, {"temp": 0.3}),
        ({"do_sample": True}, {"temp": 1.0}),
        ({"top_p": 0.5}, {**GENERAL, "top_p": 0.5}),
        ({"do_sample": False}, {"temp": 0.0}),
        ({"do_sample": False, "temperature": 0.9}, {"temp": 0.0}),
        # What no option can have is left out, as are values of the wrong kind.
        ({"temperature": -1, "top_k": -1, "top_p": 7, "min_p": True}, GENERAL),
    ],
)
def test_generation_config_overrides_the_family(
    configured: Configured, generation_config: dict[str, Any], expected: dict[str, Any]
) -> None:
    model = configured("tiny", "llama", **generation_config)
    assert chat_sampling(model, think=True) == expected


def opened(model: Path, **sampling: Any) -> Chat:
    # A script has one token for each step.
    generation = GenerationSettings(max_tokens=600, ignore_eos=True, lookup=False)
    setup = Setup(str(model), window=320, sampling=sampling, seed=7)
    return Chat.open(ChatOptions(setup, generation=generation), save=False)


def test_a_chat_samples_unless_greedy_is_chosen(tiny_model: Path) -> None:
    """A model without sampling values was silently greedy: typing `clear` into a first chat
    produced one sentence over and over until Ctrl-C."""
    with opened(tiny_model) as chat:
        assert asdict(chat.conversation.sampling).items() >= GENERAL.items()
        assert chat.notices == []
    with opened(tiny_model, temp=0.0) as chat:
        assert chat.conversation.sampling.temp == 0
        assert chat.notices == []
    with opened(tiny_model, top_k=3) as chat:
        assert (chat.conversation.sampling.temp, chat.conversation.sampling.top_k) == (0.8, 3)


def test_a_chat_reports_a_model_that_asks_for_greedy_sampling(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "m", generation_config={"do_sample": False})
    with opened(model) as chat:
        assert chat.conversation.sampling.temp == 0
        assert chat.notices == [
            "this model's generation_config.json asks for greedy decoding: "
            "--temp 0.8 gives other replies"
        ]
    with opened(model, temp=0.0) as chat:
        assert chat.conversation.sampling.temp == 0
        assert chat.notices == []


def test_changing_models_changes_all_sampling_that_was_not_set(
    tiny_model: Path, tmp_path: Path
) -> None:
    other = write_tiny_model(tmp_path / "m", generation_config={"temperature": 0.3, "top_k": 9})
    with opened(tiny_model) as chat:
        chat.set(top_k=3)
        chat.change_model(chat.find(str(other)))
        assert (chat.conversation.sampling.temp, chat.conversation.sampling.top_k) == (0.3, 3)


def test_turning_thoughts_off_changes_what_was_not_set(
    configured: Configured, monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    model = configured("mlx-community/Qwen3-8B-4bit", "qwen3")
    monkeypatch.setattr(opening, "load_model", lambda *_, **__: model)
    with opened(tiny_model, top_k=3) as chat:
        assert asdict(chat.conversation.sampling).items() >= (QWEN_THINKING | {"top_k": 3}).items()
        chat.set(min_p=0.1)
        chat.think(False)
        expected = QWEN_PLAIN | {"top_k": 3, "min_p": 0.1, "seed": 7}
        assert asdict(chat.conversation.sampling).items() >= expected.items()


REPEATING = Scripted("{% for m in messages %}[{{ m.content }}]{% endfor %}", (), "Round and round.")


@pytest.fixture
def repeating(monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> Chat:
    """A chat with a model that repeats itself and never ends its reply."""
    monkeypatch.setattr(opening, "load_model", lambda *_, **__: REPEATING.model())
    return opened(tiny_model)


def test_a_reply_that_repeats_itself_is_stopped_and_kept(repeating: Chat) -> None:
    """Nothing but Ctrl-C ended it."""
    notice = "stopped: the reply repeats itself (answer again (/retry) or continue (/continue))"
    with repeating as chat:
        text = "".join(said.text for said in chat.say("hello"))
        turn, stats = chat.conversation.turns[-1], chat.conversation.stats
        assert stats is not None
        assert (turn.reply, turn.finish_reason) == (text, "loop")
        assert (stats.finish_reason, chat.notices) == ("loop", [notice])
        assert 400 < stats.generated_tokens < 500
        # It can be continued until it repeats itself again.
        list(chat.continue_reply())
        assert len(chat.conversation.turns[-1].reply) > 800
        assert chat.notices == [notice, notice]


def test_a_retry_differs(tiny_model: Path) -> None:
    with opened(tiny_model) as chat:
        chat.set(max_tokens=20)
        replies = ["".join(said.text for said in chat.say("hello"))]
        replies += ["".join(said.text for said in chat.retry()) for _ in range(3)]
        assert len(set(replies)) == 4
        assert chat.notices == []


def test_a_retry_that_cannot_differ_says_why(tiny_model: Path) -> None:
    """At --temp 0, /retry silently gave the same reply again."""
    with opened(tiny_model, temp=0.0) as chat:
        chat.set(max_tokens=20)
        list(chat.say("hello"))
        list(chat.retry())
        assert chat.notices == [
            "the same reply again at a temperature of 0: --temp 0.8 gives other replies"
        ]


def test_generate_names_an_option_without_effect(run_mlxchat: RunMlxchat, tiny_model: Path) -> None:
    arguments = ["generate", "-m", str(tiny_model), "-n", "1", "--top-p", "0.9", "Hello"]
    done = run_mlxchat(*arguments)
    assert done.stderr == "mlxchat: --top-p has no effect while --temp is 0\n"
    assert run_mlxchat(*arguments, "--temp", "1").stderr == ""
