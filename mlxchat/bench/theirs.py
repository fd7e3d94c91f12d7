"""mlx-lm's own loops and caches, unmodified: the other side of every comparison.

Anything that imports transformers is imported on use: it takes seconds.
"""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import KVCache, make_prompt_cache

from mlxchat import platform
from mlxchat.bench.subject import Subject
from mlxchat.cache.powers import mlx_lms_own
from mlxchat.models.model import Model
from mlxchat.text.encoder import TokenIds

DEFAULT_STEP_SIZE = 2_048


def load_tokenizer(directory: Path) -> Any:
    """mlx-lm's tokenizer of the same model, without an end token."""
    # transformers' warnings about a model's files are irrelevant here.
    with warnings.catch_warnings(action="ignore"):
        wrapper = platform.import_from_mlx_lm("tokenizer_utils").load(directory)
    wrapper._eos_token_ids = set()
    return wrapper


def generate(
    model: Model, tokenizer: Any, ids: TokenIds, max_tokens: int, **options: Any
) -> Iterator[Any]:
    """mlx-lm's `stream_generate` with its own defaults; one response per token."""
    stream_generate = platform.import_from_mlx_lm("generate").stream_generate
    with mlx_lms_own():
        yield from stream_generate(model.network, tokenizer, mx.array(ids), max_tokens, **options)


def generate_batch(
    subject: Subject, prompts: Sequence[str], rows: int, max_tokens: int
) -> Iterator[int]:
    """The loop of mlx-lm's `batch_generate`, which itself returns nothing before the end: yields
    the number of tokens that each step gives to its `rows`. There is no end token."""
    model = subject.model
    with mlx_lms_own():
        generator = platform.import_from_mlx_lm("generate").BatchGenerator(
            model.network, stop_tokens=[], completion_batch_size=rows, prefill_batch_size=rows
        )
        ids = [model.tokenizer.prompt(prompt).ids.tolist() for prompt in prompts]
        generator.insert(ids, [max_tokens] * len(prompts))
        while responses := generator.next_generated():
            yield len(responses)
        generator.close()


def keeps_window(network: nn.Module, max_kv_size: int | None) -> bool:
    """Whether mlx-lm honours `max_kv_size` for this model: not if the model makes its own cache."""
    return max_kv_size is None or all(
        type(layer) is not KVCache for layer in make_prompt_cache(network, max_kv_size)
    )
