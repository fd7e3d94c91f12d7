"""A device that fails at each evaluation of a turn, one after another. Each time, one line reports
it, everything shown is kept, and the next turn is the same as without the failure."""

from collections.abc import Sequence

import pytest

from mlxchat.cache.layers import Cache
from mlxchat.chat.conversation import Conversation
from mlxchat.chat.state import Said, Turn
from mlxchat.engine.sampling import Token
from mlxchat.errors import DeviceError, device_failures
from mlxchat.settings import GenerationSettings
from tests.conversations import check_in_step, make_conversation, network
from tests.failing_device import FULL, FailingDevice

# What is said, retried or continued. If the last two produce nothing, the old reply stays.
ACTS = {"say": ["two " * 40], "retry": [], "continue_reply": []}


def empty() -> Conversation:
    conversation = make_conversation(320, net=network(2))
    conversation.generation = GenerationSettings(max_tokens=3, ignore_eos=True)
    return conversation


def filled(conversation: Conversation) -> Conversation:
    """A window with no room for another turn of a hundred tokens."""
    for text in ("one " * 20, "uno " * 15):
        list(conversation.say(text))
    return conversation


def transcript(turns: Sequence[Turn]) -> list[tuple[str, str, str]]:
    return [(turn.user, turn.thought, turn.reply) for turn in turns]


def next_reply(conversation: Conversation) -> str:
    return "".join(each.text for each in conversation.say("three") if isinstance(each, Token))


@pytest.mark.parametrize("act", ACTS)
def test_the_turn_after_any_failure_is_right(act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure while turns were evicted left half-moved keys, and ended the program."""
    device = FailingDevice(monkeypatch)
    failures = 0
    while True:
        conversation = filled(empty())
        before = transcript(conversation.turns)
        shown = ""
        device.breaks_at(failures + 1)
        try:
            for each in getattr(conversation, act)(*ACTS[act]):
                shown += each.text if isinstance(each, Token) else ""
        except DeviceError:
            assert device.has_failed
        else:
            assert not device.has_failed
            break
        finally:
            device.repair()
        check_in_step(conversation)
        reply = conversation.turns[-1].reply
        if act != "say" and not shown:
            assert transcript(conversation.turns) == before
        elif act == "continue_reply":
            # A character cut in half at the end of the reply may be complete by now.
            assert reply.endswith(shown)
            assert reply.startswith(before[-1][2].rstrip("\ufffd"))
        else:
            assert reply == shown
        check_next_turn(conversation, empty())
        failures += 1
    assert failures > 5


def check_next_turn(conversation: Conversation, fresh: Conversation) -> None:
    """Check that it equals that of a conversation with the same turns and no failure."""
    fresh.resume(conversation.state)
    assert next_reply(conversation) == next_reply(fresh)
    check_in_step(conversation)


def test_a_half_updated_cache_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns leave during a reply. After a failure, only some layers had evicted them."""
    conversation = filled(empty())
    conversation.generation = GenerationSettings(max_tokens=300, ignore_eos=True)

    whole = Cache.evict

    def evict_in_one_layer(cache: Cache, start: int, stop: int) -> None:
        whole(Cache(cache[:1]), start, stop)
        raise RuntimeError(FULL)

    said: list[Said] = []
    with monkeypatch.context() as patch:
        patch.setattr(Cache, "evict", evict_in_one_layer)
        with pytest.raises(DeviceError):
            said.extend(conversation.say("two"))
    shown = "".join(each.text for each in said if isinstance(each, Token))
    assert conversation.turns[-1].reply == shown != ""
    assert not conversation.cache
    conversation.generation = empty().generation
    check_next_turn(conversation, empty())


TIMED_OUT = (
    "[METAL] Command buffer execution failed: Caused GPU Timeout Error "
    "(00000002:kIOGPUCommandBufferCallbackErrorTimeout)."
)


@pytest.mark.parametrize(
    ("said", "begins"),
    [
        (FULL, "out of memory: use a smaller window, "),
        ("[metal::malloc] Attempting to allocate 9 bytes which is greater than", "out of memory"),
        ("[malloc_or_wait] Unable to allocate 9 bytes.", "out of memory"),
        ("std::bad_alloc", "out of memory"),
        (TIMED_OUT, "the GPU failed: try again"),
    ],
)
def test_a_device_error_of_mlx_becomes_one_line(said: str, begins: str) -> None:
    with pytest.raises(DeviceError) as caught, device_failures():
        raise RuntimeError(f"{said}\nand more")
    message = str(caught.value)
    assert message.startswith(begins)
    assert message.endswith(f"({said})")
    with pytest.raises(ValueError, match=r"^std::bad_alloc$"), device_failures():
        raise ValueError("std::bad_alloc")
