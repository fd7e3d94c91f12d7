"""Which forgotten turns a message recalls: those that answer it, not those that repeat it."""

import pytest

from mlxchat.chat.memory import Memory, quotes
from mlxchat.chat.state import State, Turn
from mlxchat.recall.choice import Said

QUESTION = "What is my sister's name?"
STATED = ("My sister's name is Clara.", "Nice.")
CHANGED = ("My sister changed her name to Dora.", "I see.")
FILLERS = [(f"Tell me about {each}.", "It is old.") for each in ("tea", "silk", "chess", "comets")]
LOG = " ".join(f"module{n} failed at address x{n}f" for n in range(40))


def recalled(message: str, *said: tuple[str, str]) -> list[int]:
    turns = (*(Turn(*each, forgotten=True) for each in said), Turn(message))
    return Memory().find(message, State(turns=turns), 2)


@pytest.mark.parametrize("asked", [0, 1, 5, 20])
def test_a_question_asked_again_and_again_recalls_the_change_too(asked: int) -> None:
    said = [STATED, *FILLERS, *[(QUESTION, "Clara.")] * asked, CHANGED, *FILLERS]
    said += [("Do you know my sister's name?", "Your sister's name is Clara.")] * asked
    assert recalled(QUESTION, *said) == [1, 6 + asked]


def test_a_change_that_only_names_what_the_fact_names_is_recalled_beside_it() -> None:
    fact = ("The head of our design team is Carla Mendes.", "Nice.")
    change = ("Carla left, so Vikram decides everything visual.", "I see.")
    earlier = ("Carla Mendes likes old maps.", "Nice.")
    said = [earlier, *FILLERS, fact, *FILLERS, change, *FILLERS]
    assert recalled("Who leads our design team?", *said) == [6, 11]
    assert recalled("Who leads our design team?", *said[:10], *FILLERS) == [6]


@pytest.mark.parametrize(
    ("change", "kept"),
    [("Carla left, so Vikram decides.", 1), ("Vikram leads our design team now.", 2)],
)
def test_where_only_one_turn_has_room_it_is_one_that_the_message_is_about(
    change: str, kept: int
) -> None:
    quoted = [(1, Turn("Carla leads our design team.", "")), (2, Turn(change, ""))]
    ways = [few for few, _ in quotes(quoted, "Who leads our design team?", 200)]
    assert ways[0] == quoted
    assert [number for number, _ in ways[-1]] == [kept]


def test_a_turn_that_was_cleared_away_is_not_recalled_for_a_name() -> None:
    fact, change = "The head of our design team is Carla Mendes.", "Carla left for Vikram's team."
    fillers = (Turn(*each) for each in FILLERS)
    turns = (Turn(fact, "", forgotten=True), *fillers, Turn(change, ""))
    state = State(turns=turns).add(Turn("Who leads our design team?"))
    assert Memory().find("Who leads our design team?", state, 2) == [1]
    assert Memory().find("Who leads our design team?", state.forget([6]), 2) == [1, 6]


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ("I weigh 84 kilos and want to lose some.", "How much do I weigh at the moment?"),
        ("I run 8 kilometres along the canal.", "What distance along the canal do I run?"),
        ("The reunion is in Galway this autumn.", "In which town is the reunion?"),
        ("Meine Schwester wohnt in Graz.", "In welcher Stadt lebt meine Schwester?"),
        ("Meu padrinho mora em Curitiba com a esposa.", "Em que cidade vive meu padrinho?"),
    ],
)
def test_a_fact_does_not_say_what_kind_of_thing_it_tells(fact: str, message: str) -> None:
    assert recalled(message, (fact, ""), *FILLERS) == [1]


def test_the_answer_to_an_earlier_question_is_recalled_if_nothing_else_says_it() -> None:
    asked = ("Which pump do we need for our cellar?", "For your cellar you need the pump P-77.")
    assert recalled("Which pump was it for the cellar?", asked, *FILLERS) == [1]


def test_a_statement_in_front_of_a_question_is_a_statement() -> None:
    first = ("My dog Rex limps, what can I do?", "See a vet.")
    assert recalled("What is my dog's name?", first, *FILLERS) == [1]


def test_a_log_pasted_again_does_not_recall_itself() -> None:
    said = [(f"{LOG} Why?", "The disk is full."), *FILLERS]
    assert recalled(f"{LOG} And what about this?", *said) == []
    assert recalled(LOG, (LOG, "The disk is full."), *FILLERS) == []


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize(
    "message",
    ["question {} of 40", "Task {}/40, next one please", "{}"],
)
def test_numbered_messages_do_not_recall_each_other(message: str, count: int) -> None:
    said = [(message.format(n), f"Reply {n}.") for n in range(1, count + 1)]
    assert recalled(message.format(count + 1), *said) == []
    assert recalled(message.format(1), *said) == []


def test_a_number_alone_is_no_match() -> None:
    said = [("I have 12 apples.", "Good."), *FILLERS]
    assert recalled("What is 12 times 7?", *said) == []
    assert recalled("And 12?", *said) == []


@pytest.mark.parametrize("message", ["", "?", " \n", "\0", "a" * 100_000, "?" * 1000, "," * 10_000])
def test_odd_texts_recall_nothing(message: str) -> None:
    assert recalled(message, (message, message), *FILLERS) == []


@pytest.mark.parametrize(
    ("text", "stated", "asked"),
    [
        ("I am Ada. Who are you?", "I am Ada.", " Who are you?"),
        ("My dog limps, what now?", "My dog limps,", " what now?"),
        ("What is that, please?", "", "What is that, please?"),
        ("我叫小明。你叫什么？", "我叫小明。", "你叫什么？"),
        ("It costs 3.50. OK?", "It costs 3.50.", " OK?"),
    ],
)
def test_a_text_is_split_into_what_it_states_and_asks(text: str, stated: str, asked: str) -> None:
    assert Said.of(text) == Said(stated, asked)


# Among what people say at length, and what they paste

TOLD = (
    "Just so you know, the production database lives on db-prod-3, and nobody but Marta has the "
    "root password for it."
)
PAGE = (
    "The .egg-info directory of a package lists the names of all its files. A name is bound by "
    "an assignment, and a caller who says hi to the bad server of the day reads the first answer. "
    "The index was poached by predecessors, who wrote about sheds and rivers in old letters. "
    "The speed of a program depends on how it stores its tables and reads its own files."
)


@pytest.mark.parametrize(
    "message",
    [
        "Hi there!",
        "I had a bad day.",
        "How do I poach an egg?",
        "What is the speed of sound?",
        "No, I meant the first answer.",
        "I don't think I've understood that.",
    ],
)
def test_a_sentence_that_shares_little_by_chance_is_not_recalled(message: str) -> None:
    """Of 62 such messages, 22 recalled one of a thousand sentences."""
    typed = [(sentence + ".", "I see.") for sentence in PAGE.split(". ")]
    assert recalled(message, *typed, *FILLERS) == []
    assert recalled(message, (PAGE, "I see."), *FILLERS) == []


def test_pasted_pages_do_not_hide_what_was_typed() -> None:
    pages = [(f"{PAGE} Page {n} is about x{n}y and z{n}.", "I see.") for n in range(200)]
    assert recalled(QUESTION, STATED, *pages) == [1]
    assert recalled("Who has the root password?", (TOLD, "Noted."), *pages) == [1]


def test_my_things_in_a_pasted_page_are_not_the_speakers() -> None:
    told = "I told my brother Otto about an old house by the sea, in the valley of the kings."
    question = "Where does my brother live in summer?"
    assert recalled(question, (told, "I see."), *FILLERS) == [1]
    assert recalled(question, (f"{PAGE} {told}", "I see."), *FILLERS) == []


def test_a_request_states_nothing_unless_it_is_about_own_things() -> None:
    assert (
        recalled("What is a neutron star?", ("Tell me about star charts.", "Old."), *FILLERS) == []
    )
    poem = ("Please write a poem about my dog Rex.", "O Rex!")
    assert recalled("What is my dog's name?", poem, *FILLERS) == [1]


def test_what_is_asked_of_the_world_recalls_no_own_things_for_one_word() -> None:
    fact = ("Our cat only eats the salmon flavored dry food.", "Nice.")
    said = [fact, *FILLERS, ("The tax office wrote to me about 2019.", ""), STATED]
    assert recalled("Can cats see colours?", *said) == []
    assert recalled("What does our cat eat?", *said) == [1]


def test_a_line_of_a_pasted_page_is_no_match_for_its_only_word() -> None:
    """Wrapped at a width, its last word stood alone."""
    lines = [f"Pump {n} of valve {n} leaks oil." for n in range(1000, 1600)]
    page = "\n".join(
        [*lines, "Lisbon has many hills and at every corner there is a coffee", "shop."]
    )
    said = [(page, "Noted."), *FILLERS]
    assert recalled("Suggest a slogan for a small shop.", *said) == []
