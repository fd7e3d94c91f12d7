"""Replies that repeat more or less of what was read, with drafts and, in turn, without: by mlx-lm,
or by mlxchat with lookup off.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np

from mlxchat.bench import theirs
from mlxchat.bench.paired import Side, Spread, interleave, ratios
from mlxchat.bench.report import Figures, one_after_another
from mlxchat.bench.subject import Subject
from mlxchat.bench.workload_texts import Workload, WorkloadName, workloads
from mlxchat.cache import Cache
from mlxchat.engine.drafts import Drafter, make_drafter
from mlxchat.engine.generate import Generation
from mlxchat.engine.prefill import prefill
from mlxchat.models.model import Model
from mlxchat.settings import DEFAULT_PREFILL_STEP_SIZE, GenerationSettings
from mlxchat.text.spans import TokenIds
from mlxchat.text.tokens import ChatMessage

OURS, THEIRS, PLAIN = "mlxchat", theirs.NAME, "no lookup"
WARM_UP_TOKENS = 8

# A reply that ends sooner continues after its end.
MIN_TOKENS = 16
TITLES = {
    "workload": "Greedy replies with drafts; same tokens: those before rounding changed one, "
    "compared with mlxchat's text without drafts"
}


@dataclass(frozen=True, slots=True)
class _Timed:
    tokens_per_s: float
    ids: Sequence[int]
    drafted: int = 0
    accepted: int = 0


def measure(subject: Subject, tokenizer: Any) -> Iterator[Sequence[Figures]]:
    """The subject's workloads, or all. `tokenizer` is mlx-lm's; None compares with lookup off."""
    chosen = set(subject.workloads or WorkloadName)
    return one_after_another(
        _measure(subject, workload, tokenizer)
        for workload in workloads(quick=subject.quick)
        if {workload.name, WorkloadName.ALL} & chosen
    )


def _measure(subject: Subject, workload: Workload, tokenizer: Any) -> Iterator[Sequence[Figures]]:
    max_tokens, rounds = (MIN_TOKENS, 1) if subject.quick else (256, 5)
    model, ids = subject.model, prompt_ids(subject.model, workload)
    if model.positions is not None and len(ids) + max_tokens > model.positions:
        subject.notify(f"{workload.name} needs more than the model's {model.positions:,} positions")
        return
    subject.tick(0, 1, f"{workload.name}: reading")
    reply = Expected.reply(model, workload.name, ids, max_tokens)

    def drafting() -> _Timed:
        return reply.decode(make_drafter(model, GenerationSettings()))

    other, name = _other(reply, tokenizer), PLAIN if tokenizer is None else THEIRS
    sides = {
        OURS: Side(f"{workload.name}: {OURS}", drafting, drafting),
        name: Side(
            f"{workload.name}: {name}",
            lambda: other(len(reply.tokens)),
            lambda: other(WARM_UP_TOKENS),
        ),
    }
    for runs in interleave(sides, rounds, subject.tick):
        speeds = {side: [run.tokens_per_s for run in each] for side, each in runs.items()}
        ratio = ratios(speeds[OURS], speeds.get(name, []))
        yield [reply.figures(side, runs[side], ratio if side == OURS else None) for side in runs]


@dataclass(frozen=True, slots=True)
class Expected:
    """A prompt in a cache, all but its last token, and the reply without drafts."""

    model: Model
    workload: str
    ids: TokenIds
    cache: Cache
    tokens: Sequence[int] = ()

    @classmethod
    def reply(cls, model: Model, workload: str, ids: TokenIds, max_tokens: int) -> "Expected":
        cache = model.make_cache()
        prefill(model.network, cache, ids[:-1], step_size=DEFAULT_PREFILL_STEP_SIZE)
        reply = cls(model, workload, ids, cache)
        written = reply.decode(None, max_tokens).ids
        eos_ids = model.tokenizer.eos_ids
        ended = sum(1 for _ in takewhile(lambda id_: id_ not in eos_ids, written))
        return replace(reply, tokens=written[: max(ended, MIN_TOKENS)])

    def decode(self, drafter: Drafter | None, max_tokens: int | None = None) -> _Timed:
        if drafter is not None:
            drafter.history.extend(self.ids[:-1])
        settings = GenerationSettings(max_tokens=max_tokens or len(self.tokens), ignore_eos=True)
        generation = Generation(
            self.model,
            self.ids,
            self.cache.fork(),
            settings=settings,
            cached_tokens=len(self.ids) - 1,
            drafter=drafter,
        )
        run = _timed(token.id for token in generation if token.id is not None)
        if drafter is None:
            return run
        return replace(run, drafted=drafter.drafted, accepted=drafter.accepted)

    def figures(self, side: str, runs: Sequence[_Timed], ratio: Spread | None) -> Figures:
        pairs = zip(runs[-1].ids, self.tokens, strict=True)
        # The first tokens are those of mlxchat without drafts, unless rounding has changed one.
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return Figures(
            "workload",
            {
                "workload": self.workload,
                "side": side,
                "prompt_tokens": len(self.ids),
                "tokens": len(self.tokens),
                "tokens_per_s": Spread.of([run.tokens_per_s for run in runs]),
                "speed_ratio": ratio,
                "drafted_tokens": runs[-1].drafted,
                "accepted_tokens": runs[-1].accepted,
                "same_tokens": same,
            },
        )


def prompt_ids(model: Model, workload: Workload) -> TokenIds:
    """The prompt, and the reply's beginning."""
    tokenizer = model.tokenizer
    if tokenizer.template is None:
        return tokenizer.raw_prompt("\n\n".join([*workload.messages, workload.reply])).ids
    roles = ("user", "assistant")
    messages = [ChatMessage(roles[n % 2], text) for n, text in enumerate(workload.messages)]
    begun = tokenizer.encode(workload.reply, begins=False)
    return np.concatenate([tokenizer.chat(messages).ids, begun])


def _other(reply: Expected, tokenizer: Any) -> Callable[[int], _Timed]:
    """Decodes the number of tokens it is given, without drafts."""
    if tokenizer is None:
        return lambda tokens: reply.decode(None, tokens)
    model, ids = reply.model, reply.ids
    cache = theirs.prefilled_cache(model.network, ids[:-1])
    return lambda tokens: _timed(theirs.resume(model, tokenizer, ids[-1:], cache, tokens))


def _timed(tokens: Iterable[int]) -> _Timed:
    """Wall-clock time from the first token to the last."""
    ids: list[int] = []
    begun_s = ended_s = 0.0
    for id_ in tokens:
        ids.append(id_)
        ended_s = time.perf_counter()
        begun_s = begun_s or ended_s
    return _Timed((len(ids) - 1) / (ended_s - begun_s), ids)
