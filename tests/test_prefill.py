"""`--prefill`: the user begins the answer, in each reply format and through each way in."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxchat.chat.answering import Watch
from mlxchat.chat.conversation import Conversation
from mlxchat.constraint.constraint import Constraint
from mlxchat.errors import UsageError
from mlxchat.settings import CacheSettings, GenerationSettings
from tests.conversations import make_conversation
from tests.in_process import run_in_process
from tests.reply_formats import FORMATS
from tests.scripted_model import Scripted

BEGUN = "The answer <b>is"


@pytest.mark.parametrize("scripted", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("text", [" two\n\nlines <b>日", "<|im_end|>"])
def test_every_format_reads_the_beginning_as_the_answer(scripted: Scripted, text: str) -> None:
    """The thought that some prompts open is closed, and what looks like a control token is text."""
    tokenizer = scripted.tokenizer()
    asked = tokenizer.prompt("Is it a duck?")
    prompt = tokenizer.with_beginning(asked, text)
    assert prompt.ids[: len(asked.ids)].tolist() == asked.ids.tolist() == prompt.asked.tolist()
    answer = prompt.ids[len(prompt.ids) - prompt.answer :].tolist()
    assert not set(answer) & tokenizer.control_ids
    assert tokenizer.decode(answer) == text
    reader, _, begun = tokenizer.reader_after(prompt)
    rest = [*reader.add(ord("!")), *reader.finish()]
    assert not reader.is_thought
    assert not any(is_thought for is_thought, _ in rest)
    assert (begun + "".join(each for _, each in rest)).lstrip() == (text + "!").lstrip()


@pytest.mark.parametrize("scripted", FORMATS.values(), ids=FORMATS)
def test_every_format_constrains_what_follows(scripted: Scripted) -> None:
    settings = GenerationSettings(max_tokens=20)
    conversation = Conversation(scripted.model(), CacheSettings(800), generation=settings)
    constraint = Constraint.from_choices(["no duck", "no goose"])
    list(conversation.say("Which?", constraint=constraint, prefill="no g"))
    (turn,) = conversation.turns
    assert (turn.reply, turn.thought) == ("no goose", "")
    assert conversation.stats is not None
    assert conversation.stats.complete


def said(conversation: Conversation, **how: Any) -> str:
    return "".join(each.text for each in conversation.say("Which?", **how))


def test_a_reply_continues_its_beginning_as_if_the_model_had_written_it() -> None:
    conversation = make_conversation()
    reply = said(conversation, prefill=BEGUN)
    (turn,) = conversation.turns
    assert reply == turn.reply
    assert reply.startswith(BEGUN)
    assert len(reply) > len(BEGUN)
    assert turn.ids is not None
    assert turn.ids[: len(BEGUN)].tolist() == list(BEGUN.encode())
    # Without the token that ended it: the template has another.
    held = conversation.ledger.ids[:-1]
    said(conversation)
    # The next turn reads its own tokens only.
    assert np.array_equal(conversation.ledger.ids[: len(held)], held)
    assert conversation.stats is not None
    assert conversation.stats.cached_tokens >= len(held)


def test_a_turn_stopped_at_its_beginning_or_refused_is_taken_back() -> None:
    conversation = make_conversation()
    list(conversation.say("Which?", Watch(should_stop=lambda: True), prefill=BEGUN))
    assert not conversation.turns
    with pytest.raises(UsageError, match="--prefill is no beginning the choice allows"):
        said(conversation, prefill="may", constraint=Constraint.from_choices(["yes", "no"]))
    assert not conversation.turns


# The command line


def test_generate_and_each_row_of_a_batch_continue_their_beginnings(unthinking_model: Path) -> None:
    how = ("-m", str(unthinking_model), "--temp", "0", "-n", "8", "--prefill", BEGUN)
    done = run_in_process("generate", "--json", *how, "Which?")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert (events[1]["text"], events[1]["id"]) == (BEGUN, None)
    assert events[-1]["text"] == "".join(event["text"] for event in events[1:-1])
    assert events[-1]["generated_tokens"] == 8
    given = [
        {"id": 0, "prompt": "Which?"},
        {"id": 1, "prompt": "Which?", "prefill": "No, "},
        {"id": 2, "prompt": "When?", "prefill": "yest", "choice": ["yes", "yesterday"]},
        {"id": 3, "prompt": "When?", "prefill": "no", "choice": ["yes", "yesterday"]},
    ]
    done = run_in_process("batch", *how, "--rows", "3", stdin="\n".join(map(json.dumps, given)))
    answers = {each["id"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert answers[0]["text"] == events[-1]["text"]
    assert answers[1]["text"].startswith("No, ")
    assert answers[2]["text"] == "yesterday"
    assert "--prefill is no beginning the choice allows" in answers[3]["error"]
