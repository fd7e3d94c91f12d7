"""Searching for what a message needs: it finds the text that fits, and abstains otherwise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxchat.recall.choice import Index, chosen, closest, excerpt, informative, is_about_own, kinds

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
    return [close.number for close in closest(index_of(*(texts or TEXTS)), message)]


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


@pytest.mark.parametrize("message", ["", "Hello!", "What is the capital of Peru?"])
def test_nothing_is_found_for_a_message_that_needs_nothing(message: str) -> None:
    assert numbers(message) == []


@given(st.text(), st.text())
def test_no_text_or_message_is_taken_for_a_query(text: str, message: str) -> None:
    closest(index_of(text, message), message)


@pytest.mark.parametrize(
    ("closeness", "at_most", "expected"),
    [
        ({}, 2, []),
        ({1: 0.5, 2: 0.5, 3: 0.5}, 2, [3, 2]),
        # A fact that changed is said again in other words.
        ({1: 0.5, 2: 0.45}, 1, [2]),
        ({1: 0.5, 2: 0.35}, 1, [1]),
        ({1: 0.5, 2: 0.35, 3: 0.2}, 3, [1, 2]),
        ({1: 0.5}, 0, []),
    ],
)
def test_the_closest_are_chosen_and_of_nearly_equal_ones_the_latest(
    closeness: dict[int, float], at_most: int, expected: list[int]
) -> None:
    assert chosen(closeness, at_most) == expected


def test_a_word_that_most_texts_have_finds_none_of_them() -> None:
    texts = [f"The whale {n} swims." for n in ("Ada", "Bob", "Cleo", "Dora", "Ed", "Flo", "Gus")]
    assert numbers("Where is the whale?", *texts * 5) == []
    assert numbers("Where is the whale Cleo?", *texts * 2, "Cleo the whale is in Oslo.") != []


def test_a_negation_is_no_name() -> None:
    assert informative("I don't know, and won’t ask.") == ["know"]
    assert numbers("I don't agree.", "Don lives in Lyon.", "It rains.") == []
    assert numbers("Where does Don live?", "Don lives in Lyon.", "It rains.") == [0]


# Excerpts


def test_an_excerpt_is_the_part_that_says_what_was_asked() -> None:
    text = f"{'Nothing here. ' * 50}My dog Rex likes the beach. {'More of it. ' * 50}"
    found = excerpt(text, "What does my dog like?", 60)
    assert "My dog Rex likes the beach." in found
    assert found.startswith("…")
    assert found.endswith("…")
    assert len(found) <= 62


@given(st.text(), st.text(), st.integers(1, 50))
def test_an_excerpt_is_never_longer_and_always_from_the_text(
    text: str, message: str, limit: int
) -> None:
    found = excerpt(text, message, limit)
    assert len(found) <= limit + 2
    assert found.strip("…") in " ".join(text.split()) or "…" in text


@pytest.mark.parametrize(
    ("message", "own"),
    [
        ("How much do I weigh?", True),
        ("¿Dónde está mi coche?", True),
        ("How do I weigh flour?", False),
        ("What should I do about rust?", False),
    ],
)
def test_what_anybody_does_is_not_about_own_things(message: str, own: bool) -> None:
    assert is_about_own(message) == own


def test_the_kind_of_thing_asked_for_follows_which_or_what() -> None:
    assert kinds("Which city is it in, and what colour has it?") == {"city", "colour"}
    assert kinds("In welcher Stadt?") == {"stadt"}
    assert kinds("Where is the city?") == set()


def test_a_name_is_not_the_kind_of_thing() -> None:
    texts = ("The version of the API is 3.", "It rains.", "Tea is hot.")
    assert numbers("Which API version is it?", *texts) == [0]
    assert numbers("Which Python version is it?", *texts) == []


@pytest.mark.parametrize("word", ["van", "OS", "dove"])
def test_a_word_that_is_empty_in_another_language_is_searched_for(word: str) -> None:
    assert informative(f"Where is the {word} now?") == [word.casefold()]
    assert not is_about_own(f"What is the {word}?")
