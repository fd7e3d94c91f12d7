"""Decode: one token at a time, or several drafted ones that the model verifies in one step.

Works on arrays only; `generate` deals with text and with when to end.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat.cache import Cache
from mlxchat.cache.layers import draft_refusal, recurrent_states
from mlxchat.cache.ring import DRAFT_SLOTS
from mlxchat.engine.constrained import Constrained
from mlxchat.engine.drafts import Drafter
from mlxchat.engine.draw import Chooser, Decoded, Drawn
from mlxchat.engine.prefill import OnHeld, ShouldStop
from mlxchat.errors import ConstraintError
from mlxchat.settings import SamplingSettings
from mlxchat.text.spans import TokenIds

# MLX keeps freed buffers for reuse. Releasing them after this many tokens bounds the memory.
CLEAR_EVERY = 256


def decode(
    network: nn.Module,
    cache: Cache,
    ids: TokenIds,
    *,
    sampling: SamplingSettings,
    first_index: int = 0,
    max_tokens: int = -1,
    logprobs: int | None = None,
    on_held: OnHeld | None = None,
    should_stop: ShouldStop | None = None,
    drafter: Drafter | None = None,
    constrained: Constrained | None = None,
    eos_ids: Collection[int] = (),
    min_tokens: int = 0,
) -> Iterator[Decoded]:
    """Yield the tokens that follow `ids: (T,)`, of which only the last is not yet in the cache.

    The next token is computed while the caller handles the current one, so the cache already holds
    every token yielded except the very last: the last of `max_tokens`, or the last after
    `should_stop` returned True. The cache is then not ahead of the output, and another `decode`
    continues as if this one had not ended. `on_held` is called with each id that the cache holds,
    before it is yielded. `sampling` needs a seed unless it is greedy; the random numbers of each
    token follow from the seed and its index, which starts at `first_index`.

    With a `drafter`, several tokens are computed in one step if it pays and the cache can take them
    back. The text is the same, up to rounding.

    The `eos_ids` are not drawn before the index `min_tokens`.

    With `constrained`, only tokens that it allows are drawn, and tokens that it forces are computed
    in one step. It follows the tokens yielded; once it is complete, so is the output.
    """
    chooser = Chooser(
        ids,
        sampling,
        first_index=first_index,
        logprobs=logprobs,
        constrained=constrained,
        eos_ids=eos_ids,
        min_tokens=min_tokens,
    )
    loop = _Loop(network, cache, ids, chooser)
    loop.on_held = on_held
    loop.drafter = None if draft_refusal(cache) else drafter
    return loop.tokens(max_tokens, should_stop or (lambda: False))


class _Loop:
    on_held: OnHeld | None = None
    drafter: Drafter | None = None
    # Whether the cache holds the token after which a constraint let nothing follow.
    _holds_last = False

    def __init__(self, network: nn.Module, cache: Cache, ids: TokenIds, chooser: Chooser) -> None:
        self._network = network
        self._cache = cache
        self._ids = ids
        self._chooser = chooser
        self._is_recurrent = bool(recurrent_states(cache))
        # After a draft: the tokens that the cache now holds apart, and those that follow them.
        self._rows: list[int] = []
        self._confirmed: deque[Drawn | Decoded] = deque()

    def tokens(self, max_tokens: int, should_stop: ShouldStop) -> Iterator[Decoded]:
        logits = self._run(mx.array(self._ids[-1:]))
        self._hold(self._ids[-1])
        current = self._chosen(logits, 0, self._chooser.forced())
        count = cleared = 0
        if self.drafter is not None:
            self.drafter.begin()
        try:
            while True:
                count += 1
                is_last = count == max_tokens or should_stop()
                follower: Drawn | Decoded | None = None
                if isinstance(current, Drawn) and not is_last and not self._waits():
                    follower = self._next(current.token, count)
                decoded = self._take(current)
                if is_last or self._chooser.is_over:
                    yield decoded
                    return
                if follower is None:
                    room = DRAFT_SLOTS if max_tokens < 0 else max_tokens - count - 1
                    self._holds_last = False
                    try:
                        follower = self._after(decoded.id, count, room)
                    except ConstraintError:
                        if self._holds_last:
                            self._hold(decoded.id)
                        yield decoded
                        raise
                self._hold(decoded.id)
                yield decoded
                if self._confirmed and not self._cache.is_drafting:
                    # The caller has evicted tokens, and with them all drafted ones.
                    self._confirmed.clear()
                current = follower
                if count - cleared >= CLEAR_EVERY:
                    mx.clear_cache()
                    cleared = count
        finally:
            self._settle()

    # One token at a time

    def _run(self, token: mx.array) -> mx.array:
        return self._network(token[None], cache=self._cache)[:, -1, :]

    def _next(self, token: mx.array, count: int) -> Drawn:
        """Begin computing the token after `token: (1,)`, which may not be known yet."""
        return self._drawn(self._run(token), count, token)

    def _drawn(self, logits: mx.array, count: int, after: mx.array | list[int]) -> Drawn:
        """Begin drawing a token from logits `(1, V)`, after `count` others. `after` are the last
        tokens, if they are not among the `_latest` yet."""
        if self._chooser.constrained is not None:
            # Computed while the mask is.
            mx.async_eval(logits)
        drawn = self._chooser.draw(logits, count, after)
        mx.async_eval(*drawn.arrays())
        return drawn

    def _take(self, current: Drawn | Decoded) -> Decoded:
        """Wait for the current token."""
        decoded = current.read() if isinstance(current, Drawn) else current
        self._chooser.take(decoded.id)
        if self.drafter is not None:
            self.drafter.add(decoded.id, was_drafted=current is decoded)
        return decoded

    def _hold(self, id_: int) -> None:
        if self.on_held is not None:
            self.on_held(np.array([id_], self._ids.dtype))

    # Several tokens at a time

    def _waits(self) -> bool:
        """Whether to wait for the current token: a draft will probably follow it, or it decides
        which tokens may."""
        if self._chooser.constrained is not None:
            return True
        return self.drafter is not None and self.drafter.is_promising

    def _after(self, id_: int, count: int, room: int) -> Drawn | Decoded:
        """The token after `id_`, which is known: confirmed already, or from a draft, or neither."""
        if not self._confirmed:
            self._settle()
            room = min(room, self._cache.draft_room - 1)
            forced = self._chooser.forced()
            draft = forced[: max(room, 0)] or self._draft(room)
            if not draft:
                logits = self._run(mx.array([id_]))
                self._holds_last = True
                return self._chosen(logits, count, forced)
            self._verify([id_, *draft], count, certain=min(len(forced), len(draft)))
        self._cache.accept()
        return self._confirmed.popleft()

    def _chosen(self, logits: mx.array, count: int, forced: Sequence[int]) -> Drawn | Decoded:
        """The token with these logits: the first that is `forced`, else one to be drawn."""
        if not forced:
            return self._drawn(logits, count, [])
        mx.async_eval(logits)
        return self._chooser.certain(forced[0])

    def _draft(self, room: int) -> Sequence[int]:
        if self.drafter is None or room < 1:
            return []
        draft = self.drafter.propose(room)
        constrained = self._chooser.constrained
        return draft if constrained is None else constrained.accepted(draft)

    def _verify(self, rows: list[int], count: int, *, certain: int) -> None:
        """Compute a token and the draft after it in one step, and draw until a token differs from
        the draft. Its first `certain` tokens need not be drawn."""
        self._cache.begin_draft()
        logits = self._network(mx.array([rows]), cache=self._cache)[0]
        for row, drafted in enumerate([*rows[1:], None]):
            if drafted is not None and row < certain:
                self._confirmed.append(self._chooser.certain(drafted))
                continue
            drawn = self._drawn(logits[row : row + 1], count + row, rows[1 : row + 1])
            if drafted is None and certain == len(rows) - 1:
                # Nothing to compare it with: it is computed while the caller handles the others.
                self._confirmed.append(drawn)
                break
            token = drawn.read()
            self._confirmed.append(token)
            if token.id != drafted:
                break
        self._rows = rows[: len(self._confirmed)]
        if self.drafter is not None and not certain:
            self.drafter.learn(len(rows) - 1, len(self._rows) - 1)
        if self._is_recurrent and len(self._rows) < len(rows):
            self._replay(self._rows)

    def _replay(self, rows: list[int]) -> None:
        """Compute drafted tokens again without those after them: recurrent states include all."""
        self._cache.drop_draft()
        if len(rows) > 1:
            self._cache.begin_draft()
        if rows:
            self._run(mx.array(rows))
            mx.async_eval([layer.state for layer in self._cache])

    def _settle(self) -> None:
        """End the draft: the cache keeps the tokens yielded."""
        if not self._cache.is_drafting:
            return
        accepted = self._cache.accepted
        if self._is_recurrent and accepted < len(self._rows):
            self._replay(self._rows[:accepted])
            self._cache.accept(accepted)
        self._cache.settle()
        self._confirmed.clear()
