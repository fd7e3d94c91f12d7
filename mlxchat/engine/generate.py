"""Generate: read the prompt, then decode, one token at a time or several that were drafted.

Prints, saves and shows nothing: that is for the caller's own loop. `decode` works on arrays, like
mlx-lm's `generate_step`; `generate` turns the tokens into text until the reply ends.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat.cache.layers import Cache, draft_refusal, recurrent_states
from mlxchat.cache.ring import DRAFT_SLOTS
from mlxchat.engine.drafts import Drafter
from mlxchat.engine.prefill import OnHeld, Pace, ShouldStop, prefill
from mlxchat.engine.reply import End, FinishReason, Reply, first_reason
from mlxchat.engine.sampling import Chooser, Drawn, Token
from mlxchat.errors import ConstraintError, device_failures
from mlxchat.platform import wired_limit
from mlxchat.settings import DEFAULT_PREFILL_STEP_SIZE
from mlxchat.text.encoder import TokenIds
from mlxchat.units import Progress

# MLX keeps freed buffers for reuse. Releasing them after this many tokens bounds the memory.
CLEAR_EVERY = 256


def generate(
    reply: Reply,
    *,
    tokens: int = -1,
    ends: Sequence[End] = (),
    step_size: int = DEFAULT_PREFILL_STEP_SIZE,
    pace: Pace | None = None,
    reader: Callable[..., int] | None = None,
    on_prefill: Progress | None = None,
    on_held: OnHeld | None = None,
) -> Iterator[Token]:
    """Yield the tokens of the reply up to its end, or at most `tokens` of them.

    The `ends` see each token after the caller has handled it, and also stop the reading of the
    prompt. If one of them has stopped the reply, or after `tokens`, the cache holds all tokens but
    the last, and nothing is being computed: the moment to save both, and to call this again.

    `reader`, if given, reads the prompt in place of `prefill`. `on_held` is called with all ids
    that the cache holds: those of each step of the prompt, and each generated one.
    """
    stopped: FinishReason | None = None

    def should_stop() -> bool:
        nonlocal stopped
        stopped = stopped or first_reason(ends, None)
        return stopped is not None

    ranks = reply.model.ranks

    def hold(step: TokenIds) -> None:
        ranks.done()
        if on_held is not None:
            on_held(step)

    if not reply.began_s:
        mx.reset_peak_memory()
        reply.began_s = time.perf_counter()
    with device_failures(), ranks.losses(), wired_limit():
        try:
            if len(reply.rest) > 1:
                # All but the last token, whose logits begin the decoding.
                done = (reader or prefill)(
                    reply.model.network,
                    reply.cache,
                    reply.rest[:-1],
                    step_size=step_size,
                    pace=pace,
                    on_progress=on_prefill,
                    on_held=hold,
                    should_stop=should_stop,
                )
                reply.read_tokens += done
                reply.reused_tokens = getattr(reader, "reused_tokens", 0)
                reply.rest = reply.rest[done:]
            if should_stop() and len(reply.rest) > 1:
                reply.finish_reason = stopped
                return
            decoded = decode(
                reply.model.network,
                reply.cache,
                reply.chooser,
                int(reply.rest[-1]),
                max_tokens=reply.remaining(tokens),
                should_stop=lambda: stopped is not None,
                on_held=on_held,
                drafter=reply.drafter,
            )
            for token in decoded if reply.finish_reason is None else ():
                ranks.done()
                reply.first_token_s = reply.first_token_s or time.perf_counter()
                yield from reply.add(token)
                if reply.finish_reason is not None:
                    break
                stopped = stopped or first_reason(ends, token)
            reply.rest = np.array([reply.chooser.latest[-1]], np.int32)
            reply.finish_reason = reply.finish_reason or stopped
        except ConstraintError as error:
            reply.fail(error)
        finally:
            reply.ended_s = time.perf_counter()
    if reply.finish_reason is not None:
        yield from reply.finish()


def after_reading(first: Iterable[Token], tokens: Iterable[Token]) -> Iterator[Token]:
    """The first ones with the others, before which progress may still be drawn."""
    begun = iter(first)
    for token in tokens:
        yield from begun
        yield token
    yield from begun


def decode(
    network: nn.Module,
    cache: Cache,
    chooser: Chooser,
    last: int,
    *,
    max_tokens: int = -1,
    should_stop: ShouldStop = lambda: False,
    on_held: OnHeld | None = None,
    drafter: Drafter | None = None,
) -> Iterator[Token]:
    """Yield the tokens that `chooser` chooses, without text, after `last`, not yet in the cache.

    The next token is computed while the caller handles the current one, so the cache already holds
    every token yielded except the very last: the last of `max_tokens`, or the last after
    `should_stop` returned True. The cache is then not ahead of the output, and another `decode`
    continues as if this one had not ended. `on_held` gets each id held, before it is yielded.

    With a `drafter`, several tokens are computed in one step if it pays and the cache can take them
    back. The text is the same, up to rounding. Tokens that are forced, by a constraint or to close
    a thought, are computed in one step as well; nothing follows a completed constraint.
    """
    drafter = None if draft_refusal(cache) else drafter
    steps = _Steps(network, cache, chooser, on_held, drafter)
    end = chooser.index + max_tokens
    if drafter is not None:
        drafter.begin()
    try:
        current = steps.after(last)
        while True:
            is_last = chooser.index + 1 == end or should_stop()
            following: Drawn | None = None
            if not is_last and not steps.must_wait:
                # Begun although the current token may not be known yet.
                following = steps.draw(steps.run(current.token), current.token)
            token = current.read()
            assert token.id is not None
            chooser.take(token.id)
            if drafter is not None:
                drafter.add(token.id, was_drafted=cache.is_drafting)
            if is_last or chooser.is_over:
                yield token
                return
            if following is not None:
                steps.hold(token.id)
                # The current token may have been the last of a thought.
                following = chooser.closing() or following
            else:
                try:
                    room = DRAFT_SLOTS if max_tokens < 0 else end - chooser.index - 1
                    following = steps.after(token.id, room)
                except ConstraintError:
                    yield token
                    raise
            yield token
            current = following
            if chooser.index % CLEAR_EVERY == 0:
                mx.clear_cache()
    finally:
        steps.settle()


@dataclass(slots=True)
class _Steps:
    """Runs the network for a token, or for it and drafted ones, and draws from its logits."""

    network: nn.Module
    cache: Cache
    chooser: Chooser
    on_held: OnHeld | None
    drafter: Drafter | None
    # A token and the draft after it, and the logits after each; the cache knows how many count.
    _rows: list[int] = field(default_factory=list[int])
    _logits: mx.array = field(default_factory=lambda: mx.zeros(0))
    _is_guess: bool = False
    # The next tokens, if there is only one way to continue.
    _forced: list[int] = field(default_factory=list[int])

    @property
    def must_wait(self) -> bool:
        """Whether the current token has to be known before the next step: it decides which tokens
        may follow, or which rows of a draft count, or a draft will probably follow it."""
        is_certain = self.chooser.constrained is not None or self.chooser.closing() is not None
        if is_certain or self.cache.is_drafting:
            return True
        return self.drafter is not None and self.drafter.is_promising

    def after(self, id_: int, room: int = 0) -> Drawn:
        """Begin drawing the token that follows `id_`, and at most `room` drafted ones."""
        cache = self.cache
        # If the caller has evicted tokens, the draft has ended.
        if cache.is_drafting and self._rows[cache.accepted : cache.accepted + 1] == [id_]:
            cache.accept()
            logits = self._logits[cache.accepted - 1 : cache.accepted]
        else:
            self.settle()
            logits = self._begin_rows(id_, room)
        self.hold(id_)
        if not self._forced:
            return self.draw(logits)
        mx.async_eval(logits)
        return self.chooser.certain(self._forced.pop(0))

    def run(self, tokens: mx.array) -> mx.array:
        """The logits `(1, V)` after the last of the `tokens: (S,)`."""
        return self.network(tokens[None], cache=self.cache)[:, -1, :]

    def draw(self, logits: mx.array, after: mx.array | None = None) -> Drawn:
        """Begin drawing the next token from logits `(1, V)`, or one `after` it, if not taken."""
        if self.chooser.constrained is not None:
            # Computed while the mask is.
            mx.async_eval(logits)
        drawn = self.chooser.draw(logits, after)
        mx.async_eval(drawn.token, *drawn.scores)
        return drawn

    def hold(self, id_: int) -> None:
        """The cache holds this token now."""
        if self.on_held is not None:
            self.on_held(np.array([id_], np.int32))

    def settle(self) -> None:
        """End the draft: the cache keeps the tokens accepted."""
        cache, rows, accepted = self.cache, self._rows, self.cache.accepted
        if rows and self._is_guess and self.drafter is not None:
            self.drafter.learn(len(rows) - 1, accepted - 1)
        if cache.is_drafting and accepted < len(rows) and recurrent_states(cache):
            # Recurrent states include all rows: compute the accepted ones again.
            cache.drop_draft()
            if accepted > 1:
                cache.begin_draft()
                cache.accept(accepted)
            self.run(mx.array(rows[:accepted]))
            mx.async_eval([layer.state for layer in cache])
        cache.settle()
        self._rows = []

    def _begin_rows(self, id_: int, room: int) -> mx.array:
        """Run the network for this token and a draft; the logits `(1, V)` after the token."""
        self._forced = [*self.chooser.forced()]
        room = max(min(room, self.cache.draft_room - 1), 0) if room > 0 else 0
        self._is_guess = not self._forced
        draft = self._forced[:room] if self._forced else self._guess(room)
        if not draft:
            return self.run(mx.array([id_]))
        self._rows = [id_, *draft]
        self.cache.begin_draft()
        self.cache.accept()
        self._logits = self.network(mx.array([self._rows]), cache=self.cache)[0]
        return self._logits[:1]

    def _guess(self, room: int) -> Sequence[int]:
        """At most `room` tokens that will probably follow."""
        if room < 1 or self.drafter is None:
            return ()
        draft, constrained = self.drafter.propose(room), self.chooser.constrained
        return draft if constrained is None else constrained.accepted(draft)
