"""What the prefix cache saves, the wait for an answer about a document read before, and what it
costs: disk space.

    python -m scripts.bench.prefix kjv.txt
"""

import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

from scripts.bench.common import parser, show

# isort: split

from mlxchat.bench.compare import settle
from mlxchat.engine.generate import generate
from mlxchat.engine.reply import Reply
from mlxchat.models.load import load
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings
from mlxchat.store.prefix_cache import PAGE, PrefixCache
from mlxchat.text.encoder import TokenIds

LIMIT_BYTES = 1 << 33
STEP = 512
QUESTIONS = ("Who is spoken of first?", "What was made on the third day?", "Who was afraid?")
READS = 3


def main() -> None:
    options_of = parser(__doc__)
    options_of.add_argument("text", type=Path)
    options = options_of.parse_args()
    model = load(options.model, offline=True)
    with tempfile.TemporaryDirectory() as scratch:
        length = 600 if options.quick else 4_000
        ask(model, options.text.read_text(), length, Path(scratch) / "questions")


def ask(model: Model, text: str, length: int, directory: Path) -> None:
    """Three questions about a document of `length` tokens."""
    document = model.tokenizer.decode(model.tokenizer.encode(text)[:length].tolist())
    prompts = [model.tokenizer.prompt(f"{document}\n\n{each}").ids for each in QUESTIONS]
    first_token(model, None, prompts[0][:64])
    with closing(PrefixCache(directory, model, LIMIT_BYTES)) as prefixes:
        for n, ids in enumerate(prompts, 1):
            plain_s, _ = first_token(model, None, ids)
            known_s, known = first_token(model, prefixes, ids)
            show(
                bench="prefix",
                question=n,
                prompt_tokens=len(ids),
                known_tokens=known,
                plain_ttft_s=plain_s,
                known_ttft_s=known_s,
                ratio=known_s / plain_s,
            )
    sizes = [page.stat().st_size for page in directory.rglob("*.safetensors")]
    rates = []
    with closing(PrefixCache(directory, model, LIMIT_BYTES)) as prefixes:
        for _ in range(READS):
            cache = model.make_cache()
            started_s = time.perf_counter()
            known = prefixes.fill(cache, prompts[-1], None)
            rates.append(known / (time.perf_counter() - started_s))
    bytes_per_token = sum(sizes) / max(len(sizes) * PAGE, 1)
    rate = statistics.median(rates)
    show(bench="prefix", bytes_per_token=bytes_per_token, read_back_tokens_per_s=rate)


def first_token(model: Model, prefixes: PrefixCache | None, ids: TokenIds) -> tuple[float, int]:
    """Seconds to the first token, and how many of the prompt's tokens were cached."""
    settle()
    cache = model.make_cache()
    started_s = time.perf_counter()
    cached = 0 if prefixes is None else prefixes.fill(cache, ids, None)
    reply = Reply(
        model,
        ids,
        cache,
        cached_tokens=cached,
        settings=GenerationSettings(max_tokens=1),
    )
    on_held = None if prefixes is None else prefixes.recorder(cache, ids, cached, None)
    next(generate(reply, step_size=STEP, on_held=on_held))
    return time.perf_counter() - started_s, cached


if __name__ == "__main__":
    main()
