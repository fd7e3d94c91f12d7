"""Tags spelled with ordinary tokens, which may contain half a tag or more than one."""

import pytest

from mlxchat.text.tag_tokens import TagTokens

TOKENS = [
    b"<",
    b"<th",
    b"ink",
    b">",
    b">\n",
    b">{",
    b"\n",
    b"\n<",
    b"{",
    b"><",
    b"</think",
    b"<think>",
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
