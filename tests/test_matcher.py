"""The state of one constrained answer, on vocabularies of several kinds."""

import json
import random

import mlx.core as mx
import numpy as np
import pytest
import tokenizers
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from tokenizers import decoders, models, normalizers

from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.constrained import MAX_FORCED, Matcher, Vocabulary, apply_mask
from mlxchat.errors import ConstraintError, ModelUnsupported
from mlxchat.text.tokens import Tokenizer
from scripts.bench_answers import SCHEMAS
from scripts.tiny_model import byte_tokenizer
from tests.test_tokens import make_tokenizer, trained_byte_level

PERSON = Constraint.from_schema("name, age int")


@pytest.fixture
def vocabulary() -> Vocabulary:
    return Vocabulary(Tokenizer(byte_tokenizer(), None, [258]))


def allowed(matcher: Matcher) -> set[int]:
    return set(np.flatnonzero(matcher.mask()).tolist())


@pytest.mark.parametrize("ends", [[258], []])
def test_the_mask_allows_what_may_come_next(ends: list[int]) -> None:
    """Without an end token, llguidance adds one after the last, which no network produces."""
    vocabulary = Vocabulary(Tokenizer(byte_tokenizer(), None, ends))
    assert [*vocabulary.ends] == ends
    matcher = Matcher(vocabulary, Constraint.from_regex("ab?"))
    assert matcher.mask().shape == (vocabulary.size,)
    assert (allowed(matcher), matcher.may_end) == ({ord("a")}, False)
    for letter, following, is_complete in (("a", {ord("b"), *ends}, False), ("b", {*ends}, True)):
        matcher.accept(ord(letter))
        assert allowed(matcher) == following
        assert (matcher.may_end, matcher.is_complete) == (True, is_complete)
    for end in ends:
        matcher.accept(end)
    assert matcher.is_complete


def test_a_token_that_is_not_allowed_raises_and_keeps_raising(vocabulary: Vocabulary) -> None:
    """llguidance's mask allows the end once a token has failed, as if the answer were complete."""
    matcher = Matcher(vocabulary, PERSON)
    with pytest.raises(ConstraintError, match="--schema: "):
        matcher.accept(ord("x"))
    acts = matcher.mask, matcher.forced, lambda: matcher.accepts([1]), lambda: matcher.accept(1)
    for act in acts:
        with pytest.raises(ConstraintError):
            act()
    assert not matcher.may_end
    assert not matcher.is_complete


def test_a_constraint_that_becomes_too_complex_raises(vocabulary: Vocabulary) -> None:
    """llguidance's mask would allow only the end."""
    matcher = Matcher(vocabulary, Constraint.from_regex("(.*a.{600}|.*b.{599}c.{400}){2,9}"))
    rng = random.Random(0)
    with pytest.raises(ConstraintError, match="--regex: too large or too complex to enforce"):  # noqa: PT012
        for _ in range(20_000):
            assert len(allowed(matcher)) > 1
            matcher.accept(ord(rng.choice("abc")))


def test_at_most_so_many_tokens_are_forced(vocabulary: Vocabulary) -> None:
    forced = Matcher(vocabulary, Constraint.from_regex("x{500}")).forced
    assert (len(forced()), forced(3)) == (MAX_FORCED, [ord("x")] * 3)


def random_answer(
    vocabulary: Vocabulary, closing: set[int], constraint: Constraint, rng: random.Random
) -> str:
    """Drawn from the allowed tokens; after some, closing ones, or a string would hardly end."""
    matcher, (end,) = Matcher(vocabulary, constraint), vocabulary.ends
    for length in range(4_000):
        tokens = allowed(matcher)
        assert (end in tokens) == matcher.may_end
        assert matcher.is_complete == (tokens == {end})
        if matcher.is_complete or (matcher.may_end and rng.random() < 0.3 + length / 50):
            break
        tokens -= {end}
        ends_soon = length > 30 and tokens & closing and rng.random() < 0.6
        matcher.accept(rng.choice(sorted(tokens & closing if ends_soon else tokens)))
    assert matcher.may_end, f"no end: {matcher.text!r}"
    return matcher.text


def test_answers_to_schemas_of_all_kinds_come_to_an_end_and_are_valid_or_have_a_problem() -> None:
    """With tokens of several bytes, as they are frequent in JSON."""
    tokenizer = make_tokenizer(trained_byte_level([*map(json.dumps, SCHEMAS.values())], 1_000))
    vocabulary, tokens = Vocabulary(tokenizer), tokenizer.token_bytes()
    closing = {id_ for id_, token in enumerate(tokens) if {*token} & {*b'"}],:'}}
    problems = 0
    for seed, schema in enumerate(SCHEMAS.values()):
        constraint = Constraint.from_schema(schema)
        draft = validator_for(schema, Draft202012Validator)
        check = draft(schema, format_checker=draft.FORMAT_CHECKER)
        answer = random_answer(vocabulary, closing, constraint, random.Random(seed))
        if constraint.problem(answer) is not None:
            problems += 1
        else:
            # 8730.64 is a multiple of 0.01, but not of its nearest float.
            errors = check.iter_errors(json.loads(answer))
            assert all(each.validator == "multipleOf" for each in errors), (schema, answer)
    assert problems <= 0.05 * len(SCHEMAS)


def test_control_tokens_and_markers_are_never_text(vocabulary: Vocabulary) -> None:
    """The text of `<think>` is allowed in a string, but not as the token that opens a thought."""
    backend = byte_tokenizer()
    matcher = Matcher(vocabulary, Constraint.from_regex("(?s).*"))
    named = {backend.token_to_id(text) for text in ("<|im_start|>", "<think>", "</think>")}
    assert not allowed(matcher) & named
    assert matcher.accepts(list(b"<think><|im_start|>")) == 19


def test_a_vocabulary_of_another_kind_is_refused_by_name() -> None:
    backend = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}))
    for decoder, name in ((decoders.WordPiece(), "WordPiece"), (None, "none")):
        backend.decoder = decoder  # type: ignore
        with pytest.raises(ModelUnsupported, match=rf"unknown decoder \({name}\)"):
            Vocabulary(Tokenizer(backend))


@pytest.mark.parametrize(
    ("logits", "mask", "masked"),
    [
        # The network's output is padded.
        ([0.0, 1.0, 2.0, 3.0], [True, False, True], [0.0, -np.inf, 2.0, -np.inf]),
        ([np.nan, np.inf, 1.0], [False, False, True, True], [-np.inf, -np.inf, 1.0]),
    ],
)
def test_a_mask_leaves_allowed_logits_and_removes_the_rest_even_if_invalid(
    logits: list[float], mask: list[bool], masked: list[float]
) -> None:
    assert np.array(apply_mask(mx.array([logits]), np.array(mask)))[0].tolist() == masked


@pytest.mark.parametrize("text", ["ﬁne ﬁne ﬁne", "＜|im_end|＞", "Å Å"])
def test_forced_text_that_the_tokenizer_normalizes_is_not_drafted_wrongly(text: str) -> None:
    """Its tokens spell other text, which llguidance must not be led to believe."""
    backend = byte_tokenizer()
    backend.normalizer = normalizers.NFKC()
    matcher = Matcher(Vocabulary(Tokenizer(backend, None, [258])), Constraint.from_choices([text]))
    forced = matcher.forced()
    assert matcher.accepts(forced) == len(forced)
    assert not set(forced) & {256, 257, 258}
    for byte in text.encode():
        matcher.accept(byte)
    assert matcher.is_complete
