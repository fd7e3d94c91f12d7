"""What a message needs of what was said: what answers it, not what repeats it. First what a text
says, and the texts that fit; then which forgotten turns a message recalls."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxchat.chat.memory import Memory, quotes
from mlxchat.chat.state import State, Turn
from mlxchat.recall.choice import Index, chosen, closest, excerpt, is_about_own, is_standing
from tests.conftest import examples

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
    ("message", "found"),
    [
        *(("What is the code of the alarm?", [2]), ("Do you know how eggs are boiled?", [1])),
        *(("What is my name?", [0]), ("我的猫叫什么?", [3])),
        # A fact and its change.
        ("Which city do I live in, Turin?", [0, 4]),
        *((message, []) for message in ("", "Hello!", "What is the capital of Peru?")),
    ],
)
def test_the_texts_that_share_its_rare_words_come_first(message: str, found: list[int]) -> None:
    assert numbers(message)[: len(found) or None] == found


@pytest.mark.parametrize("size", [300, 3_000])
def test_among_more_texts_one_has_to_be_closer(size: int) -> None:
    """The more there are, the closer one of them is by chance."""
    texts = [f"Parcel p{n} from street s{n} weighs w{n} grams." for n in range(size - 1)]
    told = "The ferry to the island of Hven leaves from the old pier at noon."
    assert numbers("Which ferry is it?", told, *texts) == ([0] if size == 300 else [])


@settings(max_examples=examples(10))
@given(st.text(), st.text())
def test_no_text_or_message_is_taken_for_a_query(text: str, message: str) -> None:
    closest(index_of(text, message), message)


@pytest.mark.parametrize(
    ("closeness", "at_most", "expected"),
    [
        ({}, 2, []),
        ({1: 0.5, 2: 0.5, 3: 0.5}, 2, [3, 2]),
        # A fact that changed is said again in other words.
        *(({1: 0.5, 2: 0.45}, 1, [2]), ({1: 0.5, 2: 0.35}, 1, [1])),
        ({1: 0.5, 2: 0.35, 3: 0.2}, 3, [1, 2]),
    ],
)
def test_the_closest_are_chosen_and_of_nearly_equal_ones_the_latest(
    closeness: dict[int, float], at_most: int, expected: list[int]
) -> None:
    assert chosen({n: (each, 0.5) for n, each in closeness.items()}, at_most) == expected
    assert chosen({1: (0.5, 0.9), 2: (0.55, 0.8)}, 1) == [1], "it has more of the message"


WHALES = [f"The whale {n} swims." for n in ("Ada", "Bob", "Cleo", "Dora", "Ed", "Flo", "Gus")] * 5
API = ("The version of the API is 3.", "It rains.", "Tea is hot.")
DON = ("Don lives in Lyon.", "It rains.")


@pytest.mark.parametrize(
    ("texts", "message", "found"),
    [
        # A word that most texts have finds none of them.
        (WHALES, "Where is the whale?", []),
        ([*WHALES, "Cleo the whale is in Oslo."], "Where is the whale Cleo?", [7]),
        # A name is not the kind of thing that is asked for.
        (API, "Which API version is it?", [0]),
        (API, "Which Python version is it?", []),
        # A negation is no name.
        (DON, "I don't agree.", []),
        (DON, "Where does Don live?", [0]),
    ],
)
def test_a_word_finds_its_subject(texts: Sequence[str], message: str, found: list[int]) -> None:
    assert numbers(message, *texts)[:1] == found


# Excerpts


def test_an_excerpt_is_the_part_that_says_what_was_asked() -> None:
    text = f"{'Nothing here. ' * 50}My dog Rex likes the beach. {'More of it. ' * 50}"
    found = excerpt(text, "What does my dog like?", 60)
    assert (found[0], "My dog Rex likes the beach." in found, found[-1]) == ("…", True, "…")
    # Without spaces, it was always the beginning.
    text = f"{'今天天气很好。' * 20}我的狗叫大黄。{'我们去公园。' * 20}"
    assert "我的狗叫大黄" in excerpt(text, "我的狗叫什么？", 30)


@given(st.text(), st.text(), st.integers(1, 50))
def test_an_excerpt_is_never_longer_and_from_the_text(text: str, message: str, limit: int) -> None:
    found = excerpt(text, message, limit)
    assert len(found) <= limit + 2
    assert found.strip("…") in " ".join(text.split()) or "…" in text


@pytest.mark.parametrize(
    ("message", "own"),
    [
        ("How much do I weigh?", True),
        # What anybody does, and words that are empty in another language.
        ("How do I weigh flour?", False),
        *((f"What is the {word}?", False) for word in ("van", "OS", "dove")),
    ],
)
def test_a_message_is_about_own_things_or_the_world(message: str, own: bool) -> None:
    assert is_about_own(message) == own


STANDING = ("Always rhyme.", "please never", "I’m allergic to nuts", "请始终用中文", "いつも")
OTHERS = ("", "Never mind.", "Remember that film?", "Is it always so?")


@pytest.mark.parametrize("message", [*STANDING, *OTHERS])
def test_a_message_that_holds_from_then_on_is_known_by_its_beginning(message: str) -> None:
    assert is_standing(message) == (message in STANDING)


QUESTION = "What is my sister's name?"
STATED = "My sister's name is Clara."
CHANGED = "My sister changed her name to Dora."
FILLERS = [(f"Tell me about {each}.", "It is old.") for each in ("tea", "silk", "chess", "comets")]
LOG = " ".join(f"module{n} failed at address x{n}f" for n in range(40))
PAGE = (
    "The .egg-info directory of a package lists the names of all its files. A name is bound by "
    "an assignment, and a caller who says hi to the bad server of the day reads the first answer. "
    "The index was poached by predecessors, who wrote about sheds and rivers in old letters. "
    "The speed of a program depends on how it stores its tables and reads its own files."
)
TOLD = "I told my brother Otto about an old house by the sea, in the valley of the kings."
PUMP = ("Which pump do we need for our cellar?", "For your cellar you need the pump P-77.")
CAT = "Our cat only eats the salmon flavored dry food."


def recalled(message: str, *said: str | tuple[str, str]) -> list[int]:
    pairs = [(each, "I see.") if isinstance(each, str) else each for each in said]
    turns = (*(Turn(*each, forgotten=True) for each in pairs), Turn(message))
    return Memory().find(message, State(turns=turns), 2)


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        # A fact does not say what kind of thing it tells.
        ("I weigh 84 kilos and want to lose some.", "How much do I weigh at the moment?"),
        ("The reunion is in Galway this autumn.", "In which town is the reunion?"),
        ("Meine Schwester wohnt in Graz.", "In welcher Stadt lebt meine Schwester?"),
        # A statement in front of a question, or in a request, is a statement.
        ("My dog Rex limps, what can I do?", "What is my dog's name?"),
        ("我的狗叫小明。你叫什么？", "我的狗叫什么？"),
        ("Please write a poem about my dog Rex.", "What is my dog's name?"),
        (TOLD, "Where does my brother live in summer?"),
        (CAT, "What does our cat eat?"),
        # So is an answer, if nothing else says it.
        (PUMP, "Which pump was it for the cellar?"),
    ],
)
def test_a_fact_is_recalled_for_what_asks_for_it(fact: str | tuple[str, str], message: str) -> None:
    assert recalled(message, fact, *FILLERS) == [1]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (["Tell me about star charts."], "What is a neutron star?"),
        (["I have 12 apples."], "What is 12 times 7?"),
        (["I have 12 apples."], "And 12?"),
        # Pasted again.
        ([(f"{LOG} Why?", "The disk is full.")], f"{LOG} And what about this?"),
        ([LOG], LOG),
        # "My" in a pasted page is not the speaker's.
        ([f"{PAGE} {TOLD}"], "Where does my brother live in summer?"),
        # The world is asked, not the speaker's own things.
        ([CAT, "The tax office wrote to me about 2019.", STATED], "Can cats see colours?"),
        # Of 62 messages that share little by chance, 22 recalled one of a thousand sentences.
        *(
            (said, message)
            for said in ([PAGE], [f"{sentence}." for sentence in PAGE.split(". ")])
            for message in (
                *("How do I poach an egg?", "What is the speed of sound?"),
                *("No, I meant the first answer.", "I don't think I've understood that."),
            )
        ),
        *(([text], text) for text in ("", "?", " \n", "\0", "a" * 100_000, "," * 10_000)),
    ],
)
def test_nothing_is_recalled_for_what_needs_none(said: Sequence[str], message: str) -> None:
    assert recalled(message, *said, *FILLERS) == []


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("message", ["question {} of 40", "Task {}/40, next one please", "{}"])
def test_numbered_messages_do_not_recall_each_other(message: str, count: int) -> None:
    said = [message.format(n) for n in range(1, count + 1)]
    assert recalled(message.format(count + 1), *said) == []
    assert recalled(message.format(1), *said) == []


@pytest.mark.parametrize("asked", [0, 1, 5, 20])
def test_a_question_asked_again_and_again_recalls_the_change_too(asked: int) -> None:
    said = [STATED, *FILLERS, *[(QUESTION, "Clara.")] * asked, CHANGED, *FILLERS]
    said += [("Do you know my sister's name?", "Your sister's name is Clara.")] * asked
    assert recalled(QUESTION, *said) == [1, 6 + asked]


HEAD = "The head of our design team is Carla Mendes."
LEFT = "Carla left, so Vikram decides everything visual."
LEADS = "Who leads our design team?"


def test_a_change_that_only_names_what_the_fact_names_is_recalled_beside_it() -> None:
    said = ["Carla Mendes likes old maps.", *FILLERS, HEAD, *FILLERS, LEFT, *FILLERS]
    assert recalled(LEADS, *said) == [6, 11]
    assert recalled(LEADS, *said[:10], *FILLERS) == [6]


@pytest.mark.parametrize(("change", "kept"), [(LEFT, 1), ("Vikram leads our design team now.", 2)])
def test_where_one_turn_has_room_it_is_what_the_message_is_about(change: str, kept: int) -> None:
    quoted = [(1, Turn("Carla leads our design team.", "")), (2, Turn(change, ""))]
    ways = [few for few, _ in quotes(quoted, LEADS, 200)]
    assert ways[0] == quoted
    assert [number for number, _ in ways[-1]] == [kept]


def test_only_what_is_forgotten_and_not_cleared_away_is_recalled() -> None:
    turns = [Turn(HEAD), *(Turn(*each) for each in FILLERS), Turn(LEFT), Turn(LEADS)]
    state = State(turns=tuple(turns)).forget([1])
    assert Memory().find(LEADS, state, 2) == [1]
    assert Memory().find(f"> {HEAD}\n> \n{LEADS}", state, 2) == []
    assert Memory().find(LEADS, state.forget([6]), 2) == [1, 6]
    more = (Turn(f"Be brief.\n{HEAD}"), *turns[1:])
    assert Memory().find(LEADS, State(turns=more, remembered=("Be brief.",)).forget([1]), 2) == [1]
    cleared = State(turns=tuple(turns[1:5] + turns[:1])).clear()
    assert Memory().find(LEADS, cleared.add(turns[-1]), 2) == []


def test_pasted_pages_do_not_hide_what_was_typed() -> None:
    pages = [f"{PAGE} Page {n} is about x{n}y and z{n}." for n in range(200)]
    told = "The production database is on db-prod-3, and nobody but Marta has the root password."
    assert recalled(QUESTION, STATED, *pages) == [1]
    assert recalled("Who has the root password?", told, *pages) == [1]


def test_a_line_of_a_pasted_page_is_no_match_for_its_only_word() -> None:
    """Wrapped at a width, its last word stood alone."""
    lines = [f"Pump {n} of valve {n} leaks oil." for n in range(1000, 1600)]
    page = "\n".join([*lines, "Lisbon has many hills and at every corner there is a coffee\nshop."])
    assert recalled("Suggest a slogan for a small shop.", page, *FILLERS) == []
