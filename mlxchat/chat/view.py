"""The model's view of a conversation: the cache, and the turns it was filled for.

The template's rendering of the retained turns is compared, token by token, with the cache; only the
difference is prefilled. When the turns no longer fit, the oldest are evicted whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import is_
from typing import Any

import numpy as np

from mlxchat.cache import Cache
from mlxchat.cache.layers import recurrent_states, windows
from mlxchat.chat.held import Before, Held, KnownPrefixes
from mlxchat.chat.ledger import Ledger
from mlxchat.chat.memory import fitting_quote
from mlxchat.chat.rendering import NOTHING, Rejected, Rendering
from mlxchat.chat.room import check_note, check_pin, check_room, room_for_note
from mlxchat.chat.turn import Forgot, Quoted, Recalled, Turn, Usage
from mlxchat.chat.turns import Turns, is_too_long, may_be_forgotten
from mlxchat.engine.prefill import OnHeld
from mlxchat.errors import CacheError, WindowFull
from mlxchat.models.model import Model
from mlxchat.progress import Progress
from mlxchat.settings import CacheSettings
from mlxchat.text.spans import TokenIds


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
        prefixes: KnownPrefixes | None,
    ) -> None:
        self.model = model
        self.settings = settings
        self.rendering = rendering
        self.prompt = NOTHING
        # What is quoted before the message that is being answered.
        self._quote, self._quote_tokens = "", 0
        # The state before the quote, if evicting the quote would not be enough.
        self._unquoted: Held | None = None
        # The turns that were quoted for the last message.
        self.recalled: tuple[Quoted, ...] = ()
        self.all_turns = turns
        self.prefixes = prefixes
        # What was before the latest changes, the last one at the end.
        self._past = deque[Before](maxlen=2)
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

    @property
    def is_current(self) -> bool:
        """Whether the cache holds the retained turns; not after /system or /forget, for example."""
        held, retained = self.turns, self.all_turns.retained
        same = len(held) == len(retained) and all(map(is_, held, retained))
        return same and len(self.ledger) > 0

    @property
    def pinned_tokens(self) -> int:
        """Tokens that are never evicted: those before the first user's text, and those kept of a
        forgotten first turn."""
        return self._pinned_tokens + len(self._kept_of_first_turn([]))

    @property
    def tokens(self) -> int:
        """Tokens in the window; if the cache is out of date, the tokens before the next message."""
        if self.is_current:
            return len(self.ledger)
        return self.pinned_tokens + self.rendering.tokens_of(*self.all_turns.retained)

    def usage(self) -> Usage:
        """Tokens in the window, by turn. For the last turn, those in the cache."""
        turns = self.all_turns.retained
        sizes = [self.rendering.tokens_of(turn) for turn in turns]
        if turns:
            sizes[-1] = max(self.tokens - self.pinned_tokens - sum(sizes[:-1]), 0)
        counted = tuple(zip(turns, sizes, strict=True))
        window = self.settings.max_kv_size
        return Usage(self.pinned_tokens, counted, window, self.note_tokens)

    @property
    def note_tokens(self) -> int:
        """The tokens that the note adds to the system prompt."""
        note = self.rendering.note
        if note is None:
            return 0
        added = self._pinned_tokens - self.rendering.tokens_of_system(None)
        # It replaces a system prompt that the template has by default.
        return max(added, 0)

    def check_pin(self, turn: Turn) -> None:
        """Raises UsageError if the turn cannot be pinned."""
        pinned = [each for each in self._pinned() if each is not turn]
        check_pin(self.rendering, self.settings.max_kv_size, self.ledger.keep, pinned, turn)

    def room_for_note(self) -> int | None:
        return room_for_note(self.rendering, self.settings.max_kv_size, self._pinned())

    def _pinned(self) -> list[Turn]:
        return [turn for turn in self.all_turns.retained if turn.pinned]

    def restart(self) -> None:
        """Start with an empty cache: the next turn prefills all retained turns.

        Raises CacheError if the pinned tokens leave no room in the window.
        """
        window = self.settings.max_kv_size
        pinned_tokens = check_room(self.rendering, self.settings)
        keep = max(pinned_tokens, self.settings.keep) if window is not None else 0
        # If the device fails while the cache is made, this one stays, empty.
        self._held = Held.nothing(window, keep)
        self._pinned_tokens = pinned_tokens
        self._held.cache = self.model.make_cache(window, keep)

    def hold(self, cache: Cache, ledger: Ledger, turns: Sequence[Turn]) -> None:
        """Take over the cache that another process filled for `turns`. If it matches the
        template's rendering of them, nothing has to be prefilled."""
        self._held = Held(cache, ledger, list(turns))

    # Rendering

    def begin_with(self, system: str | None, note: str | None) -> None:
        """Change the system prompt and the note. Raises CacheError if they leave no room,
        TemplateError or InputError if they are rejected; either way, nothing changes."""
        before = self.rendering
        self.rendering = replace(before, system=system, note=note)
        try:
            self.restart()
        except (CacheError, *Rejected):
            self.rendering = before
            self.restart()
            raise
        self._past.clear()

    def set_note(self, text: str | None, noted: Sequence[Turn] = ()) -> None:
        """Replace the note, and forget the turns that it was written about. The next turn prefills
        the others again. Raises UsageError, with nothing changed, if it does not fit."""
        if text is not None:
            check_note(self.rendering, self.room_for_note(), text)
        note = self.rendering.note
        before = Before.of(self.all_turns, self._held, note, is_of_note=True)
        self.begin_with(self.rendering.system, text)
        for turn in noted:
            turn.forgotten = True
        self._past.append(before)

    def aside(self, ids: TokenIds) -> tuple[Cache, int]:
        """A cache for a prompt that is not part of the conversation, and how many of its tokens it
        holds: those that the conversation begins with, too."""
        held = self._held.fork()
        try:
            cached = held.rewind_to(ids)
        except CacheError:
            # Recurrent layers cannot be rewound.
            cached = 0
        if cached:
            return held.cache, cached
        return self.model.make_cache(self.settings.max_kv_size, self.ledger.keep), 0

    def set_variables(self, variables: Mapping[str, Any], args: Mapping[str, Any]) -> None:
        before = self.rendering
        self.rendering = replace(before, variables=dict(variables), template_args=dict(args))
        try:
            if self.rendering.count_pinned() != self._pinned_tokens:
                self.restart()
        except (CacheError, *Rejected):
            self.rendering = before
            raise

    def render(self, turns: Sequence[Turn], on_encode: Progress | None = None) -> TokenIds:
        """Token ids of the complete turns and one to be answered, up to where its reply begins.

        If the very first turn is forgotten, its tokens that `keep` covers come before them.
        """
        kept = self._kept_of_first_turn(turns)
        if self._quote and turns and turns[-1] is self.all_turns[-1]:
            turns = [*turns[:-1], replace(turns[-1], user=self._quote + turns[-1].user)]
        ids = self.rendering.ids(turns, on_encode)
        return np.concatenate([ids[: self._pinned_tokens], kept, ids[self._pinned_tokens :]])

    def _kept_of_first_turn(self, turns: Sequence[Turn]) -> TokenIds:
        start, stop = self._pinned_tokens, self.settings.keep
        first = self.all_turns.first
        if self.settings.max_kv_size is None or start >= stop or first is None:
            return NOTHING
        if not first.forgotten or any(turn is first for turn in turns):
            return NOTHING
        return self.rendering.beginning_of(first, start, stop)

    # A turn: make room, fill in its prompt, evict while it is answered

    def make_room(
        self, on_encode: Progress, recall: Callable[[], Sequence[Quoted]] = tuple
    ) -> Iterator[Forgot | Recalled]:
        """Forget the oldest turns until the rest fits, and render it as `prompt`.

        `recall` returns the turns to quote before the message.
        `on_encode` may raise, to stop before anything is evicted. Raises WindowFull.
        """
        self._quote = ""
        # Count turns that are not in the cache too: a device failure may have dropped it.
        known = {id(turn) for turn in [*self.turns, *self.all_turns.retained]}
        ids = self.render(self.all_turns.retained, on_encode)
        if is_too_long(ids, self.settings.max_kv_size):
            ids = self._forget_oldest(on_encode)
        if is_too_long(ids, self.settings.max_kv_size) and self._pinned_turns():
            raise WindowFull(
                "this message does not fit next to the pinned turns in a window of "
                f"{self.settings.max_kv_size:,} tokens: shorten it, or unpin them (/unpin)"
            )
        plain, quoted = ids, recall()
        if quoted:
            ids, quoted = self._with_quote(quoted, plain)
        before = [turn for turn in self.all_turns if id(turn) in known]
        forgotten = [turn for turn in before if turn.forgotten]
        if forgotten:
            tokens = len(self.render(before, on_encode)) - len(ids)
            self._held.evict(ids, tokens)
            yield self._forgot(forgotten, tokens)
        self.prompt = ids
        if self._quote:
            if recurrent_states(self.cache):
                self._unquoted = self._held.fork()
                self._unquoted.turns = [turn for turn in self.turns if not turn.forgotten]
            self.recalled = tuple(quoted)
            yield Recalled(self.recalled, self._quote_tokens)

    def _with_quote(
        self, quoted: Sequence[Quoted], plain: TokenIds
    ) -> tuple[TokenIds, Sequence[Quoted]]:
        """The prompt with these turns quoted before the message, and which of them are: only the
        last one, if there is no room for more; none, if they do not fit."""
        window = self.settings.max_kv_size
        forgotten = [turn.forgotten for turn in self.all_turns]
        retained = self.all_turns.retained

        def tokens_of(text: str) -> int:
            self._quote = text
            return len(self.render(retained)) - len(plain)

        self._quote, quoted, self._quote_tokens = fitting_quote(
            quoted, self.all_turns[-1].user, window, tokens_of
        )
        if not quoted:
            return plain, ()
        ids = self.render(retained)
        if is_too_long(ids, window):
            ids = self._forget_oldest()
        if is_too_long(ids, window):
            self._quote = ""
            for turn, was_forgotten in zip(self.all_turns, forgotten, strict=True):
                turn.forgotten = was_forgotten
            return plain, ()
        return ids, quoted

    def evict_quote(self) -> bool:
        """Evict the quote from the cache; False if there is none or it cannot be evicted."""
        if not self._quote:
            return False
        text, self._quote = self._quote, ""
        ids = self.render(self.all_turns.retained)
        if not self._held.evict(ids, len(self.prompt) - len(ids)):
            self._quote = text
            return False
        self.prompt = ids
        return True

    def end_quote(self) -> None:
        """Take the quote out of the window. If layers would remember it, or it cannot be evicted,
        what follows it goes too, and the next turn prefills that again."""
        unquoted, self._unquoted = self._unquoted, None
        if unquoted is not None:
            self._quote = ""
            self._held = unquoted
            self._evict_forgotten()
        elif self._quote and not self.evict_quote():
            self._quote = ""
            with suppress(CacheError):
                self._held.rewind_to(self.render(self.all_turns.retained))
            self._held.turns = self.all_turns.retained[:-1]

    def _evict_forgotten(self) -> None:
        """Evict the turns that were forgotten while the last one was answered."""
        last = self.all_turns[-1]
        before = [turn for turn in self.turns if turn is not last]
        retained = [turn for turn in before if not turn.forgotten]
        if len(retained) < len(before):
            ids = self.render([*retained, last])
            if not self._held.evict(ids, len(self.render([*before, last])) - len(ids)):
                self.restart()
        self._held.turns = retained

    def _forgot(self, turns: Sequence[Turn], tokens: int) -> Forgot:
        window, numbers = self.settings.max_kv_size, self.all_turns.numbers_of(turns)
        # If a turn is larger than the window, most of its tokens left before the turn does.
        in_view = tokens if window is None else min(tokens, window - self.ledger.keep)
        return Forgot(len(turns), in_view, numbers, turns[0].user)

    def _forget_oldest(self, on_encode: Progress | None = None) -> TokenIds:
        """Forget as few of the oldest turns as necessary, or all of them; return the rendering of
        the turns that remain."""
        oldest = may_be_forgotten(self.all_turns.retained)

        def render_without(count: int) -> TokenIds:
            for n, turn in enumerate(oldest):
                turn.forgotten = n < count
            return self.render(self.all_turns.retained, on_encode)

        def fits_without(count: int) -> bool:
            return not is_too_long(render_without(count), self.settings.max_kv_size)

        return render_without(bisect_left(range(len(oldest)), True, key=fits_without))

    def _pinned_turns(self) -> list[Turn]:
        """All but the one that is being answered."""
        return [turn for turn in self.all_turns.retained[:-1] if turn.pinned]

    def room_next_to_pins(self, written: int) -> int | None:
        """How many tokens may follow those `written` of a reply before it would push out a pinned
        turn; None: any number."""
        window, pinned = self.settings.max_kv_size, self._pinned_turns()
        if window is None or not pinned:
            return None
        return window - len(self.render([*pinned, self.all_turns[-1]])) - written

    def full(self) -> WindowFull:
        """The error for a reply that has no room left to continue in."""
        window = f"the window of {self.settings.max_kv_size:,} tokens is full"
        return WindowFull(f"{window} next to the pinned turns: unpin them (/unpin)")

    def begin(self, ids: TokenIds) -> tuple[int, OnHeld]:
        """Rewind the cache to its common prefix with `ids`, or fill it from a known prefix. Return
        how many tokens that gives, at most `len(ids) - 1`, and a function to call with the ids of
        each step prefilled after them."""
        if not self.cache:
            self.restart()
        cached, on_held = self._place(ids), self.ledger.add
        if cached == 0 and self.prefixes is not None:
            if any(part.total for part in windows(self.cache)):
                # Rewound tokens still count towards positions.
                self.restart()
            cached, on_held = self._held.begin_with(self.prefixes, self.model, ids)
        self._held.turns = self.all_turns.retained
        return cached, on_held

    def _place(self, ids: TokenIds) -> int:
        """Rewind the cache to its common prefix with `ids`; return the prefix's length."""
        try:
            return self._held.rewind_to(ids)
        except CacheError:
            # Recurrent layers cannot be rewound: go back to before the last turn, or start over.
            earlier = self._past[0].held.fork()
        n = len(earlier.ledger)
        if 0 < n < len(ids) and earlier.ledger.common_prefix(ids) == n:
            self._held = earlier
            return n
        self.restart()
        return 0

    @property
    def is_full(self) -> bool:
        window = self.settings.max_kv_size
        return window is not None and len(self.ledger) >= window

    def forget_oldest_in_place(self) -> Forgot | None:
        """Evict the oldest turn while the last one is being answered; None if no turn is left or it
        cannot be evicted."""
        ids, leaving = self.prompt, list[Turn]()
        for oldest in may_be_forgotten(self.all_turns.retained):
            oldest.forgotten = True
            leaving.append(oldest)
            ids = self.render(self.all_turns.retained)
            # A turn that the template rejects has none.
            if tokens := len(self.prompt) - len(ids):
                if self._held.evict(ids, tokens):
                    self.prompt = ids
                    self._held.turns = self.all_turns.retained
                    return self._forgot(leaving, tokens)
                break
        for turn in leaving:
            turn.forgotten = False
        return None

    # Going back

    def begin_turn(self) -> None:
        """Remember the state before the turn."""
        self._quote, self._unquoted, self.recalled = "", None, ()
        self._past.append(Before.of(self.all_turns, self._held, self.rendering.note))

    def go_back_to(self, turns: int) -> None:
        """Restore the state from when there were `turns` turns, if it is remembered."""
        while self._past:
            before = self._past.pop()
            if before.turns == turns:
                self._go_back(before)
                break

    def take_back(self, *, note: bool) -> bool:
        """Take back what a continuation added to the last reply, or what was changed of the `note`;
        False if the last change was another."""
        last = self._past[-1] if self._past else None
        if last is None or last.turns != len(self.all_turns) or last.is_of_note != note:
            return False
        self._go_back(self._past.pop())
        return True

    def _go_back(self, before: Before) -> None:
        before.restore(self.all_turns)
        if before.note != self.rendering.note:
            self.rendering = replace(self.rendering, note=before.note)
            self._pinned_tokens = self.rendering.count_pinned()
        self._held, self._quote, self._unquoted = before.held, "", None

    def drop(self) -> None:
        """Drop the cache: the next turn starts with an empty one."""
        self._held = Held.nothing(self.ledger.window, self.ledger.keep)
        self._quote, self._unquoted = "", None
        self._past.clear()
