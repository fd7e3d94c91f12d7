"""Searching for what a message needs: it finds the text that fits, and abstains otherwise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxchat.recall.choice import fits
from mlxchat.recall.index import Index
from mlxchat.recall.words import words

TEXTS = (
    "My name is Ada and I live in Turin.",
    "How do I boil an egg?",
    "The alarm code is 4471.",
    "我的猫叫小白。",
    "I moved to Genoa, so I no longer live in Turin.",
)


def index_of(*texts: str) -> Index:
    index = Index()
    for number, text in enumerate(texts):
        index.add(number, text)
    return index


def numbers(message: str, *texts: str) -> list[int]:
    return [fit.number for fit in fits(index_of(*(texts or TEXTS)), message)]


@pytest.mark.parametrize(
    ("message", "number"),
    [
        ("What is the code of the alarm?", 2),
        ("Do you know how eggs are boiled?", 1),
        ("What about 4471?", 2),
        ("What is my name?", 0),
        ("我的猫叫什么?", 3),
    ],
)
def test_the_text_that_shares_the_messages_rare_words_comes_first(
    message: str, number: int
) -> None:
    assert numbers(message)[:1] == [number]


def test_a_fact_and_its_change_are_both_found() -> None:
    assert set(numbers("Which city do I live in, Turin?")[:2]) == {0, 4}


@pytest.mark.parametrize("message", ["", "Hello!", "What is the capital of Peru?", "?!", "Go on."])
def test_nothing_is_found_for_a_message_that_needs_nothing(message: str) -> None:
    assert numbers(message) == []


def test_a_word_that_many_texts_contain_finds_none() -> None:
    texts = [f"Report {n}: the pump works." for n in range(100)]
    assert numbers("pump?", *texts) == []


@given(st.text(), st.text())
def test_no_text_or_message_is_taken_for_a_query(text: str, message: str) -> None:
    fits(index_of(text, message), message)


@pytest.mark.parametrize(
    "message", ['alarm" OR words:*', "NEAR(alarm code)", "alarm\0code", "code*", "-alarm ^code"]
)
def test_search_operators_are_words(message: str) -> None:
    assert numbers(message)[:1] in ([2], [])


def test_scripts_without_spaces_are_split_into_pairs() -> None:
    assert words("小白猫 Ada") == ["小白", "白猫", "ada"]
