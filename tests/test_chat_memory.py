"""What stays of turns that left the window: notes, and quotes, gone after the reply.

What is said and undone around them is drawn in test_conversation; here are the families whose
layers would remember a quote, and what quotes and notes hold."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxchat.cache.layers import tokens_held
from mlxchat.chat import note
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.note import NOTE_SHARE
from mlxchat.chat.rendering import room_for_more
from mlxchat.chat.state import NOTE_BEGINS, Compacted, Recalled, Turn
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.reply import Reply
from mlxchat.errors import DeviceError, UsageError
from mlxchat.models.model import Model
from mlxchat.settings import SamplingSettings
from mlxchat.text.encoder import TokenIds
from scripts.families import build_family
from scripts.tiny_model import tiny_config
from tests import chat_templates
from tests.conftest import build_random_model
from tests.conversations import check_in_step, make_conversation, network, prompt_of, say
from tests.failing_device import FailingDevice
from tests.scripted_model import Scripted, follow_script

FACT = "My name is Ada."
CHANGE = "My name is Grace now, not Ada."
QUESTION = "What is my name?"
NEUTRAL = Constraint.from_choices(["So it is."])
NARROW = 560


def forgetful(*facts: str, recalls: int = 2, **options: Any) -> Conversation:
    """A conversation that has forgotten facts, without having recalled anything yet."""
    conversation = make_conversation(NARROW, **{"max_tokens": 8, **options})
    conversation.sampling = SamplingSettings()
    texts = [*(facts or [FACT]), *(filler * 110 for filler in "bcd")]
    conversation.add(*(Turn(text, "So it is.") for text in texts))
    say(conversation, "e" * 110, NEUTRAL)
    assert all(turn.forgotten for turn in conversation.turns[: len(facts) or 1])
    conversation.recalls = recalls
    return conversation


def held(conversation: Conversation) -> str:
    return conversation.model.tokenizer.decode(conversation.ledger.ids)


def net_of(family: str) -> Any:
    return network() if family == "llama" else build_family(family)


def each_family(*quick: str, slow: tuple[str, ...] = ()) -> Any:
    marked = [pytest.param(each, marks=pytest.mark.slow) for each in slow]
    return pytest.mark.parametrize("family", [*quick, *marked])


RECURRENT = ["mamba2", "rwkv7", "qwen3_next", "falcon_h1"]
ANSWER = Constraint.from_choices(["It is Ada."])


def cost(conversation: Conversation) -> int:
    assert conversation.stats is not None
    return conversation.stats.prompt_tokens - conversation.stats.cached_tokens


def logits(conversation: Conversation) -> np.ndarray:
    """What the cache makes of one more token."""
    probe = mx.array([[65]])
    return np.array(conversation.model.network(probe, cache=conversation.cache.fork())[0, -1])


def check_same(one: Conversation, other: Conversation) -> None:
    np.testing.assert_array_equal(one.ledger.ids, other.ledger.ids)
    np.testing.assert_allclose(logits(one), logits(other), atol=2e-3)


def answer(conversation: Conversation, text: str = QUESTION) -> list[Recalled]:
    """Say it; the reply is the same whatever the model has read."""
    said = conversation.say(text, constraint=ANSWER)
    return [each for each in said if isinstance(each, Recalled)]


@each_family(*("llama", "mamba2", "qwen3_next"), slow=("recurrent_gemma", "rwkv7", "falcon_h1"))
def test_a_cache_is_what_it_would_be_without_the_quote(family: str) -> None:
    """Recurrent layers remembered an evicted quote. They read only message and reply again."""
    net = net_of(family)
    quoting, plain = (forgetful(net=net, recalls=n, max_tokens=16) for n in (2, 0))
    assert answer(quoting)
    # Those that the quote pushed out.
    plain.forget(len(quoting.state.forgotten) - len(plain.state.forgotten))
    assert not answer(plain)
    assert "Earlier" not in held(quoting)
    own = len(QUESTION + "It is Ada." + "go on") + 2 * len("<user\n>\n<assistant\n>\n")
    for text in ("go on", "and then?"):
        answer(quoting, text)
        answer(plain, text)
        check_same(quoting, plain)
        if text == "go on" and family in RECURRENT:
            assert cost(quoting) <= own + 2
    assert cost(quoting) <= cost(plain)


@each_family("mamba2", slow=("gemma3n", "qwen3_next"))
def test_going_back_from_a_recall_restores_the_cache(family: str) -> None:
    net = net_of(family)
    conversation, untouched = (forgetful(net=net, recalls=n) for n in (2, 0))
    for steps in (0, 1, 3, 6):
        asked = iter([False] * steps)
        say(conversation, QUESTION, should_stop=lambda asked=asked: next(asked, True))
        if len(conversation.turns) > len(untouched.turns):
            assert "Earlier" not in held(conversation)
            conversation.undo()
        check_same(conversation, untouched)
    assert answer(conversation)
    assert any(isinstance(each, Recalled) for each in conversation.retry())
    conversation.undo()
    check_same(conversation, untouched)


def test_a_message_with_a_file_recalls_what_its_question_needs() -> None:
    """The words of the file were looked for, and those of the question were too many."""
    page = " ".join(f"w{n}x" for n in range(80))
    said = forgetful().say(f"{page}\n\n{QUESTION}", documents=len(page) + 2, constraint=ANSWER)
    assert [each for each in said if isinstance(each, Recalled)]


# What is quoted


@pytest.mark.parametrize(
    ("facts", "numbers", "quote"),
    [
        ([FACT], (1,), f'(Earlier, in turn 1, I said: "{FACT}")\n\n{QUESTION}'),
        # Both were left out, or cut to their first words.
        ([FACT, CHANGE], (2,), f'(Earlier, in turn 2, I said: "{CHANGE}")'),
        ([f"{FACT} {'y' * 300}"], (1,), f'(Earlier, in turn 1, I said: "{FACT} yyy'),
        # No text becomes a control token.
        (["My name is <|im_end|> Ada."], (1,), 'said: "My name is <|im_end|> Ada.")'),
    ],
)
def test_as_much_is_quoted_as_an_eighth_of_the_window_holds(
    facts: list[str], numbers: tuple[int, ...], quote: str
) -> None:
    """At 256 tokens of a real model, no quote with its time fits, and nothing was recalled."""
    conversation = forgetful(*facts)
    prompts: list[TokenIds] = []
    for each in conversation.say(QUESTION):
        if isinstance(each, Recalled):
            assert each.numbers == numbers
            assert each.messages == tuple(facts[n - 1] for n in numbers)
            assert 0 < each.tokens <= NARROW // 8
            prompts.append(prompt_of(conversation))
    (prompt,) = prompts
    assert quote in conversation.model.tokenizer.decode(prompt)
    assert quote not in held(conversation), "it has left the window again"
    plain = conversation.rendering.ids(conversation.state).tolist()
    assert prompt.tolist().count(258) == plain.count(258)


WINDOW = 1600
NOTE = "Ada has a cat. Bo is at sea."
MESSAGES = ("My cat is Ada.", "I am Bo.", "I am at sea.", "It is late.")


def talked(window: int | None = WINDOW, **options: Any) -> Conversation:
    """A conversation of four turns, all in view."""
    conversation = make_conversation(window, **{"max_tokens": 8, **options})
    for message in MESSAGES:
        say(conversation, message)
    return conversation


def compacted(conversation: Conversation, words: str = "") -> Compacted:
    done = conversation.compact(words)
    assert done is not None
    return done


def prompts_of_notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    prompts: list[str] = []

    def collect(model: Model, ids: TokenIds, *rest: Any, **how: Any) -> Reply:
        prompts.append(model.tokenizer.decode(ids))
        return Reply(model, ids, *rest, **how)

    monkeypatch.setattr(note, "Reply", collect)
    return prompts


def test_a_note_replaces_all_turns_in_view_but_the_last() -> None:
    net = build_random_model(tiny_config(layers=1))
    conversation = talked(net=net)
    texts = [(turn.user, turn.reply) for turn in conversation.turns]
    script = Scripted(chat_templates.CHATML, (), f"{NOTE}<|im_end|>", ends=("<|im_end|>",))
    follow_script(net, script.ids())
    done = compacted(conversation)
    assert (done.note, done.numbers) == (NOTE, (1, 2, 3))
    assert done.stats.generated_tokens == len(NOTE)
    assert done.tokens == len(f"{NOTE_BEGINS}\n{NOTE}")
    assert conversation.state.note == NOTE
    assert conversation.state.retained == conversation.turns[-1:]
    assert [(turn.user, turn.reply) for turn in conversation.turns] == texts
    assert conversation.state.system is None
    say(conversation, "Where am I?")
    assert f"{NOTE_BEGINS}\n{NOTE}" in held(conversation)
    assert MESSAGES[0] not in held(conversation)
    assert MESSAGES[-1] in held(conversation)


@each_family("mamba2", slow=("qwen3_next",))
def test_every_family_writes_a_note(family: str) -> None:
    window = None if family == "mamba2" else WINDOW
    conversation = talked(window, net=build_family(family))
    assert compacted(conversation).numbers == (1, 2, 3)
    say(conversation, "go on")
    assert NOTE_BEGINS in held(conversation)
    assert len(conversation.ledger.ids) == tokens_held(conversation.cache) or window is None


@pytest.mark.parametrize("first", [1, 8])
def test_a_failure_during_a_note_loses_nothing(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = talked()
    device = FailingDevice(monkeypatch)
    device.breaks_at(first)
    with pytest.raises(DeviceError):
        conversation.compact()
    device.repair()
    assert conversation.state.note is None
    assert len(conversation.state.retained) == 4
    say(conversation, "go on")
    check_in_step(conversation)


def test_the_next_note_is_written_from_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = talked()
    conversation.set_note(NOTE)
    prompts = prompts_of_notes(monkeypatch)
    compacted(conversation, "the sea")
    (prompt,) = prompts
    assert NOTE in prompt
    assert "Include your earlier note." in prompt
    assert "Most important: the sea." in prompt
    assert MESSAGES[-2] in prompt
    assert MESSAGES[-1] not in prompt
    assert conversation.state.note != NOTE


def test_turns_that_do_not_fit_with_the_note_stay_in_view(monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = make_conversation(1200, max_tokens=8)
    for letter in "abcde":
        say(conversation, letter * 150)
    prompts = prompts_of_notes(monkeypatch)
    done = compacted(conversation)
    (prompt,) = prompts
    assert len(prompt) + 1200 // NOTE_SHARE <= 1200 + 40
    assert done.numbers in ((1,), (1, 2), (1, 2, 3))
    for number, letter in enumerate("abcd", 1):
        assert (letter * 150 in prompt) == (number in done.numbers)
    assert [turn.forgotten for turn in conversation.turns[3:]] == [False, False]


def test_a_note_must_fit_next_to_what_is_pinned_and_not_be_empty() -> None:
    conversation = talked()
    with pytest.raises(UsageError, match="the note is empty"):
        conversation.set_note(" \n")
    conversation.pin(4)
    before = conversation.state
    room = int(room_for_more(conversation.rendering, replace(before, note=""), WINDOW))
    with pytest.raises(UsageError, match=f"the note does not fit: it has {room + 1:,} tokens, and"):
        conversation.set_note("y" * (room + 1))
    assert conversation.state == before
    conversation.set_note("y" * room)
    say(conversation, "go on")
    assert conversation.turns[-1].reply
