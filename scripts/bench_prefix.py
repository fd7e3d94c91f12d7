"""Measure what the prefix cache saves, and what it costs on the disk.

    python -m scripts.bench_prefix question TEXT [-m MODEL] [--tokens 4000]
    python -m scripts.bench_prefix trie [--prompts 1000]

TEXT is a file of real text, for example `bible -f gen1:1-deut34:12 > kjv.txt` with Debian's
package bible-kjv.

question  time to the first token of a first and a second question about the same document
trie      prompts that share beginnings, on a tiny model: bytes stored, and stored apart; time to
          look a prompt up against the number of prompts
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import mlxchat  # noqa: F401  first, so that OpenBLAS and mlx-lm's modules are prepared

# isort: split

import numpy as np

from mlxchat.cache import make_cache
from mlxchat.generate import Generation, prefill
from mlxchat.ledger import TokenIds
from mlxchat.models.load import Model, load
from mlxchat.settings import GenerationSettings
from mlxchat.store.prefix_cache import PAGE, PrefixCache
from mlxchat.store.prefix_index import page_keys
from scripts.tiny_model import tiny_config, write_tiny_model

LIMIT_BYTES = 1 << 40
STEP = 512
QUESTIONS = ("Who is spoken of first?", "What was made on the third day?", "Who was afraid?")
SHARED_TOKENS, OWN_TOKENS = 2_048, 512


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["question", "trie"])
    parser.add_argument("text", type=Path, nargs="?")
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=4_000)
    parser.add_argument("--prompts", type=int, default=1_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if options.what == "question":
            question(load(options.model, offline=True), options, Path(directory))
        else:
            trie(options.prompts, Path(directory))


def question(model: Model, options: Any, directory: Path) -> None:
    text = options.text.read_text()
    document = model.tokenizer.decode(model.tokenizer.encode(text)[: options.tokens].tolist())
    prompts = [model.tokenizer.prompt(f"{document}\n\n{each}").ids for each in QUESTIONS]
    ask(model, None, prompts[0][:600])
    prefixes = PrefixCache(directory, model, LIMIT_BYTES)
    print("question  prompt tokens  known  first token, s  without the cache, s  ratio")
    for number, ids in enumerate(prompts, start=1):
        plain_s, _ = ask(model, None, ids)
        known_s, known = ask(model, prefixes, ids)
        print(
            f"{number:8}  {len(ids):13,}  {known:5,}  {known_s:14.3f}  {plain_s:20.2f}  "
            f"{known_s / plain_s:5.3f}",
            flush=True,
        )
    prefixes.close()
    stored = sum(each.stat().st_size for each in directory.rglob("*.safetensors"))
    tokens = len(list(directory.rglob("*.safetensors"))) * PAGE
    print(f"{stored / tokens:,.0f} bytes a token on the disk, {tokens:,} tokens")
    load_s = time_to_fill(model, directory, prompts[0])
    print(f"read back at {tokens / load_s:,.0f} tokens a second")


def ask(model: Model, prefixes: PrefixCache | None, ids: TokenIds) -> tuple[float, int]:
    """Seconds to the first token, and how many of the prompt's were known."""
    cache = make_cache(model.network, None)
    started_s = time.perf_counter()
    cached = 0 if prefixes is None else prefixes.fill(cache, ids, None)
    how: dict[str, Any] = {"settings": GenerationSettings(max_tokens=1), "prefill_step_size": STEP}
    if prefixes is not None:
        how["on_held"] = prefixes.recorder(cache, ids, cached, None)
    next(iter(Generation(model, ids, cache, cached_tokens=cached, **how)))
    return time.perf_counter() - started_s, cached


def time_to_fill(model: Model, directory: Path, ids: TokenIds) -> float:
    prefixes = PrefixCache(directory, model, LIMIT_BYTES)
    seconds: list[float] = []
    for _ in range(3):
        cache = make_cache(model.network, None)
        started_s = time.perf_counter()
        prefixes.fill(cache, ids, None)
        seconds.append(time.perf_counter() - started_s)
    prefixes.close()
    return statistics.median(seconds)


def trie(prompts: int, directory: Path) -> None:
    """Ten beginnings of 2,048 tokens, a tenth of the prompts to each, and 512 of their own."""
    config = tiny_config(layers=1)
    path = write_tiny_model(directory / "model", config=config)
    model = load(str(path), offline=True)
    random = np.random.default_rng(0)
    beginnings = random.integers(0, 256, (10, SHARED_TOKENS)).astype(np.int32)
    store = directory / "prefixes"
    prefixes = PrefixCache(store, model, LIMIT_BYTES)
    apart = 0
    print("prompts  pages  MB stored  MB stored apart  look-up, ms")
    for number in range(1, prompts + 1):
        own = random.integers(0, 256, OWN_TOKENS).astype(np.int32)
        ids = np.concatenate([beginnings[number % 10], own, own[:1]])
        cache = make_cache(model.network, None)
        cached = prefixes.fill(cache, ids, None)
        record = prefixes.recorder(cache, ids, cached, None)
        prefill(model.network, cache, ids[cached:-1], step_size=STEP, on_held=record)
        apart += (SHARED_TOKENS + OWN_TOKENS) // PAGE
        if number in (10, 100, prompts):
            prefixes.close()
            report(store, model, ids, number, apart)
            prefixes = PrefixCache(store, model, LIMIT_BYTES)
    prefixes.close()


def report(store: Path, model: Model, ids: TokenIds, number: int, apart: int) -> None:
    sizes = [each.stat().st_size for each in store.rglob("*.safetensors")]
    prefixes = PrefixCache(store, model, LIMIT_BYTES)
    taken: list[float] = []
    for _ in range(20):
        started_s = time.perf_counter()
        prefixes.index.chain(page_keys(prefixes._print, ids, PAGE))
        taken.append(time.perf_counter() - started_s)
    prefixes.close()
    page_bytes = statistics.mean(sizes)
    print(
        f"{number:7,}  {len(sizes):5,}  {sum(sizes) / 1e6:9.1f}  {apart * page_bytes / 1e6:15.1f}  "
        f"{statistics.median(taken) * 1e3:11.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
