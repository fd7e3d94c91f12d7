"""The time that blocks save, and their cost in quality. Joins four documents in every order and
compares with ordinary prefill of the same tokens: the time to the first token, the predictions of a
question's tokens, and whether the model still knows facts planted in the documents.

    python -m scripts.bench.blocks kjv.txt
"""

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scripts.bench.common import kl_divergence, logprobs, parser, picked, show

# isort: split

import mlx.core as mx
import numpy as np

from mlxchat.bench.compare import settle
from mlxchat.cache.layers import Cache
from mlxchat.engine.prefill import BlockReader, prefill
from mlxchat.models.load import load
from mlxchat.models.model import Model
from mlxchat.store.prefix_cache import DiskBlocks
from mlxchat.text.encoder import TokenIds
from mlxchat.text.tokens import Part, Prompt

LIMIT_BYTES = 1 << 33
STEP = 512
TEXT_TOKENS = 60_000
DOCUMENTS = 4
SYSTEM = "Answer questions about the documents."
THINGS = ("lantern", "anchor", "ladder", "kettle", "saddle", "mirror", "basket", "hammer")
PLACES = ("Ostrava", "Milbrook", "Tarsin", "Velden")
COLOURS = ("crimson", "silver", "purple", "copper", "golden", "orange", "violet")


def main() -> None:
    options_of = parser(__doc__)
    options_of.add_argument("text", type=Path)
    options = options_of.parse_args()
    model = load(options.model, offline=True)
    ids = model.tokenizer.encode(options.text.read_text())[:TEXT_TOKENS]
    lengths = (160, 40) if options.quick else (800, 200)
    orders, fact_orders, facts = (2, 1, 4) if options.quick else (24, 6, 30)
    documents = Documents(model, ids, *lengths, facts)
    with tempfile.TemporaryDirectory() as scratch:
        blocks = DiskBlocks(Path(scratch) / "blocks", model, LIMIT_BYTES)
        compare(documents, blocks, orders, fact_orders)


def compare(documents: "Documents", blocks: DiskBlocks, orders: int, fact_orders: int) -> None:
    """In so many orders; the facts are asked for in the first ones only."""
    for n, order in enumerate(itertools.islice(itertools.permutations(range(DOCUMENTS)), orders)):
        prompt = documents.prompt(order, documents.facts[0][0])
        first_s = documents.read(prompt, BlockReader(prompt, blocks))[1] if n == 0 else None
        prefilled, prefill_s = documents.read(prompt, prefill)
        joined, joined_s = documents.read(prompt, BlockReader(prompt, blocks))
        asked = documents.after(order, documents.question)
        full, other = (documents.logprobs(cache, asked) for cache in (prefilled, joined))
        same: Any = (mx.argmax(full, axis=-1) == mx.argmax(other, axis=-1)).mean().item()
        figures = {}
        if n < fact_orders:
            figures = {
                "prefill_answers": documents.answers(prefilled),
                "block_answers": documents.answers(joined),
                "answers_without_documents": documents.answers(documents.nothing_read()),
            }
        show(
            bench="blocks",
            order=order,
            prompt_tokens=len(prompt.ids),
            no_block_stored_ttft_s=first_s,
            prefill_ttft_s=prefill_s,
            block_ttft_s=joined_s,
            ratio=joined_s / prefill_s,
            kl=kl_divergence(full, other),
            same_likeliest_token=same,
            **figures,
        )


class Documents:
    """Parts of the text, far apart so that no document continues another, with planted facts."""

    def __init__(self, model: Model, ids: TokenIds, length: int, question: int, facts: int) -> None:
        self.model = model
        pairs = itertools.islice(itertools.product(PLACES, THINGS), facts)
        # A question, the beginning of its answer, and the answer.
        self.facts = [
            (
                f"What colour is the {thing} of {place}?",
                f"The {thing} of {place} is",
                COLOURS[n % 7],
            )
            for n, (place, thing) in enumerate(pairs)
        ]
        starts = np.linspace(0, len(ids) - length, DOCUMENTS + 1).astype(int)
        texts = [model.tokenizer.decode(ids[s : s + length].tolist()).strip() for s in starts]
        self.question = model.tokenizer.decode(ids[starts[-1] :][:question].tolist()).strip()
        self._documents = [
            planted(
                text, [f"{opening} {colour}." for _, opening, colour in self.facts[n::DOCUMENTS]]
            )
            for n, text in enumerate(texts[:DOCUMENTS])
        ]

    def prompt(self, order: Sequence[int], question: str) -> Prompt:
        parts = [Part(f"{self._documents[n]}\n\n", cache=True) for n in order]
        raw = self.model.tokenizer.template is None
        system = None if raw else SYSTEM
        return self.model.tokenizer.encode_parts([*parts, Part(question)], system, raw=raw)

    def after(self, order: Sequence[int], question: str) -> TokenIds:
        """The ids after the documents."""
        prompt = self.prompt(order, question)
        return prompt.ids[prompt.blocks[-1][1] :]

    def read(self, prompt: Prompt, read: Callable[..., int]) -> tuple[Cache, float]:
        """The cache after the documents, and the seconds to the first token of the answer."""
        settle()
        end = prompt.blocks[-1][1]
        cache = self.model.make_cache()
        started_s = time.perf_counter()
        read(self.model.network, cache, prompt.ids[:end], step_size=STEP)
        logits = self.model.network(mx.array(prompt.ids[end:])[None], cache=cache.fork())[0, -1]
        mx.eval(mx.argmax(logits))
        return cache, time.perf_counter() - started_s

    def nothing_read(self) -> Cache:
        prompt = self.prompt(range(DOCUMENTS), "")
        cache = self.model.make_cache()
        prefill(self.model.network, cache, prompt.ids[: prompt.head], step_size=STEP)
        return cache

    def logprobs(self, cache: Cache, ids: TokenIds) -> mx.array:
        return logprobs(self.model.network(mx.array(ids)[None], cache=cache.fork())[0])

    def answers(self, cache: Cache) -> float:
        """Mean log-probability of each fact's colour, after its question and the answer's start."""
        found: list[float] = []
        encode = self.model.tokenizer.encode
        for question, opening, colour in self.facts:
            begun = encode(opening)
            answer = encode(f"{opening} {colour}")[len(begun) :]
            ids = np.concatenate([self.after(range(DOCUMENTS), question), begun, answer])
            found.append(picked(self.logprobs(cache, ids)[-len(answer) - 1 : -1], answer))
        return statistics.fmean(found)


def planted(text: str, sentences: Sequence[str]) -> str:
    """The text with the sentences between its words, at equal distances."""
    words = text.split(" ")
    length = len(words)
    for n in range(len(sentences), 0, -1):
        words.insert(n * length // (len(sentences) + 1), sentences[n - 1])
    return " ".join(words)


if __name__ == "__main__":
    main()
