"""What is answered about facts in a document that is larger than the window, asked for in other
words, with each way to read it and with the fact in view.

    python -m scripts.bench.documents

The text is about nothing in particular, with the facts planted at equal distances. What is measured
is how likely the model finds the right answer in a reply that begins as the fact did.
"""

import io
import statistics
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cached_property
from itertools import count

from scripts.bench.common import parser, show
from scripts.bench.facts import SHORT, TOPICS, Answering, Fact

# isort: split

from mlxchat.app.opening import Loaded
from mlxchat.app.overflow import SectionReader, with_passages
from mlxchat.app.prompt import room_for_prompt
from mlxchat.models.load import load
from mlxchat.models.model import Model
from mlxchat.request import Request, Setup
from mlxchat.settings import CacheSettings, Overflow, SamplingSettings
from mlxchat.text.documents import SEPARATOR, open_documents
from mlxchat.text.encoder import TokenIds
from mlxchat.units import Observer

IN_VIEW = "fact in view"
QUIET = Observer(warn=lambda _: None, note=lambda _: None)
# The share of the room for a prompt that the text around a fact in view takes.
VIEW_SHARE = 0.9

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


def main() -> None:
    options = parser(__doc__).parse_args()
    model = load(options.model, offline=True)
    facts = SHORT[:3] if options.quick else SHORT
    for window in (1_024,) if options.quick else (512, 2_048):
        for size in (3,) if options.quick else (20, 200):
            with closing(Asked(model, window, size, facts)) as asked:
                answer(asked, Overflow.PASSAGES, facts)
                answer(asked, IN_VIEW, facts)
                # A longer text would take an hour.
                if window * size <= 110_000:
                    answer(asked, Overflow.ROLL, facts)
                if size < 200 and window < 2_048:
                    answer(asked, Overflow.MAP, facts[: 1 if options.quick else 6])


def answer(asked: "Asked", way: str, facts: Sequence[Fact]) -> None:
    prompts = [asked.prompt(way, fact) for fact in facts]
    answering = asked.rolling if way == Overflow.ROLL else asked.prompting
    answers = [answering.answer(ids, fact) for ids, fact in zip(prompts, facts, strict=True)]
    decode = asked.model.tokenizer.decode
    pairs = zip(prompts, facts, strict=True)
    show(
        bench="documents",
        way=way,
        tokens=asked.tokens,
        max_kv_size=asked.window,
        facts=len(facts),
        answered=sum(answered for answered, _ in answers),
        logprob=statistics.mean(logprob for _, logprob in answers),
        in_prompt=sum((fact.change or fact.statement) in decode(ids) for ids, fact in pairs),
        prompt_tokens=statistics.mean(map(len, prompts)),
    )


class Asked:
    """A document of `size` windows in which `facts` are, and the prompts about it."""

    def __init__(self, model: Model, window: int, size: int, facts: Sequence[Fact]) -> None:
        self.model, self.window = model, window
        sample = long_text((), 10_000)
        self._chars_per_token = len(sample) / len(model.tokenizer.encode(sample))
        self.text = long_text(facts, int(self._chars_per_token * window * size))
        self._documents = list(open_documents([], io.BytesIO(self.text.encode()), QUIET.warn))
        settings = CacheSettings(window)
        cache = model.make_cache(window, settings.keep)
        self._loaded = Loaded("", model, settings, SamplingSettings(), cache)

    def close(self) -> None:
        for document in self._documents:
            document.close()

    @cached_property
    def tokens(self) -> int:
        return len(self.model.tokenizer.encode(self.text))

    @cached_property
    def rolling(self) -> Answering:
        """The whole document in the rotating window."""
        return Answering(self.model, self._whole("Who?"), self._whole("Where?"), self.window)

    @cached_property
    def prompting(self) -> Answering:
        return Answering(self.model, self._ids("Who?"), self._ids("Where?"))

    def prompt(self, way: str, fact: Fact) -> TokenIds:
        setup = Setup(prefix_cache=False, window=self.window)
        request = Request(setup=setup, prompt=fact.question, overflow=Overflow.PASSAGES)
        if way == Overflow.PASSAGES:
            return with_passages(request, self._documents, self._loaded, QUIET)[0].ids
        if way == Overflow.ROLL:
            return self._whole(fact.question)
        if way == IN_VIEW:
            return self._in_view(fact, room_for_prompt(request, self.window))
        reader = SectionReader(request, self._documents, self._loaded, QUIET)
        for _ in reader.read(lambda: False):
            pass
        assert reader.prompt is not None
        return reader.prompt.ids

    def _in_view(self, fact: Fact, room: int) -> TokenIds:
        """The fact with as much of the text around it as there is room for."""
        room -= len(self._ids(fact.question))
        chars = int(self._chars_per_token * room * VIEW_SHARE)
        place = self.text.index(fact.change or fact.statement)
        start = min(max(place - chars // 2, 0), max(len(self.text) - chars, 0))
        return self._ids(self.text[start : start + chars] + SEPARATOR + fact.question)

    def _whole(self, question: str) -> TokenIds:
        return self._ids(self.text + SEPARATOR + question)

    def _ids(self, text: str) -> TokenIds:
        return self.model.tokenizer.prompt(text).ids


def long_text(facts: Sequence[Fact], size_bytes: int) -> str:
    """Paragraphs of about `size_bytes` in UTF-8. The facts are evenly spread, and their changes
    come after all of them; none is in the first or in the last paragraph."""
    said = [fact.statement for fact in facts] + [fact.change for fact in facts if fact.change]
    written: list[list[str]] = []
    left = size_bytes - sum(len(text.encode()) + 1 for text in said)
    for paragraph in paragraphs():
        if written and left <= 0:
            break
        # The first one comes on top.
        left -= sum(len(sentence) + 1 for sentence in paragraph) + 1 if written else 0
        written.append(paragraph)
    for number, text in enumerate(said):
        place = 1 + number * (len(written) - 2) // len(said)
        written[place].insert(len(written[place]) // 2, text)
    return "\n\n".join(" ".join(sentences) for sentences in written)


def paragraphs() -> Iterator[list[str]]:
    """About one topic each, none the same for a long time."""
    sentence = 0
    for number in count():
        sentences: list[str] = []
        for _ in range(IN_A_PARAGRAPH[number % len(IN_A_PARAGRAPH)]):
            sentences.append(
                SENTENCES[sentence % len(SENTENCES)].format(
                    topic=TOPICS[number % len(TOPICS)],
                    town=TOWNS[(sentence * 5 + number) % len(TOWNS)],
                    year=YEARS[(sentence * 7 + number) % len(YEARS)],
                    name=NAMES[(sentence + number) % len(NAMES)],
                    other=NAMES[(sentence + number + 3) % len(NAMES)],
                )
            )
            sentence += 1
        yield sentences


if __name__ == "__main__":
    main()
