"""The turns of a conversation, and what the model's window holds of them. It generates nothing.

The transcript keeps every turn for ever; the window forgets the oldest whole turns. What the
template renders for the turns that are retained is compared, token by token, with what the cache
holds, and only what differs has to be prefilled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mlxchat.cache import Cache
from mlxchat.chat.eviction import RESERVE, forget_until_it_fits, is_too_long, may_be_forgotten
from mlxchat.chat.held import Before, Held
from mlxchat.chat.ledger import Ledger, TokenIds
from mlxchat.chat.rendering import NOTHING, Rendering
from mlxchat.chat.turn import Forgot, Mention, Turn, Usage
from mlxchat.engine.generate import Progress
from mlxchat.errors import CacheError, TemplateError, UsageError, WindowFull
from mlxchat.models.model import Model
from mlxchat.settings import CacheSettings, Roll
from mlxchat.template_args import thinking_variables
from mlxchat.wording import Action, Field


class Memory:
    """Turns, of which a model sees as many of the latest as fit into its window.

    The system prompt is pinned: it is in the cache once and is never evicted. If fewer than
    `settings.keep` tokens come before the first user's text, as many of the first turn stay too.
    Raises what `restart` raises.
    """

    def __init__(
        self, model: Model, settings: CacheSettings, rendering: Rendering, roll: Roll
    ) -> None:
        self.model = model
        self.settings = settings
        self.roll = roll
        self.turns: list[Turn] = []
        self._rendering = rendering
        # Turns before this one were cleared away.
        self._begins_at = 0
        # What was rendered for the last turn.
        self._prompt = NOTHING
        # From before the last turn, and from before the one before it.
        self._before: Before | None = None
        self._earlier: Before | None = None
        self.restart()

    # What the model sees

    def resume(self, system: str | None, turns: Sequence[Turn]) -> None:
        """Replace everything by a conversation that was saved: as much of it as fits is prefilled
        by its next turn. Raises CacheError if its pinned beginning leaves no room."""
        self.set_system(system)
        self.turns = list(turns)
        for turn in self.turns:
            # A transcript of another program has both in one text.
            if not turn.thought:
                turn.thought, turn.reply = self.model.tokenizer.split(turn.reply)
        # Nothing has been said since all was cleared.
        all_gone = all(turn.forgotten for turn in turns)
        self._begins_at = len(self.turns) if all_gone else 0

    def hold(self, cache: Cache, ledger: Ledger, turns: Sequence[Turn]) -> None:
        """Take over what another process held of `turns`: if it is what the template renders for
        them, nothing has to be prefilled."""
        self._held = Held(cache, ledger, list(turns))

    def undo(self) -> Turn:
        """Take the last turn back, with all that it made the window forget."""
        turn = self.turns[-1]
        for before in (self._before, self._earlier):
            if before is not None and before.turns == len(self.turns) - 1:
                self._go_back_to(before)
                self._before = self._earlier = None
                break
        del self.turns[-1]
        self._begins_at = min(self._begins_at, len(self.turns))
        return turn

    def take_back_continuation(self) -> bool:
        """Take back what `continue_reply` added to the last reply; False if it was not what came
        last."""
        before = self._before
        if before is None or before.last is None or before.turns != len(self.turns):
            return False
        self._go_back_to(before)
        self.turns[-1].become(before.last)
        self._before, self._earlier = self._earlier, None
        return True

    def set_system(self, text: str | None) -> None:
        """Change the system prompt: all that is retained will be prefilled again after it."""
        before = self._rendering
        self._rendering = replace(before, system=text)
        try:
            self.restart()
        except CacheError:
            self._rendering = before
            self.restart()
            raise
        self._before = None

    def think(self, wanted: bool) -> None:
        """Turn thoughts on or off, whatever the user's own variables say of them. Raises what
        `set_template_args` raises."""
        names = thinking_variables(False)
        args = {name: each for name, each in self.template_args.items() if name not in names}
        self._set_variables(thinking_variables(wanted), args)

    def set_template_args(self, args: Mapping[str, Any]) -> None:
        """Replace the user's own variables of the template. Raises TemplateError if the template
        refuses them, CacheError if the beginning leaves no room; then they are as they were."""
        self._set_variables(self.variables, args)

    def _set_variables(self, variables: Mapping[str, Any], args: Mapping[str, Any]) -> None:
        before = self._rendering
        self._rendering = replace(before, variables=dict(variables), template_args=dict(args))
        try:
            if self._rendering.count_pinned() != self._pinned_tokens:
                self.restart()
        except (CacheError, TemplateError):
            self._rendering = before
            raise

    def pin(self, number: int) -> None:
        """Never forget the turn of this number, counted from 1. Raises UsageError."""
        if not 1 <= number <= len(self.turns):
            raise UsageError(f"there is no turn {number}")
        turn = self.turns[number - 1]
        if turn.forgotten:
            raise UsageError(f"turn {number} is forgotten already")
        turn.pinned = True

    def unpin(self) -> None:
        """Let all pinned turns be forgotten again."""
        for turn in self.turns:
            turn.pinned = False

    def forget(self, count: int) -> int:
        """Forget that many of the oldest turns that are not pinned; return how many there were."""
        oldest = [turn for turn in self.retained if not turn.pinned][:count]
        for turn in oldest:
            turn.forgotten = True
        return len(oldest)

    def recall(self, word: str) -> list[Mention]:
        """Every line in which the word occurs, in capitals or not, forgotten or not; the oldest
        first."""
        return [
            Mention(number, turn.forgotten, line)
            for number, turn in enumerate(self.turns, 1)
            for text in (turn.user, turn.thought, turn.reply)
            for line in text.splitlines()
            if word.lower() in line.lower()
        ]

    def clear(self) -> None:
        """Forget all turns, pinned ones too, and begin again; the transcript keeps them."""
        for turn in self.turns:
            turn.forgotten, turn.pinned = True, False
        self._begins_at = len(self.turns)
        self._before = None
        self.restart()

    def restart(self) -> None:
        """Begin with an empty cache: whatever is retained is prefilled by the next turn.

        Raises CacheError if the pinned beginning leaves no room in the window.
        """
        window = self.settings.max_kv_size
        pinned_tokens = self._rendering.count_pinned()
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
        # Should the device give out while a cache is made, there is none, and nothing half new.
        self._held = Held.nothing(window, keep)
        self._pinned_tokens = pinned_tokens
        self._held.cache = self.model.make_cache(window, keep)

    # What is there

    @property
    def system(self) -> str | None:
        return self._rendering.system

    @property
    def variables(self) -> Mapping[str, Any]:
        return self._rendering.variables

    @property
    def template_args(self) -> Mapping[str, Any]:
        return self._rendering.template_args

    @property
    def notices(self) -> tuple[str, ...]:
        """What the user should know of how the template was read."""
        return self._rendering.notices

    @property
    def retained(self) -> list[Turn]:
        """The turns that the model can see."""
        return [turn for turn in self.turns if not turn.forgotten]

    @property
    def forgotten(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.forgotten]

    @property
    def last(self) -> Turn | None:
        """The last turn, if there is one since all was cleared."""
        return self.turns[-1] if len(self.turns) > self._begins_at else None

    @property
    def held_ids(self) -> TokenIds:
        """What the cache holds, `(T,)`, in temporal order."""
        return self._held.ledger.ids

    @property
    def held_turns(self) -> list[Turn]:
        """The turns that the cache was filled for."""
        return self._held.turns

    @property
    def ledger(self) -> Ledger:
        return self._held.ledger

    @property
    def cache(self) -> Cache:
        return self._held.cache

    def usage(self) -> Usage:
        """What the window holds, by turns; tokens are counted as the template renders them."""
        counted: list[tuple[Turn, int]] = []
        so_far = len(self._render([Turn("a")]))
        for n, turn in enumerate(self.held_turns, start=1):
            rendered = len(self._render([*self.held_turns[:n], Turn("a")]))
            counted.append((turn, rendered - so_far))
            so_far = rendered
        pinned = self._pinned_tokens + len(self._kept_of_first_turn([]))
        return Usage(pinned, tuple(counted), len(self.ledger), self.settings.max_kv_size)

    # Rendering

    def _render(self, turns: Sequence[Turn], on_encode: Progress | None = None) -> TokenIds:
        """Token ids of complete turns and one to be answered, up to where its reply begins.

        If the first turn of all is forgotten, what `keep` holds of it comes before them.
        """
        ids = self._rendering.ids(turns, on_encode)
        kept = self._kept_of_first_turn(turns)
        return np.concatenate([ids[: self._pinned_tokens], kept, ids[self._pinned_tokens :]])

    def _kept_of_first_turn(self, turns: Sequence[Turn]) -> TokenIds:
        start, stop = self._pinned_tokens, self.settings.keep
        first = next(iter(self.turns[self._begins_at :]), None)
        if self.settings.max_kv_size is None or start >= stop or first is None:
            return NOTHING
        if not first.forgotten or any(turn is first for turn in turns):
            return NOTHING
        return self._rendering.beginning_of(first, start, stop)

    # Making room

    def _make_room(self, on_encode: Progress) -> Iterator[Forgot]:
        """Forget the oldest turns until the rendered ones fit, and render what is left.

        The result is in `_prompt`: an iterator cannot return it in a for loop. `on_encode` may
        raise, to stop before anything is evicted.
        """
        # Even if nothing of a turn is held it can be missed: the cache may have been let go.
        known = {id(turn) for turn in [*self.held_turns, *self.retained]}
        ids = self._render(self.retained, on_encode)
        if is_too_long(ids, self.settings.max_kv_size):
            ids = self._forget_until_it_fits(on_encode)
        before = [turn for turn in self.turns if id(turn) in known]
        gone = [turn for turn in before if turn.forgotten]
        if gone:
            held = self._render(before, on_encode)
            if self.roll is Roll.REFILL:
                self.restart()
            else:
                self._held.evict(ids, len(held) - len(ids))
            yield Forgot(len(gone), len(held) - len(ids))
        self._prompt = ids

    def _forget_until_it_fits(self, on_encode: Progress) -> TokenIds:
        window = self.settings.max_kv_size
        if self.roll is Roll.STOP:
            raise WindowFull(
                f"the window of {window:,} tokens is full, and ",
                Field("roll"),
                " stop lets nothing be forgotten: ",
                Action("clear", "start a new conversation"),
                ", or use ",
                Field("roll", Roll.SHIFT),
            )
        return forget_until_it_fits(
            self.retained, lambda: self._render(self.retained, on_encode), window
        )

    def _place(self, ids: TokenIds) -> int:
        """Rewind the cache to what it shares with `ids`; return how many tokens that is, at most
        one short of all of them."""
        try:
            return self._held.rewind_to(ids)
        except CacheError:
            # Recurrent layers cannot be rewound: go back to before the last turn, or begin again.
            earlier = self._earlier
        n = 0 if earlier is None else len(earlier.held.ledger)
        if earlier is not None and n < len(ids) and earlier.held.ledger.common_prefix(ids) == n:
            self._held = earlier.held.fork()
            return n
        self.restart()
        return 0

    def _is_full(self) -> bool:
        window = self.settings.max_kv_size
        return window is not None and len(self.ledger) >= window

    def _forget_oldest_in_place(self) -> int:
        """Evict the oldest turn while the last one is being answered; return its tokens, 0 if there
        is none or it cannot be evicted."""
        oldest = next(iter(may_be_forgotten(self.retained)), None)
        if oldest is None:
            return 0
        oldest.forgotten = True
        ids = self._render(self.retained)
        tokens = len(self._prompt) - len(ids)
        if not self._held.evict(ids, tokens):
            oldest.forgotten = False
            return 0
        self._prompt = ids
        self._held.turns = self.retained
        return tokens

    # Going back

    def _begin_turn(self) -> None:
        self._earlier, self._before = self._before, Before.of(self.turns, self._held)

    def _go_back_to(self, before: Before) -> None:
        before.remember(self.turns)
        self._held = before.held

    def _let_go(self) -> None:
        """Hold nothing any more: the next turn begins with an empty cache."""
        self._held = Held.nothing(self.ledger.window, self.ledger.keep)
        self._before = self._earlier = None
