"""Notes: what they replace, what they leave alone, and how each of them can be undone."""

from dataclasses import replace
from typing import Any

import pytest

from mlxchat.cache.layers import tokens_held
from mlxchat.chat.answering import Watch
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.note import NOTE_SHARE
from mlxchat.chat.rendering import room_for_more
from mlxchat.chat.state import NOTE_BEGINS, Compacted, Recalled
from mlxchat.chat.window import Window
from mlxchat.errors import DeviceError, UsageError
from mlxchat.settings import CacheSettings, GenerationSettings, SamplingSettings
from mlxchat.text.encoder import TokenIds
from scripts.families import build_family
from tests import chat_templates
from tests.conversations import check_in_step, make_conversation, say
from tests.failing_device import FailingDevice
from tests.scripted_model import Scripted

WINDOW = 1600
NOTE = "Ada has a cat. Bo is at sea."
MESSAGES = ("My cat is Ada.", "I am Bo.", "I am at sea.", "It is late.")


def talked(window: int | None = WINDOW, **options: Any) -> Conversation:
    """A conversation of four turns, all in view."""
    conversation = make_conversation(window, **{"max_tokens": 8, **options})
    for message in MESSAGES:
        say(conversation, message)
    return conversation


def writing(
    reply: str, window: int | None = WINDOW, template: str = chat_templates.CHATML
) -> Conversation:
    """The same with a model that always says this."""
    model = Scripted(template, (), reply, ends=("<|im_end|>",)).model()
    conversation = Conversation(
        model,
        CacheSettings(window, keep=0, prefill_step_size=64),
        generation=GenerationSettings(max_tokens=8),
    )
    for message in MESSAGES:
        say(conversation, message)
    return conversation


def shown(conversation: Conversation) -> str:
    return conversation.model.tokenizer.decode(conversation.ledger.ids)


def compacted(conversation: Conversation, words: str = "") -> Compacted:
    done = conversation.compact(words)
    assert done is not None
    return done


def state(conversation: Conversation) -> tuple[object, ...]:
    """All that a note changes."""
    return (
        conversation.state.note,
        [turn.forgotten for turn in conversation.turns],
        conversation.ledger.ids.tolist(),
        tokens_held(conversation.cache),
    )


def prompts_of(conversation: Conversation, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects the prompts that ask for notes."""
    prompts: list[str] = []
    aside = Window.aside

    def collect(window: Window, ids: TokenIds) -> Any:
        prompts.append(conversation.model.tokenizer.decode(ids))
        return aside(window, ids)

    monkeypatch.setattr(Window, "aside", collect)
    return prompts


def test_a_note_replaces_all_turns_in_view_but_the_last() -> None:
    conversation = writing(f"{NOTE}<|im_end|>")
    texts = [(turn.user, turn.reply) for turn in conversation.turns]
    done = compacted(conversation)
    assert (done.note, done.numbers) == (NOTE, (1, 2, 3))
    assert done.stats.generated_tokens == len(NOTE)
    assert done.tokens == len(f"<system\n{NOTE_BEGINS}\n{NOTE}>\n")
    assert conversation.state.note == NOTE
    assert conversation.state.retained == conversation.turns[-1:]
    assert [(turn.user, turn.reply) for turn in conversation.turns] == texts
    assert conversation.state.system is None
    say(conversation, "Where am I?")
    assert f"{NOTE_BEGINS}\n{NOTE}" in shown(conversation)
    assert MESSAGES[0] not in shown(conversation)
    assert MESSAGES[-1] in shown(conversation)


@pytest.mark.parametrize("template", sorted(chat_templates.ALL))
def test_every_template_pins_the_note_next_to_the_system_prompt(template: str) -> None:
    conversation = talked(system="Be kind.", template=chat_templates.ALL[template])
    conversation.compact()
    conversation.set_note(NOTE)
    for number in range(30):
        say(conversation, f"question {number:02} " + "x" * 30)
        check_in_step(conversation)
    assert f"Be kind.\n\n{NOTE_BEGINS}\n{NOTE}" in shown(conversation)
    assert conversation.turns[-30].forgotten


@pytest.mark.parametrize("family", ["qwen3_next", "llama4", "mamba2"])
def test_every_family_writes_a_note(family: str) -> None:
    window = None if family == "mamba2" else WINDOW
    conversation = talked(window, net=build_family(family))
    assert compacted(conversation).numbers == (1, 2, 3)
    say(conversation, "go on")
    assert NOTE_BEGINS in shown(conversation)
    assert len(conversation.ledger.ids) == tokens_held(conversation.cache) or window is None


def test_the_note_is_read_from_the_cache_not_again() -> None:
    conversation = talked()
    held = len(conversation.ledger.ids)
    assert compacted(conversation).stats.prefilled_tokens < 600
    assert held > 150
    assert compacted(talked()).stats.prefilled_tokens < held + 450


def test_undo_restores_the_window_to_the_bit() -> None:
    conversation = talked()
    before = state(conversation)
    conversation.compact()
    assert conversation.take_back() == "note"
    assert state(conversation) == before
    check_in_step(conversation)
    assert conversation.take_back() is None
    conversation.undo()
    assert len(conversation.turns) == 3


def test_a_note_that_is_interrupted_anywhere_changes_nothing() -> None:
    conversation = talked()
    before = state(conversation)

    def interrupt(done: int, _: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conversation.compact("", Watch(on_note=interrupt))
    assert state(conversation) == before
    check_in_step(conversation)


@pytest.mark.parametrize("first", [1, 3, 8, 20])
def test_a_device_failure_during_a_note_loses_nothing(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    prompts = prompts_of(conversation, monkeypatch)
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
    prompts = prompts_of(conversation, monkeypatch)
    done = compacted(conversation)
    (prompt,) = prompts
    assert len(prompt) + 1200 // NOTE_SHARE <= 1200 + 40
    assert 1 <= len(done.numbers) < 4
    assert done.numbers == tuple(range(1, len(done.numbers) + 1))
    for number, letter in enumerate("abcd", 1):
        assert (letter * 150 in prompt) == (number in done.numbers)
    assert [turn.forgotten for turn in conversation.turns[3:]] == [False, False]
    say(conversation, "go on")
    check_in_step(conversation)


def test_pinned_turns_stay_and_the_note_fits_next_to_them() -> None:
    conversation = talked()
    conversation.pin(2)
    assert compacted(conversation).numbers == (1, 3)
    assert [turn.forgotten for turn in conversation.turns] == [True, False, True, False]
    say(conversation, "go on")
    check_in_step(conversation)


def test_an_edited_note_must_fit_and_not_be_empty() -> None:
    conversation = talked()
    conversation.compact()
    before = state(conversation)
    with pytest.raises(UsageError, match=r"the note does not fit: it has 1,600 tokens, and"):
        conversation.set_note("y" * 1600)
    with pytest.raises(UsageError, match="the note is empty"):
        conversation.set_note(" \n")
    assert state(conversation) == before
    conversation.pin(4)
    state_without = replace(conversation.state, note="")
    room = int(room_for_more(conversation.rendering, state_without, WINDOW))
    with pytest.raises(UsageError, match=f"has {room + 1:,} tokens, and the window has room for"):
        conversation.set_note("y" * (room + 1))
    conversation.set_note("y" * room)
    say(conversation, "go on")
    assert conversation.turns[-1].reply


def test_there_must_be_something_to_compact_and_room_for_it() -> None:
    conversation = make_conversation(WINDOW, max_tokens=8)
    with pytest.raises(UsageError, match="nothing to compact"):
        conversation.compact()
    say(conversation, "hello")
    with pytest.raises(UsageError, match="nothing to compact"):
        conversation.compact()
    small = make_conversation(280, max_tokens=8)
    for message in ("one", "two", "three"):
        say(small, message)
    before = state(small)
    with pytest.raises(UsageError, match="no room"):
        small.compact()
    assert state(small) == before
    # A turn larger than the window.
    large = make_conversation(1200, max_tokens=8)
    say(large, f"begins {'y' * 2000} ends")
    say(large, "go on")
    large.state = large.state.change({1}, forgotten=False)
    with pytest.raises(UsageError, match="no room in the window to write a note"):
        large.compact()


def test_a_turn_that_a_note_replaced_is_still_recalled() -> None:
    conversation = talked(recalls=2)
    conversation.sampling = SamplingSettings()
    conversation.compact()
    found = [x for x in conversation.say("Who is my cat?") if isinstance(x, Recalled)]
    assert [each.numbers for each in found] == [(1,)]
    assert next(each.turn for each in conversation.state.recall("my cat")) == 1
