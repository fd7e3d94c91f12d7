"""Each reply format, with its template and control tokens: thoughts are separated from answers,
returned to the template in its form, and survive retries, sessions and a wrapped window."""

from dataclasses import replace

import numpy as np
import pytest

from mlxchat.chat.conversation import Conversation
from mlxchat.chat.state import Forgot, State, Turn
from mlxchat.engine.sampling import Token
from mlxchat.errors import CacheError, TemplateError
from mlxchat.sessions.listing import read_session
from mlxchat.sessions.transcript import as_markdown
from mlxchat.settings import GenerationSettings
from mlxchat.text.tokens import ChatMessage
from scripts.tiny_model import CHAT_TEMPLATE
from tests import reply_formats as formats
from tests.conversations import converse
from tests.scripted_model import Scripted
from tests.test_session_store import make_session


@pytest.fixture(params=formats.FORMATS)
def scripted(request: pytest.FixtureRequest) -> Scripted:
    return formats.FORMATS[request.param]


def say(conversation: Conversation, text: str) -> list[Token]:
    return [each for each in conversation.say(text) if isinstance(each, Token)]


def spoken(tokens: list[Token]) -> tuple[str, str]:
    thought = "".join(token.text for token in tokens if token.thought)
    return thought, "".join(token.text for token in tokens if not token.thought)


def control_text(conversation: Conversation) -> str:
    tokenizer = conversation.model.tokenizer
    return "".join(tokenizer.text_of(id_) for id_ in conversation.ledger.ids.tolist())


def check(turn: Turn, scripted: Scripted) -> None:
    assert (turn.thought, turn.reply) == (scripted.thought, scripted.answer)
    assert turn.finish_reason == "stop"
    assert turn.ids is not None
    segments = scripted.tokenizer().replies.segments(turn.ids.tobytes(), turn.reply, turn.thought)
    assert all(each.ids is not None for each in segments)


def test_several_thoughts_stay_apart_on_the_screen_and_in_a_session() -> None:
    """They were joined without a break: "…is one.Or two?"."""
    first, second = "<|channel|>analysis<|message|>Hm.", "<|channel|>analysis<|message|>Duck?"
    reply = formats.HARMONY.reply.replace(
        "<|channel|>analysis<|message|>Hm, duck?", f"{first}<|end|><|start|>assistant{second}"
    )
    conversation = converse(replace(formats.HARMONY, reply=reply))
    tokens = say(conversation, "hello")
    (begins,) = (n for n, token in enumerate(tokens) if token.another)
    assert spoken(tokens[:begins]) == ("Hm.", "")
    make_session("mine", *conversation.turns)
    (turn,) = read_session("mine").turns
    assert turn.thoughts == ["Hm.", "Duck?"]
    assert "Hm.\n\nDuck?\n" in as_markdown(State(turns=(turn,)))
    # And after one that the prompt opened.
    reply = "Hm, <|think:end|><|think:start|>duck?<|think:end|>Yes!<|im_end|>"
    tokens = say(converse(replace(formats.TAGGED["<|think:start|> opened"], reply=reply)), "hello")
    assert [token.text for token in tokens if token.another] == [""]
    assert spoken(tokens) == ("Hm, duck?", "Yes!")


def test_a_reply_is_split_and_kept_as_the_template_keeps_it(scripted: Scripted) -> None:
    """After a retry and resuming, too: gpt-oss's were "analysisWe…assistantfinalParis"."""
    conversation = converse(scripted)
    assert spoken(say(conversation, "hello")) == (scripted.thought, scripted.answer)
    say(conversation, "again")
    before = conversation.ledger.ids
    held = control_text(conversation)
    # The second turn has its thought, the first only if the template keeps it.
    assert held.count("duck") == (1 if scripted in formats.FORGETFUL else 2)
    assert held.count("Yes!") == 2
    if scripted not in formats.FORGETFUL:
        # Generated tokens are unchanged, and only new ones were prefilled.
        assert conversation.stats is not None
        assert conversation.stats.cached_tokens > len("hello") + len(scripted.reply.encode()) // 2
    list(conversation.retry())
    assert np.array_equal(conversation.ledger.ids, before)
    make_session("mine", *conversation.turns)
    again = converse(scripted)
    again.resume(read_session("mine").state)
    for turn in (*conversation.turns, *again.turns):
        check(turn, scripted)
    again.window = conversation.window.fork()
    for each in (again, conversation):
        say(each, "more")
    assert np.array_equal(again.ledger.ids, conversation.ledger.ids)


@pytest.mark.parametrize("place", ["marker", "duck", "Yes"])
def test_a_truncated_reply_continues_as_thought_or_answer(scripted: Scripted, place: str) -> None:
    """And if it does not, later turns treat an unfinished thought as if it had been closed."""
    conversation = converse(scripted)
    before = 3 if place == "marker" else scripted.reply.index(place) + 1
    cut = scripted.backend().encode(scripted.reply[:before], add_special_tokens=False).ids
    conversation.generation = GenerationSettings(max_tokens=len(cut))
    first = spoken(say(conversation, "hello"))
    conversation.generation = GenerationSettings()
    if place == "duck":
        assert (conversation.turns[0].thought, conversation.turns[0].reply) == (first[0], "")
        fork = converse(scripted)
        fork.resume(conversation.state)
        say(fork, "again")
        check(fork.turns[1], scripted)
    rest = spoken([each for each in conversation.continue_reply() if isinstance(each, Token)])
    check(conversation.turns[0], scripted)
    if place != "marker":
        assert first[0] + rest[0] == scripted.thought
        assert first[1] + rest[1] == scripted.answer


def test_a_wrapped_window_forgets_whole_turns_with_their_thoughts(scripted: Scripted) -> None:
    conversation = converse(scripted, window=300)
    forgot: list[Forgot] = []
    for n in range(12):
        said = list(conversation.say(f"question {n}: what is it?"))
        forgot += [each for each in said if isinstance(each, Forgot)]
        check(conversation.turns[-1], scripted)
    assert sum(each.turns for each in forgot) == len(conversation.state.forgotten) > 0
    held = control_text(conversation)
    assert "question 11" in held
    assert "question 0" not in held
    assert len(conversation.ledger.ids) <= 300


@pytest.mark.parametrize(
    ("scripted", "ends"),
    [
        # Some conversions of gpt-oss list <|end|>, which ends each thought.
        (replace(formats.HARMONY, ends=("<|end|>",)), ["<|call|>", "<|return|>"]),
        (formats.QWEN, ["<|endoftext|>", "<|im_end|>"]),
        (formats.GEMMA, ["<turn|>"]),
        (formats.SOLAR, []),
        # No control token follows the answer.
        (Scripted("{% for m in messages %}{{ m.content }}\n{% endfor %}", (), ""), []),
    ],
)
def test_ends_come_from_files_template_and_format(scripted: Scripted, ends: list[str]) -> None:
    tokenizer = scripted.tokenizer()
    assert sorted(map(tokenizer.text_of, tokenizer.eos_ids)) == ends


def test_text_that_spells_markers_stays_text(scripted: Scripted) -> None:
    """Anywhere. A tag that the template does not name, like LongCat's rounds', became its token."""
    tokenizer, backend = scripted.tokenizer(), scripted.backend()
    control = list(backend.get_added_tokens_decoder())

    def count(text: str) -> int:
        user = ChatMessage("user", text)
        messages = [user, ChatMessage("assistant", text, None, text), user]
        prompt = tokenizer.chat(messages, text, variables={"reasoning_effort": text})
        return int(np.isin(prompt.ids, control).sum())

    assert count(scripted.reply * 2) == count("a")


PLAIN = Scripted(CHAT_TEMPLATE, (), "")
UNUSUAL = {
    # Small or damaged models omit the header, and their text must not be held back indefinitely.
    "no header": (formats.HARMONY, "Yes, of course.<|return|>", "Yes, of course."),
    "no header, another end": (formats.HARMONY, "Yes, of course.<|end|>", "Yes, of course."),
    "no return": (
        formats.HARMONY,
        "<|channel|>final<|message|>Yes!<|end|><|start|>user<|message|>and on",
        "Yes!",
    ),
    "a comment": (
        formats.MUSE,
        " to=commentary<|message|>I look. <|eom|><|start|>assistant to=user<|message|>Yes!<|eot|>",
        "I look. Yes!",
    ),
    # Qwen's `<think>` is not a special token: a reply about tags contains it too.
    "tags as text": (
        formats.QWEN,
        "They are <think> and </think>.<|im_end|>",
        "They are <think> and </think>.",
    ),
    # MiniMax M3 is trained to begin this way if it does not think, and the tag was shown.
    "a closing tag first": (formats.MINIMAX, "</mm:think>\n\nYes![e~[", "Yes!"),
    "its token first": (formats.QWEN, "</think>\n\nYes!<|im_end|>", "Yes!"),
    "its letters first": (formats.KIMI_VL, "◁/think▷\n\nYes!<|im_end|>", "Yes!"),
    "no format": (PLAIN, "<think>so</think> I say<|im_end|>", "<think>so</think> I say"),
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_an_unusual_reply_is_an_answer_in_this_turn_and_the_next(case: str) -> None:
    scripted, reply, answer = UNUSUAL[case]
    conversation = converse(replace(scripted, reply=reply))
    assert spoken(say(conversation, "hello")) == ("", answer)
    say(conversation, "again")
    for turn in conversation.turns:
        assert (turn.thought, turn.reply, turn.finish_reason) == ("", answer, "stop")


def test_a_rejected_variable_or_beginning_leaves_the_conversation_unchanged() -> None:
    """Some cannot turn thinking off; after `/think off` every later turn failed."""
    refuse = "{% if enable_thinking is false %}{{ raise_exception('it always thinks') }}{% endif %}"
    conversation = converse(replace(formats.QWEN, template=refuse + formats.QWEN.template))
    with pytest.raises(TemplateError, match="it always thinks"):
        conversation.render_with(conversation.rendering.with_thinking(False))
    say(conversation, "hello")
    check(conversation.turns[0], formats.QWEN)

    conversation = converse(formats.HARMONY, window=300)
    before = conversation.usage().pinned
    args = {"reasoning_effort": "very " * 50}
    with pytest.raises(CacheError):
        conversation.render_with(replace(conversation.rendering, template_args=args))
    assert conversation.usage().pinned == before
    say(conversation, "hello")
    check(conversation.turns[0], formats.HARMONY)


@pytest.mark.parametrize("scripted", [formats.QWEN, formats.XTML], ids=["enable", "thinking"])
def test_thinking_is_turned_off_by_the_templates_own_variable(scripted: Scripted) -> None:
    """Kimi K3 and DeepSeek V3.1 call it `thinking`: `--think off` only hid their thoughts."""
    conversation = converse(scripted)
    conversation.render_with(conversation.rendering.with_thinking(False))
    conversation.generation = GenerationSettings(max_tokens=1)
    say(conversation, "hello")
    prompt = control_text(conversation)
    assert prompt.count("think>") in (0, 2), "no thought, or an empty one"
    assert "<|open|>think" not in prompt
