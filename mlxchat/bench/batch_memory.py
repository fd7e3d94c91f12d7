"""Memory of rows side by side: of long rows in a window, and over many short rows. On a tiny
network, because only the bookkeeping counts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import mlx.core as mx

from mlxchat import platform
from mlxchat.bench.paired import settle
from mlxchat.bench.report import Figures
from mlxchat.bench.scheduler import run_rows
from mlxchat.bench.subject import Subject
from mlxchat.bench.tiny import tiny_config, with_tiny_network
from mlxchat.cache import kv_bytes_per_token
from mlxchat.models.model import Model

ROWS = 8
MANY_ROWS = 32
PROMPT_CHARS = 8
TOKENS = 4
SAMPLES = 10
TITLES = {
    "window": "Keys and values of rows in a window on a tiny network, at most",
    "sample": f"Memory after many short rows, {MANY_ROWS} side by side, on a tiny network",
}


@dataclass(frozen=True, slots=True)
class Amounts:
    """`lengths` of rows in tokens, at a window of `window`; the number of `short` rows."""

    window: int
    lengths: tuple[int, ...]
    short: int


def measure(subject: Subject, amounts: Amounts) -> Iterator[Sequence[Figures]]:
    found: list[Figures] = []
    for figures in chain(_in_a_window(subject, amounts), _over_many_rows(subject, amounts.short)):
        found.append(figures)
        yield found


def _in_a_window(subject: Subject, amounts: Amounts) -> Iterator[Figures]:
    prompts = [f"{row}" for row in range(ROWS)]
    model = _tiny_model(subject, prompts)
    token_bytes = kv_bytes_per_token(model.network, model.dtype)
    for n, tokens in enumerate(amounts.lengths):
        subject.tick(n, len(amounts.lengths), f"rows of {tokens:,} tokens")
        most = 0

        def on_tokens(new: int, cache_bytes: int) -> None:
            nonlocal most
            most = max(most, cache_bytes)

        results = run_rows(
            model,
            prompts,
            tokens,
            ROWS,
            window=amounts.window,
            raw=True,
            on_tokens=on_tokens,
            notify=subject.notify_once,
        )
        for _ in results:
            pass
        yield Figures(
            "window",
            {
                "rows": ROWS,
                "max_kv_size": amounts.window,
                "generated_tokens": tokens,
                "cache_bytes": most,
                "bound_bytes": ROWS * amounts.window * token_bytes,
            },
        )


def _over_many_rows(subject: Subject, rows: int) -> Iterator[Figures]:
    prompts = [f"{row:0{PROMPT_CHARS}}" for row in range(rows)]
    model = _tiny_model(subject, prompts)
    settle()
    every = max(rows // SAMPLES, 1)
    results = run_rows(model, prompts, TOKENS, MANY_ROWS, raw=True, notify=subject.notify_once)
    for finished, _ in enumerate(results, start=1):
        if finished % every == 0:
            yield Figures(
                "sample",
                {
                    "finished": finished,
                    "active_bytes": mx.get_active_memory(),
                    "cache_bytes": mx.get_cache_memory(),
                    "process_bytes": platform.process_memory_bytes(),
                },
            )
            subject.tick(finished, rows, "short rows")


def _tiny_model(subject: Subject, prompts: Sequence[str]) -> Model:
    """A tiny network that knows the tokens of these prompts."""
    encode = subject.model.tokenizer.encode
    largest = max(int(encode(prompt).max()) for prompt in prompts)
    return with_tiny_network(subject.model, tiny_config(vocabulary=max(largest + 1, 288)))
