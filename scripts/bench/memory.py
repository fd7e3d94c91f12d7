"""Memory over a long generation at a fixed window: it should be a flat line.

python -m scripts.tiny_model tiny && python -m scripts.bench.memory -m tiny > memory.jsonl
python -m scripts.bench.plot memory.jsonl scripts/charts
"""

from scripts.bench.common import parser, show

# isort: split

import mlx.core as mx
import psutil

from mlxchat.bench.compare import settle
from mlxchat.engine.generate import generate
from mlxchat.engine.reply import Reply
from mlxchat.models.load import load
from mlxchat.settings import GenerationSettings

PROMPT = "What do you think of bread, and why would anybody at sea care about onions?"
SAMPLES = 20


def main() -> None:
    options = parser(__doc__).parse_args()
    tokens, window = (400, 64) if options.quick else (20_000, 512)
    model = load(options.model, offline=True)
    ids = model.tokenizer.encode(PROMPT)[:16]
    settings = GenerationSettings(max_tokens=tokens, ignore_eos=True)
    tokens_written = generate(Reply(model, ids, model.make_cache(window), settings=settings))
    settle()
    for count, _ in enumerate(tokens_written, start=1):
        if count % (tokens // SAMPLES) == 0 and count <= tokens:
            show(
                bench="memory",
                tokens=count,
                active_bytes=mx.get_active_memory(),
                cache_bytes=mx.get_cache_memory(),
                # On a GPU, the resident size misses most buffers.
                process_bytes=max(psutil.Process().memory_info().rss, mx.get_active_memory()),
            )


if __name__ == "__main__":
    main()
