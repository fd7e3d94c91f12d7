"""Measures drafts on greedy replies that repeat much or little of what was read, against mlx-lm.

    python -m scripts.bench.workloads [edit] [prose] [chat]

A prompt may include the beginning of the reply, so that even a small model does what is asked. It
ends between two words, because a token may span the end of a line and the beginning of the next.
"""

import copy
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice, takewhile
from typing import Any

from scripts.bench.common import parser, show

# isort: split

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_lm.models.cache import make_prompt_cache

from mlxchat.bench import theirs
from mlxchat.bench.compare import Side, Spread, interleave, ratios
from mlxchat.bench.subject import THEIRS
from mlxchat.cache.layers import Cache
from mlxchat.cache.powers import mlx_lms_own
from mlxchat.engine.drafts import Drafter, make_drafter
from mlxchat.engine.generate import generate
from mlxchat.engine.prefill import prefill
from mlxchat.engine.reply import Reply
from mlxchat.models.load import load
from mlxchat.models.model import Model
from mlxchat.models.resolve import resolve_model
from mlxchat.settings import DEFAULT_PREFILL_STEP_SIZE, GenerationSettings
from mlxchat.text.encoder import TokenIds
from mlxchat.text.tokens import ChatMessage

OURS = "mlxchat"
WARM_UP_TOKENS = 8
# A reply that ends sooner continues after its end.
MIN_TOKENS = 16

# The functions of the file to edit are named after its longer words.
DOCUMENT = (
    "The lighthouse at Skerry Point was finished in 1871, three years late and at twice its price.",
    "Its builder, a quiet man from Bergen, had never seen the Atlantic before.",
    "He measured the rock in summer, when it was dry for six hours a day, and ordered granite "
    "for a tower of forty metres.",
    "In October the first storm carried off his crane, his boat and most of his drawings.",
    "The second attempt began with iron.",
    "Long bolts were sunk into the rock and filled with lead, and the lowest courses were cut "
    "so that every stone locked into its neighbours.",
    "Forty masons lived on an old coal barge, ate salted herring and played cards for buttons.",
    "A cook named Magnus kept a diary, which is the only reason that we know what the work was "
    "like.",
    "Magnus wrote about weather, soup and rumours.",
)
REQUEST = "Rename lighthouse to beacon. Reply with the whole file."
STORY = ("Write a story about a lighthouse keeper who finds a letter in a bottle.",)
CHAT = (
    "Hi! I would like to bake bread for the first time. What do I need?",
    "You need flour, water, salt and yeast, a large bowl and an oven. A kitchen scale helps, "
    "because bread forgives wrong times more easily than wrong amounts.",
    "How long does the dough have to rest?",
    "About two hours in a warm room, or overnight in the fridge. It is ready when it has "
    "doubled in size.",
    "Why does it rise at all?",
)


@dataclass(frozen=True, slots=True)
class Workload:
    """Messages in turn, the first and the last by the user, and how the reply begins."""

    messages: tuple[str, ...]
    reply: str = ""


@dataclass(frozen=True, slots=True)
class Decoded:
    tokens_per_s: float
    ids: list[int]
    drafted: int = 0
    accepted: int = 0


def main() -> None:
    options_of = parser(__doc__)
    options_of.add_argument("names", nargs="*", metavar="edit|prose|chat")
    options = options_of.parse_args()
    model = load(options.model, offline=True)
    found = resolve_model(options.model, offline=True, ask=None, notify=print, show_progress=False)
    tokenizer = theirs.load_tokenizer(found.directory)
    workloads = {
        "edit": edit(40 if options.quick else 200),
        "prose": Workload(STORY),
        "chat": Workload(CHAT),
    }
    for name in options.names or workloads:
        for row in measured(model, workloads[name], tokenizer, quick=options.quick):
            show(bench="workloads", workload=name, **row)


def edit(lines: int) -> Workload:
    """Rename a function in a file of short functions, whose numbers show a small model where it
    is."""
    words = re.findall(r"\b[a-z]{5,}", " ".join(DOCUMENT))
    functions = (
        (f"def {word}():\n", f"    return {number}\n", "\n", "\n")
        for number, word in enumerate(dict.fromkeys(words), 1)
    )
    file = list(islice((line for function in functions for line in function), lines))
    begun = "".join(file[: lines * 3 // 10]).replace("lighthouse", "beacon").rstrip()
    return Workload((f"{REQUEST}\n\n```python\n{''.join(file)}```",), f"```python\n{begun}")


def measured(
    model: Model, workload: Workload, tokenizer: Any, *, quick: bool
) -> Iterator[dict[str, Any]]:
    """The figures of both sides, which decode the same number of tokens after the same prompt."""
    max_tokens, rounds = (MIN_TOKENS, 1) if quick else (256, 5)
    ids = prompt_ids(model, workload)
    cache = model.make_cache()
    prefill(model.network, cache, ids[:-1], step_size=DEFAULT_PREFILL_STEP_SIZE)
    ours = partial(decode, model, ids, cache)
    written = ours(max_tokens).ids
    ended = sum(1 for _ in takewhile(lambda id_: id_ not in model.tokenizer.eos_ids, written))
    expected = written[: max(ended, MIN_TOKENS)]

    def drafting() -> Decoded:
        return ours(len(expected), make_drafter(model, GenerationSettings()))

    other = partial(decode_theirs, model, ids, tokenizer, prefilled_cache(model.network, ids[:-1]))
    sides = {
        OURS: Side(OURS, drafting, drafting),
        THEIRS: Side(THEIRS, lambda: other(len(expected)), lambda: other(WARM_UP_TOKENS)),
    }
    *_, runs = interleave(sides, rounds, lambda done, total, side: None)
    speeds = {side: [run.tokens_per_s for run in each] for side, each in runs.items()}
    ratio = ratios(speeds[OURS], speeds[THEIRS])
    assert ratio is not None
    for side, each in runs.items():
        # The first tokens are those of mlxchat without drafts, unless rounding has changed one.
        pairs = zip(each[-1].ids, expected, strict=True)
        yield {
            "side": side,
            "prompt_tokens": len(ids),
            "tokens": len(expected),
            "tokens_per_s": asdict(Spread.of(speeds[side])),
            "speed_ratio": asdict(ratio) if side == OURS else None,
            "drafted_tokens": each[-1].drafted,
            "accepted_tokens": each[-1].accepted,
            "same_tokens": sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)),
        }


def prompt_ids(model: Model, workload: Workload) -> TokenIds:
    """The prompt, and the reply's beginning."""
    tokenizer = model.tokenizer
    if tokenizer.template is None:
        return tokenizer.raw_prompt("\n\n".join([*workload.messages, workload.reply])).ids
    roles = ("user", "assistant")
    messages = [ChatMessage(roles[n % 2], text) for n, text in enumerate(workload.messages)]
    begun = tokenizer.encode(workload.reply, begins=False)
    return np.concatenate([tokenizer.chat(messages).ids, begun])


def decode(
    model: Model, ids: TokenIds, cache: Cache, tokens: int, drafter: Drafter | None = None
) -> Decoded:
    """`tokens` tokens after `ids`, of which `cache` holds all but the last; it does not change."""
    if drafter is not None:
        drafter.history.extend(ids[:-1])
    reply = Reply(
        model,
        ids,
        cache.fork(),
        settings=GenerationSettings(max_tokens=tokens, ignore_eos=True),
        cached_tokens=len(ids) - 1,
        drafter=drafter,
    )
    speed, written = timed(token.id for token in generate(reply) if token.id is not None)
    if drafter is None:
        return Decoded(speed, written)
    return Decoded(speed, written, drafter.drafted, drafter.accepted)


def prefilled_cache(network: nn.Module, ids: TokenIds) -> list[Any]:
    """mlx-lm's plain cache with the tokens `ids: (T,)`."""
    cache = make_prompt_cache(network)
    with mlx_lms_own():
        for start in range(0, len(ids), theirs.DEFAULT_STEP_SIZE):
            step = ids[start : start + theirs.DEFAULT_STEP_SIZE]
            network(mx.array(step)[None], cache=cache)
            mx.eval([layer.state for layer in cache])
    return cache


def decode_theirs(
    model: Model, ids: TokenIds, tokenizer: Any, cache: list[Any], tokens: int
) -> Decoded:
    """The same with mlx-lm's loop and cache."""
    own = copy.deepcopy(cache)
    responses = theirs.generate(model, tokenizer, ids[-1:], tokens, prompt_cache=own)
    return Decoded(*timed(each.token for each in responses))


def timed(tokens: Iterable[int]) -> tuple[float, list[int]]:
    """Tokens per second from the first token to the last, and the tokens."""
    ids: list[int] = []
    begun_s = ended_s = 0.0
    for id_ in tokens:
        ids.append(id_)
        ended_s = time.perf_counter()
        begun_s = begun_s or ended_s
    return (len(ids) - 1) / (ended_s - begun_s), ids


if __name__ == "__main__":
    main()
