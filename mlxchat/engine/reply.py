"""A reply while it is generated: its tokens as text, what ends or stops it, and what it cost.

Computes nothing: `generate` continues a reply, and rows of a batch feed theirs side by side.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import mlx.core as mx
import numpy as np

from mlxchat.cache.layers import Cache, tokens_evicted, tokens_held
from mlxchat.engine.budget import Budget
from mlxchat.engine.constrained import Constrained
from mlxchat.engine.drafts import Drafter
from mlxchat.engine.sampling import Chooser, Token
from mlxchat.errors import CacheError, UsageError
from mlxchat.models.model import Model
from mlxchat.settings import GenerationSettings, SamplingSettings, random_seed
from mlxchat.text.encoder import TokenIds
from mlxchat.text.reply_reader import Piece, Reader, State, StopTexts

# Why a reply has ended: the model's end, a stop text, the limit, its constraint, or an `End`.
FinishReason = Literal["stop", "stop_text", "length", "error", "interrupted", "time", "loop"]


@dataclass(frozen=True, slots=True)
class Stats:
    """The cost of a reply. Times exclude loading the model.

    `prefilled_tokens` are the prompt tokens computed: not cached ones, nor those left unread if the
    generation was stopped. Rates and times of stages that did not run are 0. `complete` is whether
    the answer is one that the constraint describes, None without one, False if the input was not
    read; `problem` is why an answer that was not cut off is not. The model wrote `thought_tokens`
    of the generated ones in thoughts, and `thought_cut` is whether the budget closed one.
    """

    finish_reason: FinishReason
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefilled_tokens: int = 0
    generated_tokens: int = 0
    thought_tokens: int = 0
    thought_cut: bool = False
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    evicted_tokens: int = 0
    ttft_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0
    kv_tokens: int = 0
    kv_bytes: int = 0
    peak_memory_bytes: int = 0
    complete: bool | None = None
    problem: str | None = None


def nothing_done(cache: Cache) -> Stats:
    """The stats of a generation that was stopped before it began."""
    return Stats(
        "interrupted",
        evicted_tokens=tokens_evicted(cache),
        kv_tokens=tokens_held(cache),
        kv_bytes=sum(layer.nbytes for layer in cache),
        peak_memory_bytes=mx.get_peak_memory(),
    )


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A state between two tokens from which to resume. The cache is separate.

    `latest` are the last ids, as many as the next step looks at; all but the very last are in the
    cache. `reading` is the state of the reply's reader; `held` may begin a stop text. `in_thought`
    is whether the latest text is a thought, `thought_cut` whether the budget has closed one, and
    `closing` are the tokens with which it still has to.
    """

    latest: tuple[int, ...]
    generated: int
    reading: State
    held: str
    in_thought: bool
    thought_cut: bool = False
    closing: tuple[int, ...] = ()


class Reply:
    """What follows `ids: (T,)`, of which the first `cached_tokens` are in `cache` already; a row of
    a batch has no cache of its own. `generated` of its tokens were generated before.

    `reader` separates thoughts from the answer; without it there are no thoughts. `constrained`
    rules out tokens. A `drafter` speeds up text that repeats its history.

    `finish_reason` is None until it has ended. `complete` and `problem` are those of `Stats`.

    A model that runs out of positions (GPT-2) ends with "length"; raises CacheError if the prompt
    alone is too long, UsageError if the settings cannot delay the end of replies in this format.
    """

    def __init__(
        self,
        model: Model,
        ids: TokenIds,
        cache: Cache | None = None,
        *,
        sampling: SamplingSettings | None = None,
        settings: GenerationSettings | None = None,
        cached_tokens: int = 0,
        reader: Reader | None = None,
        constrained: Constrained | None = None,
        drafter: Drafter | None = None,
        generated: int = 0,
    ) -> None:
        if not 0 <= cached_tokens < len(ids):
            raise UsageError(f"the prompt has {len(ids)} tokens, and {cached_tokens} are cached")
        self.model = model
        self.cache = Cache() if cache is None else cache
        self.settings = settings or GenerationSettings()
        self.drafter = drafter
        self.generated = generated
        # What the cache does not hold yet.
        self.rest = ids[cached_tokens:]
        most = self.settings.max_tokens
        self.max_tokens = _max_tokens(model, self.cache, len(self.rest), most, generated)
        self._eos_ids = () if self.settings.ignore_eos else model.tokenizer.eos_ids
        self._constrained = constrained
        self._reader = reader or model.tokenizer.reader()
        check_min_tokens(self.settings, self._reader)
        if constrained is not None:
            self._reader.keeps_newlines = True
        self._thought_tokens_before = self._reader.thought_tokens
        self._budget: Budget | None = None
        limit = self.settings.think_budget
        if limit >= 0 and (closings := model.tokenizer.closings) is not None:
            self._budget = Budget(limit, self._reader.fork(), closings, ids)
        sampling = sampling or SamplingSettings()
        if sampling.seed is None:
            sampling = replace(sampling, seed=random_seed())
        self.chooser = Chooser(
            ids,
            sampling,
            self.settings,
            eos_ids=self._eos_ids,
            constrained=constrained,
            budget=self._budget,
            index=generated,
            share=model.ranks.token,
        )
        self.finish_reason: FinishReason | None = None
        if 0 <= self.max_tokens <= generated:
            self.finish_reason = "length"
        self.complete = None if constrained is None else False
        self.problem: str | None = None
        self.resume_point: ResumePoint | None = None
        # Times, and how many tokens of the prompt were read, and of these, reused.
        self.began_s = self.first_token_s = self.ended_s = 0.0
        self.read_tokens = self.reused_tokens = 0
        self._before = generated
        self._drafted_before = (0, 0) if drafter is None else drafter.counts
        self._prompt_tokens, self._cached_tokens = len(ids), cached_tokens
        self._stop = StopTexts(self.settings.stop)
        # Whether the latest text is a thought.
        self._in_thought = False
        if drafter is not None:
            drafter.history.extend(self.rest)

    @classmethod
    def resume(
        cls, model: Model, point: ResumePoint, cache: Cache, *, prompt_tokens: int, **how: Any
    ) -> Self:
        """Continue from `point`, given the cache of that moment.

        The sampling in `how` needs the seed of before. `max_tokens` includes earlier tokens.
        """
        ids = np.array(point.latest, np.int32)
        how = {"reader": model.tokenizer.reader(), "generated": point.generated, **how}
        how["reader"].restore(point.reading)
        reply = cls(model, ids, cache, cached_tokens=len(ids) - 1, **how)
        reply._prompt_tokens = reply._cached_tokens = prompt_tokens
        reply._thought_tokens_before = 0
        if (budget := reply._budget) is not None:
            budget.forced, budget.is_cut = deque(point.closing), point.thought_cut
        reply._stop.held, reply._in_thought = point.held, point.in_thought
        return reply

    def move_to(self, cache: Cache, drafter: Drafter | None) -> None:
        """Continue alone after a row of a batch, whose tokens but the last are in `cache` now."""
        self.cache, self.drafter = cache, drafter
        self.rest = np.array([self.chooser.latest[-1]], np.int32)

    def here(self) -> ResumePoint:
        """The current point, between two tokens."""
        latest, reading, budget = tuple(self.chooser.latest), self._reader.state, self._budget
        closing = () if budget is None else tuple(budget.forced)
        rest = self._stop.held, self._in_thought, self.thought_cut, closing
        return ResumePoint(latest, self.generated, reading, *rest)

    @property
    def thought_tokens(self) -> int:
        """How many tokens of the reply the model wrote in thoughts."""
        return self._reader.thought_tokens - self._thought_tokens_before

    @property
    def thought_cut(self) -> bool:
        """Whether the budget has closed one."""
        return self._budget is not None and self._budget.is_cut

    def remaining(self, most: int) -> int:
        """How many tokens may follow, at most this number; -1 means no limit."""
        if self.max_tokens < 0:
            return most
        left = self.max_tokens - self.generated
        return left if most < 0 else min(left, most)

    def add(self, token: Token) -> list[Token]:
        """The text completed by one more token, in pieces; none if the token ends the reply."""
        assert token.id is not None
        reader = self._reader
        if token.id in self._eos_ids or reader.ends(token.id):
            self.finish_reason = "stop"
            return []
        self.generated += 1
        begun, thoughts = reader.is_thought, reader.thoughts
        is_ours = self._budget is not None and self._budget.was_forced
        pieces = self._shown(reader.add(token.id, counts=not is_ours), is_searched=not is_ours)
        if self.finish_reason is None:
            if self._constrained is not None and self._constrained.is_complete:
                self.finish_reason = "stop"
            elif self.generated == self.max_tokens:
                self.finish_reason = "length"
        (thought, text), *others = pieces or [(begun or reader.is_thought, "")]
        another = reader.thoughts > max(thoughts, 1)
        return [
            Token(token.id, text, token.logprob, token.top, thought, another),
            *(Token(None, text, thought=is_thought) for is_thought, text in others),
        ]

    def fail(self, reason: object) -> None:
        """End the reply: its constraint or settings do not let it continue."""
        stuck = "" if isinstance(reason, UsageError) else "the answer got stuck: "
        self.finish_reason, self.problem = "error", f"{stuck}{reason}"

    def finish(self) -> list[Token]:
        """The text that was held back, after the last token. It belongs to an ending, not to a
        continuation: `resume_point` is before it."""
        rest: list[Piece] = []
        if self.finish_reason != "stop_text":
            self.resume_point = self.here()
            rest = self._shown(self._reader.finish())
        if self.finish_reason != "stop_text":
            rest.append((self._in_thought, self._stop.finish()))
        constrained = self._constrained
        if constrained is not None and self.finish_reason not in ("stop_text", "error"):
            # What was cut off is not complete, and no problem.
            found = constrained.problem if constrained.may_end else None
            self.complete = constrained.may_end and found is None
            self.problem = None if found is None else f"the answer is not valid: {found}"
        return [Token(None, text, thought=is_thought) for is_thought, text in rest if text]

    @property
    def stats(self) -> Stats:
        """The cost so far, or up to the end."""
        ended_s = self.ended_s or time.perf_counter()
        began_text = bool(self.first_token_s)
        ttft_s = self.first_token_s - self.began_s if began_text else 0.0
        prefill_s = ttft_s if began_text else ended_s - self.began_s
        # The prompt's last token is computed together with the first generated one.
        last = began_text and self._cached_tokens < self._prompt_tokens
        prefilled_tokens = self.read_tokens + last - self.reused_tokens
        decode_s = ended_s - self.first_token_s if began_text else 0.0
        drafted, accepted = (0, 0) if self.drafter is None else self.drafter.counts
        return replace(
            nothing_done(self.cache),
            finish_reason=self.finish_reason or "interrupted",
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens + self.reused_tokens,
            prefilled_tokens=prefilled_tokens,
            generated_tokens=self.generated,
            thought_tokens=self.thought_tokens,
            thought_cut=self.thought_cut,
            drafted_tokens=drafted - self._drafted_before[0],
            accepted_tokens=accepted - self._drafted_before[1],
            ttft_s=ttft_s,
            prefill_tokens_per_s=_rate(prefilled_tokens, prefill_s),
            # The first token's time counts as prefill.
            decode_tokens_per_s=_rate(self.generated - self._before - 1, decode_s),
            complete=self.complete,
            problem=self.problem,
        )

    def _shown(self, pieces: Iterable[Piece], *, is_searched: bool = True) -> list[Piece]:
        """The pieces up to a stop text, which ends the reply and cannot span a thought and an
        answer. What closes a thought is not searched for one."""
        shown: list[Piece] = []
        for thought, text in pieces:
            if thought is not self._in_thought:
                shown.append((self._in_thought, self._stop.finish()))
                self._in_thought = thought
            found = self._stop.add(text) if is_searched else self._stop.finish() + text
            shown.append((thought, found))
            if self._stop.found:
                self.finish_reason = "stop_text"
                break
        return [piece for piece in shown if piece[1]]


def check_min_tokens(settings: GenerationSettings, reader: Reader) -> None:
    """Raise UsageError if the settings cannot delay the end of replies that `reader` reads."""
    if settings.min_tokens and reader.ends_by_marker:
        why = "the marker that ends a reply also ends its thoughts"
        raise UsageError(f"--min-tokens cannot be used with this model: {why}")


def _max_tokens(
    model: Model, cache: Cache, prompt_tokens: int, max_tokens: int, generated: int
) -> int:
    """`max_tokens`, limited to the positions that the model has left after what the cache holds and
    `prompt_tokens` more; `generated` of these count already."""
    positions = model.positions
    if positions is None:
        return max_tokens
    room = positions - tokens_held(cache) - prompt_tokens
    if room <= 0:
        has = f"the prompt is {prompt_tokens:,} tokens, and this model has {positions:,} positions"
        raise CacheError(f"{has}: shorten the prompt or use another model")
    limit = room + generated
    return limit if max_tokens < 0 else min(max_tokens, limit)


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if tokens > 0 and seconds > 0 else 0.0


# What stops a reply before its own end: functions that see every token, and None between two steps
# of the prompt, and return the reason, or None. They stop it between two tokens, so that it can be
# continued: the token after the one that they see is being computed already, and is the last.

End = Callable[[Token | None], FinishReason | None]

# The reasons of ends after which a run can be resumed.
RESUMABLE = ("interrupted", "time", "loop")


def first_reason(ends: Iterable[End], token: Token | None) -> FinishReason | None:
    """The first of the reasons to stop."""
    return next((reason for end in ends if (reason := end(token)) is not None), None)


def asked(should_stop: Callable[[], bool], reason: FinishReason = "interrupted") -> End:
    """The caller wants to stop, for example after Ctrl-C."""
    return lambda _: reason if should_stop() else None


def led(lead: Callable[[int], int], ends: Sequence[End]) -> End:
    """These ends of rank 0, which `lead`s all other machines."""

    def see(token: Token | None) -> FinishReason | None:
        reason = first_reason(ends, token)
        return (reason or "interrupted") if lead(reason is not None) else None

    return see


NGRAM = 8
LOOK_BACK = 2048
WINDOW = 512

# The ids that the share depends on: the window, and what its oldest token could repeat.
HISTORY = WINDOW + LOOK_BACK + NGRAM - 1

ENTER_SHARE = 0.8
LEAVE_SHARE = 0.5


class LoopDetector:
    """The text repeats itself: measures how much of the latest `WINDOW` tokens is repetition.

    A token is a repetition if the `NGRAM` tokens ending in it also occur at one of the `LOOK_BACK`
    positions before it. This detects loops with periods up to `LOOK_BACK`, and long passages that
    are repeated. Depends on the latest `HISTORY` tokens alone, never on time, so a resumed run
    decides like an uninterrupted one.
    """

    def __init__(self) -> None:
        # Whether this is a loop: from a share of `ENTER_SHARE` until one below `LEAVE_SHARE`.
        self.looping = False
        self._ngram: tuple[int, ...] = ()
        # The latest place of each of the latest n-grams, the oldest first.
        self._places: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self._place = 0
        self._repeats: deque[bool] = deque([False] * WINDOW)
        self._repeated = 0

    @property
    def share(self) -> float:
        """Share of the latest `WINDOW` tokens that is repetition, 0 to 1.

        Before `WINDOW` tokens, the missing ones count as new, so a short text is never a loop.
        """
        return self._repeated / WINDOW

    def __call__(self, token: Token | None) -> FinishReason | None:
        if token is not None and token.id is not None:
            self.add(token.id)
        return "loop" if self.looping else None

    def add(self, id_: int) -> None:
        """Add the next token of the sequence."""
        self._place += 1
        self._ngram = (*self._ngram, id_)[-NGRAM:]
        repeats = self._place - self._places.pop(self._ngram, -LOOK_BACK) <= LOOK_BACK
        if len(self._ngram) == NGRAM:
            self._places[self._ngram] = self._place
        if len(self._places) > LOOK_BACK:
            self._places.popitem(last=False)
        self._repeated += repeats - self._repeats.popleft()
        self._repeats.append(repeats)
        self.looping = self.share >= (LEAVE_SHARE if self.looping else ENTER_SHARE)
