"""Stop texts and tags: found across token boundaries, wherever tokens begin and end."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxchat.text.pieces import StopTexts
from mlxchat.text.token_bytes import TagTokens

short_text = st.text(alphabet="ab\n", max_size=12)
stop_texts = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3)


@given(short_text, stop_texts, st.lists(st.integers(0, 12)))
def test_the_text_before_the_first_stop_text_is_shown(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(borders)]
    matcher = StopTexts(stops)
    shown = ""
    for piece in pieces:
        shown += matcher.add(piece)
        if matcher.found:
            break
    else:
        shown += matcher.finish()
    starts = [text.find(stop) for stop in stops if stop in text]
    assert matcher.found == bool(starts)
    if not starts:
        assert shown == text
    else:
        # Of several stop texts, the one completed first counts.
        ends = min(text.find(stop) + len(stop) for stop in stops if stop in text)
        assert shown == text[: len(shown)]
        assert not any(stop in shown for stop in stops)
        assert len(shown) <= ends


def test_text_that_only_begins_like_a_stop_text_is_shown() -> None:
    matcher = StopTexts(["END"])
    assert [matcher.add(piece) for piece in ("a", "E", "N", "x", "E")] == ["a", "", "", "ENx", ""]
    assert matcher.finish() == "E"


# Tags spelled with ordinary tokens, which may contain half a tag or more than one

TOKENS = [
    *(b"<", b"<th", b"ink", b">", b">\n", b">{"),
    *(b"\n", b"\n<", b"{", b"><", b"</think", b"<think>"),
]
CONTROL = {11}


@pytest.fixture
def tokens() -> TagTokens:
    return TagTokens(TOKENS, CONTROL)


def named(ids: object) -> set[bytes]:
    assert isinstance(ids, set | list)
    return {TOKENS[id_] for id_ in ids}


@pytest.mark.parametrize(
    ("written", "following"),
    [
        (b"", {b"<", b"<th", b"\n", b"\n<", b"</think"}),
        (b"\n", {b"<", b"<th", b"\n", b"\n<", b"</think"}),
        (b"<th", {b"ink"}),
        (b"<think", {b">", b">\n"}),
        (b"{", set()),
    ],
)
def test_tokens_that_continue_a_tag(
    tokens: TagTokens, written: bytes, following: set[bytes]
) -> None:
    assert named(tokens.continuing(("<think>", "</think>"), written)) == following


def test_tokens_that_would_begin_the_answer_within_the_tag(tokens: TagTokens) -> None:
    """Their text after the tag would not be constrained."""
    assert named(tokens.crossing("</think>", b"Hm</think")) == {b">{", b"><"}
    assert named(tokens.crossing("</think>", b"a think")) == set()
