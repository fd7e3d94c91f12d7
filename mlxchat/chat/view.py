"""The model's view of a conversation: the cache, and the turns it was filled for.

The template's rendering of the retained turns is compared, token by token, with the cache; only the
difference is prefilled. When the turns no longer fit, the oldest are evicted whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from mlxchat.cache import Cache
from mlxchat.cache.layers import windows
from mlxchat.chat.eviction import RESERVE, forget_until_it_fits, is_too_long, may_be_forgotten
from mlxchat.chat.held import Before, Held
from mlxchat.chat.ledger import Ledger
from mlxchat.chat.rendering import NOTHING, Rendering
from mlxchat.chat.turn import Forgot, Turn, Usage
from mlxchat.chat.turns import Turns
from mlxchat.engine.loops import OnHeld
from mlxchat.errors import CacheError, TemplateError, WindowFull
from mlxchat.models.model import Model
from mlxchat.progress import Progress
from mlxchat.settings import CacheSettings, Roll
from mlxchat.text.spans import TokenIds
from mlxchat.wording import Action, Field


class Prefixes(Protocol):
    """Remembers prompt prefixes across conversations."""

    def begin(
        self, model: Model, cache: Cache, ids: TokenIds, window: int | None
    ) -> tuple[int, OnHeld | None]:
        """Fill the empty cache with the known prefix of `ids`; return the prefix's length, and a
        function to call with the ids of each step prefilled after it."""
        ...


class View:
    """The latest `turns`, as many as fit in the model's window.

    The system prompt is pinned: it is in the cache once and is never evicted. If fewer than
    `settings.keep` tokens come before the first user's text, the start of the first turn fills up
    the rest. `prompt` is the rendering for the last turn. Raises what `restart` raises.
    """

    def __init__(
        self,
        model: Model,
        settings: CacheSettings,
        rendering: Rendering,
        turns: Turns,
        *,
        roll: Roll,
        prefixes: Prefixes | None,
    ) -> None:
        self.model = model
        self.settings = settings
        self.rendering = rendering
        self.roll = roll
        self.prompt = NOTHING
        self._turns = turns
        self.prefixes = prefixes
        # The state before the last turn, and before the turn before it.
        self._before: Before | None = None
        self._earlier: Before | None = None
        self.restart()

    @property
    def ledger(self) -> Ledger:
        return self._held.ledger

    @property
    def cache(self) -> Cache:
        return self._held.cache

    @property
    def turns(self) -> list[Turn]:
        """Turns the cache was filled for."""
        return self._held.turns

    def usage(self) -> Usage:
        """Tokens in the window, by turn, counted as the template renders them."""
        counted: list[tuple[Turn, int]] = []
        so_far = len(self.render([Turn("a")]))
        for n, turn in enumerate(self.turns, start=1):
            rendered = len(self.render([*self.turns[:n], Turn("a")]))
            counted.append((turn, rendered - so_far))
            so_far = rendered
        pinned = self._pinned_tokens + len(self._kept_of_first_turn([]))
        return Usage(pinned, tuple(counted), len(self.ledger), self.settings.max_kv_size)

    def restart(self) -> None:
        """Start with an empty cache: the next turn prefills all retained turns.

        Raises CacheError if the pinned tokens leave no room in the window.
        """
        window = self.settings.max_kv_size
        pinned_tokens = self.rendering.count_pinned()
        pinned = max(pinned_tokens, self.settings.keep)
        if window is not None and window < pinned + 2 * RESERVE:
            raise CacheError(
                "the system prompt, the template and ",
                Field("keep"),
                f" take {pinned} tokens of a window of {window}: ",
                Field("max_kv_size"),
                f" must be at least {pinned + 2 * RESERVE}",
            )
        keep = pinned if window is not None else 0
        # If the device fails while the cache is made, this one stays, empty.
        self._held = Held.nothing(window, keep)
        self._pinned_tokens = pinned_tokens
        self._held.cache = self.model.make_cache(window, keep)

    def hold(self, cache: Cache, ledger: Ledger, turns: Sequence[Turn]) -> None:
        """Take over the cache that another process filled for `turns`. If it matches the
        template's rendering of them, nothing has to be prefilled."""
        self._held = Held(cache, ledger, list(turns))

    # Rendering

    def set_system(self, text: str | None) -> None:
        """Change the system prompt. The next turn prefills all retained turns again."""
        before = self.rendering
        self.rendering = replace(before, system=text)
        try:
            self.restart()
        except CacheError:
            self.rendering = before
            self.restart()
            raise
        self._before = None

    def set_variables(self, variables: Mapping[str, Any], args: Mapping[str, Any]) -> None:
        before = self.rendering
        self.rendering = replace(before, variables=dict(variables), template_args=dict(args))
        try:
            if self.rendering.count_pinned() != self._pinned_tokens:
                self.restart()
        except (CacheError, TemplateError):
            self.rendering = before
            raise

    def render(self, turns: Sequence[Turn], on_encode: Progress | None = None) -> TokenIds:
        """Token ids of the complete turns and one to be answered, up to where its reply begins.

        If the very first turn is forgotten, its tokens that `keep` covers come before them.
        """
        ids = self.rendering.ids(turns, on_encode)
        kept = self._kept_of_first_turn(turns)
        return np.concatenate([ids[: self._pinned_tokens], kept, ids[self._pinned_tokens :]])

    def _kept_of_first_turn(self, turns: Sequence[Turn]) -> TokenIds:
        start, stop = self._pinned_tokens, self.settings.keep
        first = self._turns.first
        if self.settings.max_kv_size is None or start >= stop or first is None:
            return NOTHING
        if not first.forgotten or any(turn is first for turn in turns):
            return NOTHING
        return self.rendering.beginning_of(first, start, stop)

    # A turn: make room, fill in its prompt, evict while it is answered

    def make_room(self, on_encode: Progress) -> Iterator[Forgot]:
        """Forget the oldest turns until the rest fits, and render it as `prompt`.

        `on_encode` may raise, to stop before anything is evicted. Raises WindowFull.
        """
        # Count turns that are not in the cache too: a device failure may have dropped it.
        known = {id(turn) for turn in [*self.turns, *self._turns.retained]}
        ids = self.render(self._turns.retained, on_encode)
        if is_too_long(ids, self.settings.max_kv_size):
            ids = self._forget_until_it_fits(on_encode)
        before = [turn for turn in self._turns if id(turn) in known]
        gone = [turn for turn in before if turn.forgotten]
        if gone:
            held = self.render(before, on_encode)
            if self.roll is Roll.REFILL:
                self.restart()
            else:
                self._held.evict(ids, len(held) - len(ids))
            yield Forgot(len(gone), len(held) - len(ids))
        self.prompt = ids

    def _forget_until_it_fits(self, on_encode: Progress) -> TokenIds:
        window = self.settings.max_kv_size
        if self.roll is Roll.STOP:
            raise WindowFull(
                f"the window of {window:,} tokens is full, and ",
                Field("roll"),
                " stop forgets nothing: ",
                Action("clear", "start a new conversation"),
                ", or use ",
                Field("roll", Roll.SHIFT),
            )
        return forget_until_it_fits(
            self._turns.retained, lambda: self.render(self._turns.retained, on_encode), window
        )

    def begin(self, ids: TokenIds) -> tuple[int, OnHeld]:
        """Rewind the cache to its common prefix with `ids`, or fill it from a known prefix. Return
        how many tokens that gives, at most `len(ids) - 1`, and a function to call with the ids of
        each step prefilled after them."""
        if not self.cache:
            self.restart()
        cached, on_held = self._place(ids), self.ledger.add
        if cached == 0 and self.prefixes is not None:
            cached, on_held = self._begin_with_known_prefix(self.prefixes, ids)
        self._held.turns = self._turns.retained
        return cached, on_held

    def _place(self, ids: TokenIds) -> int:
        """Rewind the cache to its common prefix with `ids`; return the prefix's length."""
        try:
            return self._held.rewind_to(ids)
        except CacheError:
            # Recurrent layers cannot be rewound: go back to before the last turn, or start over.
            earlier = self._earlier
        n = 0 if earlier is None else len(earlier.held.ledger)
        if earlier is not None and n < len(ids) and earlier.held.ledger.common_prefix(ids) == n:
            self._held = earlier.held.fork()
            return n
        self.restart()
        return 0

    def _begin_with_known_prefix(self, prefixes: Prefixes, ids: TokenIds) -> tuple[int, OnHeld]:
        if any(part.total for part in windows(self.cache)):
            # Rewound tokens still count towards positions.
            self.restart()
        ledger, window = self.ledger, self.settings.max_kv_size
        cached, record = prefixes.begin(self.model, self.cache, ids, window)
        ledger.add(ids[:cached])

        def on_held(step: TokenIds) -> None:
            ledger.add(step)
            if record is not None:
                record(step)

        return cached, on_held

    @property
    def is_full(self) -> bool:
        window = self.settings.max_kv_size
        return window is not None and len(self.ledger) >= window

    def forget_oldest_in_place(self) -> int:
        """Evict the oldest turn while the last one is being answered. Return its tokens, or 0 if
        no turn can be evicted."""
        oldest = next(iter(may_be_forgotten(self._turns.retained)), None)
        if oldest is None:
            return 0
        oldest.forgotten = True
        ids = self.render(self._turns.retained)
        tokens = len(self.prompt) - len(ids)
        if not self._held.evict(ids, tokens):
            oldest.forgotten = False
            return 0
        self.prompt = ids
        self._held.turns = self._turns.retained
        return tokens

    # Going back

    def begin_turn(self) -> None:
        """Remember the state before the turn."""
        self._earlier, self._before = self._before, Before.of(self._turns, self._held)

    def go_back_to(self, turns: int) -> None:
        """Restore the state from when there were `turns` turns, if it is remembered."""
        for before in (self._before, self._earlier):
            if before is not None and before.turns == turns:
                self._go_back(before)
                self.forget_past()
                break

    def take_back_continuation(self) -> bool:
        """Take back what a continuation added to the last reply; False if the last action was
        something else."""
        before = self._before
        if before is None or before.last is None or before.turns != len(self._turns):
            return False
        self._go_back(before)
        self._turns[-1].become(before.last)
        self._before, self._earlier = self._earlier, None
        return True

    def _go_back(self, before: Before) -> None:
        before.remember(self._turns)
        self._held = before.held

    def forget_past(self) -> None:
        self._before = self._earlier = None

    def drop(self) -> None:
        """Drop the cache: the next turn starts with an empty one."""
        self._held = Held.nothing(self.ledger.window, self.ledger.keep)
        self.forget_past()
