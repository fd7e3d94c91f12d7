"""Decode: one token at a time, or several drafted ones that the model verifies in one step.

Works on arrays only; `generate` deals with text and with when to end.
"""

from collections import deque
from collections.abc import Iterator, Sequence

import mlx.core as mx
import numpy as np
from mlx import nn

from mlxchat.cache import Cache
from mlxchat.cache.layers import draft_refusal, recurrent_states
from mlxchat.cache.ring import DRAFT_SLOTS
from mlxchat.engine.drafts import Drafter
from mlxchat.engine.prefill import OnHeld, ShouldStop
from mlxchat.engine.sampling import Chooser, Drawn, Token
from mlxchat.errors import ConstraintError

# MLX keeps freed buffers for reuse. Releasing them after this many tokens bounds the memory.
CLEAR_EVERY = 256


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
    """Yield the tokens that `chooser` chooses, without their text. They follow the `last` one,
    which is not yet in the cache.

    The next token is computed while the caller handles the current one, so the cache already holds
    every token yielded except the very last: the last of `max_tokens`, or the last after
    `should_stop` returned True. The cache is then not ahead of the output, and another `decode`
    continues as if this one had not ended. `on_held` is called with each id that the cache holds,
    before it is yielded.

    With a `drafter`, several tokens are computed in one step if it pays and the cache can take them
    back. The text is the same, up to rounding. Tokens that a constraint forces are computed in one
    step as well; once it lets nothing follow, decoding ends.
    """
    loop = _Loop(network, cache, chooser, on_held, None if draft_refusal(cache) else drafter)
    return loop.tokens(last, max_tokens, should_stop)


class _Loop:
    # Whether the cache holds the token after which a constraint let nothing follow.
    _holds_last = False

    def __init__(
        self,
        network: nn.Module,
        cache: Cache,
        chooser: Chooser,
        on_held: OnHeld | None,
        drafter: Drafter | None,
    ) -> None:
        self._network = network
        self._cache = cache
        self._chooser = chooser
        self._on_held = on_held
        self._drafter = drafter
        self._is_recurrent = bool(recurrent_states(cache))
        # After a draft: the tokens that the cache now holds apart, and those that follow them.
        self._rows: list[int] = []
        self._confirmed: deque[Drawn | Token] = deque()

    def tokens(self, last: int, max_tokens: int, should_stop: ShouldStop) -> Iterator[Token]:
        # The index of the token after the current one, and of the one after the last.
        index = begun = cleared = self._chooser.index
        end = begun + max_tokens
        logits = self._run(mx.array([last]))
        self._hold(last)
        current = self._chosen(logits, index, self._chooser.forced())
        if self._drafter is not None:
            self._drafter.begin()
        try:
            while True:
                index += 1
                is_last = index == end or should_stop()
                follower: Drawn | Token | None = None
                if isinstance(current, Drawn) and not is_last and not self._waits():
                    # The current token may not be known yet.
                    follower = self._drawn(self._run(current.token), index, current.token)
                token, id_ = self._take(current)
                if is_last or self._chooser.is_over:
                    yield token
                    return
                if follower is None:
                    room = DRAFT_SLOTS if max_tokens < 0 else end - index - 1
                    self._holds_last = False
                    try:
                        follower = self._after(id_, index, room)
                    except ConstraintError:
                        if self._holds_last:
                            self._hold(id_)
                        yield token
                        raise
                self._hold(id_)
                yield token
                if self._confirmed and not self._cache.is_drafting:
                    # The caller has evicted tokens, and with them all drafted ones.
                    self._confirmed.clear()
                current = follower
                if index - cleared >= CLEAR_EVERY:
                    mx.clear_cache()
                    cleared = index
        finally:
            self._settle()

    # One token at a time

    def _run(self, token: mx.array) -> mx.array:
        return self._network(token[None], cache=self._cache)[:, -1, :]

    def _drawn(self, logits: mx.array, index: int, after: mx.array | list[int]) -> Drawn:
        """Begin drawing the token with this index from logits `(1, V)`. `after` are the last
        tokens, if they have not been taken yet."""
        if self._chooser.constrained is not None:
            # Computed while the mask is.
            mx.async_eval(logits)
        drawn = self._chooser.draw(logits, index, after)
        mx.async_eval(*drawn.arrays())
        return drawn

    def _take(self, current: Drawn | Token) -> tuple[Token, int]:
        """Wait for the current token; return it and its id."""
        token = current.read() if isinstance(current, Drawn) else current
        assert token.id is not None
        self._chooser.take(token.id)
        if self._drafter is not None:
            self._drafter.add(token.id, was_drafted=current is token)
        return token, token.id

    def _hold(self, id_: int) -> None:
        if self._on_held is not None:
            self._on_held(np.array([id_], np.int32))

    # Several tokens at a time

    def _waits(self) -> bool:
        """Whether to wait for the current token: a draft will probably follow it, or it decides
        which tokens may."""
        if self._chooser.constrained is not None:
            return True
        return self._drafter is not None and self._drafter.is_promising

    def _after(self, id_: int, index: int, room: int) -> Drawn | Token:
        """The token after `id_`, which is known: confirmed already, or from a draft, or neither."""
        if not self._confirmed:
            self._settle()
            room = min(room, self._cache.draft_room - 1)
            forced = self._chooser.forced()
            draft = forced[: max(room, 0)] or self._draft(room)
            if not draft:
                logits = self._run(mx.array([id_]))
                self._holds_last = True
                return self._chosen(logits, index, forced)
            self._verify([id_, *draft], index, certain=min(len(forced), len(draft)))
        self._cache.accept()
        return self._confirmed.popleft()

    def _chosen(self, logits: mx.array, index: int, forced: Sequence[int]) -> Drawn | Token:
        """The token with these logits: the first that is `forced`, else one to be drawn."""
        if not forced:
            return self._drawn(logits, index, [])
        mx.async_eval(logits)
        return self._chooser.certain(forced[0])

    def _draft(self, room: int) -> Sequence[int]:
        if self._drafter is None or room < 1:
            return []
        draft = self._drafter.propose(room)
        constrained = self._chooser.constrained
        return draft if constrained is None else constrained.accepted(draft)

    def _verify(self, rows: list[int], index: int, *, certain: int) -> None:
        """Compute a token and the draft after it in one step, and draw until a token differs from
        the draft. Its first `certain` tokens need not be drawn."""
        self._cache.begin_draft()
        logits = self._network(mx.array([rows]), cache=self._cache)[0]
        for row, drafted in enumerate([*rows[1:], None]):
            if drafted is not None and row < certain:
                self._confirmed.append(self._chooser.certain(drafted))
                continue
            drawn = self._drawn(logits[row : row + 1], index + row, rows[1 : row + 1])
            if drafted is None and certain == len(rows) - 1:
                # Nothing to compare it with: it is computed while the caller handles the others.
                self._confirmed.append(drawn)
                break
            token = drawn.read()
            self._confirmed.append(token)
            if token.id != drafted:
                break
        self._rows = rows[: len(self._confirmed)]
        if self._drafter is not None and not certain:
            self._drafter.learn(len(rows) - 1, len(self._rows) - 1)
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
