"""A text of any length, about nothing in particular, with facts planted in it."""

from collections.abc import Iterator, Sequence
from itertools import count

from mlxchat.bench.recall_set import Fact

YEARS = (1791, 1806, 1834, 1852, 1877, 1903, 1921, 1946, 1968)
TOWNS = ("Antwerp", "Bruges", "Cadiz", "Delft", "Esbjerg", "Ferrara", "Genoa", "Hull")
NAMES = ("Agathe", "Bertil", "Cosima", "Duncan", "Edwige", "Fergus", "Greta")
SENTENCES = (
    "Few people in {town} had given much thought to {topic} before {year}.",
    "{name} kept a drawer full of notes on {topic}, most of them in pencil.",
    "A visitor from {town} wrote home at length about {topic} and about the food.",
    "It is often said that {topic} came from {town}, though the evidence is thin.",
    "The newspaper of {year} has two columns on {topic} and one on the price of oats.",
    "{name} and {other} argued about {topic} for a whole winter and then about money.",
    "What is written about {topic} in the guide books was copied from a single page.",
    "In {town} people still tell the story of {name}, who gave everything up for {topic}.",
    "There were exhibitions in {year}, and each had a room for {topic}.",
    "Of the letters that {name} sent to {town}, only the one about {topic} was answered.",
    "The committee asked {other} to count everything that had to do with {topic}.",
    "Those who have seen {topic} at night do not forget it.",
)
IN_A_PARAGRAPH = (3, 5, 4, 2)


def long_text(facts: Sequence[Fact], topics: Sequence[str], size_bytes: int) -> str:
    """Paragraphs of about `size_bytes` in UTF-8. The facts are evenly spread, and their changes
    come after all of them; none is in the first or in the last paragraph."""
    said = [fact.statement for fact in facts] + [fact.change for fact in facts if fact.change]
    paragraphs = _paragraphs(topics)
    written: list[list[str]] = [next(paragraphs)]
    left = size_bytes - sum(len(text.encode()) + 1 for text in said)
    while left > 0:
        written.append(next(paragraphs))
        left -= sum(len(sentence) + 1 for sentence in written[-1]) + 1
    for number, text in enumerate(said):
        place = 1 + number * (len(written) - 2) // len(said)
        written[place].insert(len(written[place]) // 2, text)
    return "\n\n".join(" ".join(sentences) for sentences in written)


def _paragraphs(topics: Sequence[str]) -> Iterator[list[str]]:
    """Paragraphs about one topic each, none the same for a long time."""
    sentence = 0
    for number in count():
        sentences: list[str] = []
        for _ in range(IN_A_PARAGRAPH[number % len(IN_A_PARAGRAPH)]):
            sentences.append(
                SENTENCES[sentence % len(SENTENCES)].format(
                    topic=topics[number % len(topics)],
                    town=TOWNS[(sentence * 5 + number) % len(TOWNS)],
                    year=YEARS[(sentence * 7 + number) % len(YEARS)],
                    name=NAMES[(sentence + number) % len(NAMES)],
                    other=NAMES[(sentence + number + 3) % len(NAMES)],
                )
            )
            sentence += 1
        yield sentences
