"""Constrained answers: always valid, and the same text however the tokens are computed."""

import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import mlx.core as mx
import numpy as np
import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from mlxchat.cache.layers import Cache
from mlxchat.chat.conversation import Conversation
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.constrained import Constrained
from mlxchat.engine.drafts import Drafter, History
from mlxchat.engine.generate import generate
from mlxchat.engine.reply import Reply
from mlxchat.engine.sampling import Chooser, Drawn
from mlxchat.models.model import Model
from mlxchat.models.tokenizer_files import load_tokenizer
from mlxchat.request.written import thinking_variables
from mlxchat.settings import CacheSettings, GenerationSettings, SamplingSettings
from mlxchat.text.template import ChatTemplate
from mlxchat.text.tokens import Tokenizer
from scripts.bench_answers import SCHEMAS
from scripts.families import build_family
from scripts.tiny_model import byte_tokenizer
from tests import chat_templates
from tests.conftest import examples
from tests.constrained import Walker
from tests.conversations import END_IDS, prompt_of
from tests.reply_formats import FORMATS, MISTRAL
from tests.scripted_model import Scripted

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "identifier": {"type": "integer", "minimum": 1, "maximum": 99},
        "category": {"enum": ["fruit", "vegetable", "mineral"]},
        "comment": {"type": "string", "maxLength": 12},
        "parts": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["identifier", "category", "comment", "parts"],
    "additionalProperties": False,
}
# One family with each kind of cache that takes drafts; `test_product` tries forced tokens with all.
KINDS = ("llama", "gpt_oss", "qwen3_next", "mamba2")


@cache
def model_of(family: str) -> Model:
    network = build_family(family)
    tokenizer = Tokenizer(byte_tokenizer(), ChatTemplate(chat_templates.CHATML, {}), END_IDS)
    return Model(family, network, tokenizer, mx.float32, 4096, {})


def answer(
    constraint: Constraint,
    family: str = "llama",
    *,
    seed: int = 0,
    lookup: bool = True,
    window: int | None = 48,
    sampling: dict[str, Any] | None = None,
    **settings: Any,
) -> Reply:
    model = model_of(family)
    prompt = np.arange(40, 104, dtype=np.int32)
    drafter = Drafter(History(), 15, clock=lambda: 0.0) if lookup else None
    if drafter is not None:
        drafter.history.extend(prompt)
    return Reply(
        model,
        prompt,
        model.make_cache(window, 4 if window else 0),
        sampling=SamplingSettings(**{"temp": 1.0, "seed": seed, **(sampling or {})}),
        settings=GenerationSettings(**settings),
        drafter=drafter,
        constrained=Constrained(constraint, model.tokenizer, None),
    )


def is_complete(conversation: Conversation) -> bool | None:
    assert conversation.stats is not None
    return conversation.stats.complete


def text_of(reply: Reply) -> str:
    return "".join(token.text for token in generate(reply))


@pytest.mark.parametrize("lookup", [True, False])
@pytest.mark.parametrize("pattern", ["^[\\x01-\\x07]$", "^[\\x01-\\x07]"])
def test_a_stuck_answer_ends_with_what_is_written(pattern: str, lookup: bool) -> None:
    """No escape can write the pattern's characters. The error ended a chat, and a batch."""
    properties = {
        "b": {"type": "integer", "maximum": 9},
        "a": {"type": "string", "pattern": pattern},
    }
    schema = {"anyOf": [{"type": "object", "properties": properties, "required": ["b", "a"]}]}
    reply = answer(Constraint.from_schema(schema), lookup=lookup, max_tokens=300)
    text = text_of(reply)
    assert text.startswith('{"b": ')
    assert reply.stats.finish_reason == "error"
    assert reply.complete is False
    assert (reply.problem or "").startswith("the answer got stuck: --schema: nothing matches it")
    assert reply.stats.generated_tokens > 0


@pytest.mark.parametrize(
    "sampling",
    [
        {"temp": 0.0},
        {"top_p": 0.5},
        {"top_k": 3},
        {"min_p": 0.2},
        {"repetition_penalty": 1.3},
    ],
    ids=str,
)
def test_every_sampler_obeys(sampling: dict[str, Any]) -> None:
    constraint = Constraint.from_schema(SCHEMA)
    reply = answer(constraint, sampling=sampling, max_tokens=300)
    text = text_of(reply)
    if reply.complete:
        jsonschema.validate(json.loads(text), SCHEMA)
    else:
        # A random model may write blanks or digits for as long as it is allowed to.
        assert reply.stats.finish_reason == "length"


@pytest.mark.parametrize("family", KINDS)
def test_the_text_is_the_same_with_and_without_lookup(family: str) -> None:
    constraint = Constraint.from_schema(
        {"type": "array", "items": SCHEMA, "minItems": 3, "maxItems": 3}
    )
    for seed in range(2):
        texts = [
            text_of(answer(constraint, family, seed=seed, lookup=lookup))
            for lookup in (True, False)
        ]
        assert texts[0] == texts[1]


def test_log_probabilities_are_those_of_the_tokens_allowed() -> None:
    constraint = Constraint.from_choices(["yes", "no"])
    tokens = [t for t in generate(answer(constraint, logprobs=5)) if t.id is not None]
    first = tokens[0]
    assert {id_ for id_, _ in first.top} == {ord("y"), ord("n")}
    assert sum(np.exp([logprob for _, logprob in first.top])) == pytest.approx(1)
    assert all(t.logprob == 0 for t in tokens[1:])


def test_a_pause_does_not_lose_the_constraint() -> None:
    """Each stretch between pauses is decoded by a loop of its own."""
    constraint = Constraint.from_schema(SCHEMA)
    model = model_of("llama")
    reply = Reply(
        model,
        np.arange(40, 104, dtype=np.int32),
        model.make_cache(48, 4),
        sampling=SamplingSettings(temp=1.0, seed=3),
        constrained=Constrained(constraint, model.tokenizer, None),
    )
    text = ""
    while reply.finish_reason is None:
        text += "".join(token.text for token in generate(reply, tokens=3))
    jsonschema.validate(json.loads(text), SCHEMA)


def test_a_forced_token_does_not_wait_for_the_one_after_its_draft(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first token of an answer took the time of another step."""
    indices: list[int] = []
    draw = Chooser.draw

    def noted(self: Chooser, logits: mx.array, after: mx.array | None = None) -> Drawn:
        indices.append(self.index)
        return draw(self, logits, after)

    monkeypatch.setattr(Chooser, "draw", noted)
    tokens = generate(answer(Constraint.from_choices(["incontrovertible", "incontrovertibly"])))
    assert next(tokens).text == "i"
    assert not indices
    assert "".join(token.text for token in tokens) in ("ncontrovertible", "ncontrovertibly")


def test_a_cache_that_refuses_drafts_gets_no_forced_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """All forced tokens but the last were drafted."""

    def refuse(self: Cache) -> None:
        raise AssertionError("drafted")

    monkeypatch.setattr(Cache, "draft_room", property(lambda _: 0))
    monkeypatch.setattr(Cache, "begin_draft", refuse)
    constraint = Constraint.from_choices(["incontrovertible"])
    assert text_of(answer(constraint)) == "incontrovertible"


def test_no_thought_begins_within_a_character() -> None:
    """A random model drew the marker of a thought after the first byte of a euro sign."""
    tokenizer = Tokenizer(byte_tokenizer(), ChatTemplate(chat_templates.CHATML, {}), END_IDS)
    constrained = Constrained(Constraint.from_regex("€"), tokenizer, tokenizer.prompt("How much?"))
    vocabulary = byte_tokenizer().get_vocab_size()
    first, *rest = "€".encode()
    for before, after in ((first, rest[0]), (rest[0], rest[1])):
        constrained.accept(before)
        allowed = np.flatnonzero(
            np.isfinite(np.array(constrained.apply(mx.zeros((1, vocabulary)))))
        )
        assert allowed.tolist() == [after]


# Random answers to fifty schemas, checked by jsonschema; and to choices


@pytest.fixture(scope="module")
def walker(embedded_model: Path) -> Walker:
    """With tokens of several bytes; test_constraint_schema has those of one."""
    config = json.loads((embedded_model / "config.json").read_text())
    return Walker(load_tokenizer(embedded_model, config))


# 20 of each schema with `make test-all`.
ANSWERS = 3


@pytest.mark.model
def test_answers_to_schemas_are_valid_or_have_a_problem(walker: Walker) -> None:
    problems = 0
    for seed, schema in enumerate(SCHEMAS.values()):
        constraint, rng = Constraint.from_schema(schema), random.Random(seed)
        draft = validator_for(schema, Draft202012Validator)
        check = draft(schema, format_checker=draft.FORMAT_CHECKER)
        for _ in range(examples(ANSWERS)):
            answer = walker.answer(constraint, rng)
            if constraint.problem(answer) is not None:
                problems += 1
            else:
                # 8730.64 is a multiple of 0.01, but not of its nearest float.
                errors = check.iter_errors(json.loads(answer))
                assert all(each.validator == "multipleOf" for each in errors), (schema, answer)
    assert problems <= 0.02 * len(SCHEMAS) * examples(ANSWERS)


@pytest.mark.model
def test_an_answer_is_one_of_the_choices(walker: Walker) -> None:
    choices = ["yes", "no", "maybe", "no way", "日本", 'a "b"\n', "(.*)", "😀", " "]
    constraint = Constraint.from_choices(choices)
    rng = random.Random(0)
    assert {walker.answer(constraint, rng) for _ in range(150)} == set(choices)


# A thinking model thinks first, in its format; its answer is constrained from its first token


# What the scripts answer, "Yes!", is none of these.
CHOICES = ["left", "right"]


@pytest.fixture(params=sorted(FORMATS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def scripted(name: str) -> Scripted:
    return FORMATS[name]


def converse(scripted: Scripted, *, thinks: bool = True) -> Conversation:
    return Conversation(
        scripted.model(),
        CacheSettings(None, keep=0, prefill_step_size=64),
        generation=GenerationSettings(max_tokens=200),
        variables=thinking_variables(thinks),
    )


def say(conversation: Conversation, constraint: Constraint | None) -> None:
    for _ in conversation.say("Which?", constraint=constraint):
        pass


def thinks(conversation: Conversation) -> bool:
    """Whether the model may think before a constrained answer: unless its tags are ordinary text,
    and not in the prompt."""
    tokenizer = conversation.model.tokenizer
    is_opened = tokenizer.reader(prompt_of(conversation)).is_thought
    return is_opened or not tokenizer.replies.markers.tags


def test_thoughts_are_free_and_the_answer_is_constrained(scripted: Scripted) -> None:
    conversation = converse(scripted)
    say(conversation, Constraint.from_choices(CHOICES))
    turn = conversation.turns[-1]
    assert turn.thought.strip() == (scripted.thought.strip() if thinks(conversation) else "")
    assert turn.reply in CHOICES
    assert is_complete(conversation)


def test_newlines_that_begin_an_answer_are_part_of_it(scripted: Scripted) -> None:
    """Those between a thought and an answer are dropped otherwise."""
    conversation = converse(scripted)
    for choices in (["\n\nleft", "\n\nright"], ["\n"]):
        say(conversation, Constraint.from_choices(choices))
        assert conversation.turns[-1].reply in choices
        assert is_complete(conversation)


def test_with_thinking_off_no_thought_can_begin(scripted: Scripted) -> None:
    """The tokens that open thoughts stayed allowed. Some templates open one nevertheless."""
    conversation = converse(scripted, thinks=False)
    say(conversation, Constraint.from_choices(CHOICES))
    turn = conversation.turns[-1]
    is_opened = scripted.tokenizer().reader(prompt_of(conversation)).is_thought
    assert turn.thought.strip() == (scripted.thought.strip() if is_opened else "")
    assert turn.reply in CHOICES
    assert is_complete(conversation)


def test_a_thought_that_is_cut_off_is_no_complete_answer(scripted: Scripted) -> None:
    """Although the constraint allows an empty one."""
    conversation = converse(scripted)
    conversation.generation = GenerationSettings(max_tokens=9)
    say(conversation, Constraint.from_regex("a*"))
    assert is_complete(conversation) is not thinks(conversation)


def test_a_reply_cannot_end_within_its_thought() -> None:
    """A random model that thinks often had no answer."""
    scripted = replace(MISTRAL, reply="[THINK]Hm</s>")
    conversation = converse(scripted)
    say(conversation, Constraint.from_choices(CHOICES))
    assert conversation.turns[-1].finish_reason == "length" or is_complete(conversation)


def test_the_turn_after_it_is_free(scripted: Scripted) -> None:
    conversation = converse(scripted)
    say(conversation, Constraint.from_schema({"const": {"a": 1}}))
    assert json.loads(conversation.turns[-1].reply) == {"a": 1}
    say(conversation, None)
    assert conversation.turns[-1].reply == scripted.answer
    assert is_complete(conversation) is None
