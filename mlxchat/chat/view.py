"""The model's view of a conversation: its state, its window, and earlier ones of both.

The template's rendering of the state is compared, token by token, with the window; only the
difference is prefilled. When the turns no longer fit, the oldest are evicted whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlxchat.cache import Cache
from mlxchat.cache.layers import recurrent_states
from mlxchat.chat.memory import fitting_quote
from mlxchat.chat.rendering import NOTHING, Rejected, Rendering
from mlxchat.chat.room import check_note, check_room, fitted, is_too_long
from mlxchat.chat.state import State
from mlxchat.chat.turn import Forgot, Quoted, Recalled, Turn, Usage
from mlxchat.chat.window import KnownPrefixes, Window
from mlxchat.errors import CacheError, WindowFull
from mlxchat.models.model import Model
from mlxchat.settings import CacheSettings
from mlxchat.text.spans import TokenIds
from mlxchat.units import Progress

# Earlier states that are remembered, and of how many the window is.
STATES = 64
WINDOWS = 2


@dataclass(slots=True)
class Earlier:
    """A state to go back to, and the window as it was."""

    state: State
    window: Window | None


class View:
    """The latest turns of `state`, as many as fit in the model's window.

    The system prompt is pinned: it is in the cache once and is never evicted. `prompt` is the
    rendering for the last turn. Raises what `begin` raises.
    """

    def __init__(
        self,
        model: Model,
        settings: CacheSettings,
        rendering: Rendering,
        state: State,
        *,
        prefixes: KnownPrefixes | None,
    ) -> None:
        self.model = model
        self.settings = settings
        self.rendering = rendering
        self.prefixes = prefixes
        self.prompt = NOTHING
        # The turns that were quoted for the last message.
        self.recalled: tuple[Quoted, ...] = ()
        self._past = deque[Earlier](maxlen=STATES)
        self.begin(state)

    def begin(self, state: State) -> None:
        """Take up this state with an empty window: the next turn prefills the retained turns.

        Raises CacheError if the pinned tokens leave no room, TemplateError or InputError if they
        are rejected; either way, nothing changes.
        """
        self._open(state)
        self._past.clear()

    def _open(self, state: State) -> None:
        size = self.settings.max_kv_size
        pinned = check_room(self.rendering, state, size)
        keep = 0 if size is None else pinned
        self.window = Window.make(self.model, size, keep, state.in_view)
        self.state, self.pinned_tokens = state, pinned

    @property
    def is_current(self) -> bool:
        """Whether the window holds the retained turns; not after /forget, for example."""
        return self.window.turns == self.state.in_view and len(self.window.ledger) > 0

    @property
    def tokens(self) -> int:
        """Tokens in the window; if it is out of date, the tokens before the next message."""
        if self.is_current:
            return len(self.window.ledger)
        turns = self.rendering.tokens_of(self.state, *self.state.retained)
        return self.pinned_tokens + turns

    def usage(self) -> Usage:
        """Tokens in the window, by turn. For the last turn, those in the cache."""
        turns = self.state.retained
        sizes = [self.rendering.tokens_of(self.state, turn) for turn in turns]
        if turns:
            sizes[-1] = max(self.tokens - self.pinned_tokens - sum(sizes[:-1]), 0)
        counted = tuple(zip(turns, sizes, strict=True))
        return Usage(self.pinned_tokens, counted, self.settings.max_kv_size, self.note_tokens)

    @property
    def note_tokens(self) -> int:
        """The tokens that the note adds to the system prompt."""
        if self.state.note is None:
            return 0
        without = self.rendering.count_pinned(replace(self.state, note=None))
        # It replaces a system prompt that the template has by default.
        return max(self.pinned_tokens - without, 0)

    def set_note(self, text: str | None, noted: Sequence[int] = ()) -> None:
        """Replace the note, and forget the turns that it was written about. The next turn prefills
        the others again. Raises UsageError, with nothing changed, if it does not fit."""
        if text is not None:
            check_note(self.rendering, self.state, self.settings.max_kv_size, text)
        before = Earlier(self.state, self.window)
        self.begin(replace(self.state.forget(noted), note=text))
        self._past.append(before)

    def set_variables(self, variables: Mapping[str, Any], args: Mapping[str, Any]) -> None:
        """Change the variables of the template. Raises what `begin` raises."""
        before = self.rendering
        self.rendering = replace(before, variables=dict(variables), template_args=dict(args))
        try:
            if self.rendering.count_pinned(self.state) != self.pinned_tokens:
                self.begin(self.state)
        except (CacheError, *Rejected):
            self.rendering = before
            raise

    def aside(self, ids: TokenIds) -> tuple[Cache, int]:
        """A cache for a prompt that is not part of the conversation, and how many of its tokens it
        holds: those that the conversation begins with, too."""
        window = self.window.fork()
        cached = window.become(ids)
        if cached:
            return window.cache, cached
        return self.model.make_cache(window.ledger.window, window.ledger.keep), 0

    # A turn: make room, fill in its prompt, evict while it is answered

    def make_room(
        self, on_encode: Progress, recall: Callable[[State], Sequence[Quoted]]
    ) -> Iterator[Forgot | Recalled]:
        """Forget the oldest turns until the rest fits, and render it as `prompt`.

        `recall` returns the turns to quote before the message.
        `on_encode` may raise, to stop before anything is evicted. Raises WindowFull.
        """
        # Turns that are not in the cache too: a device failure may have dropped it.
        self.window.turns = tuple(sorted({*self.window.turns, *self.state.in_view}))
        size = self.settings.max_kv_size
        state, ids = fitted(self.rendering, self.state, size, on_encode)
        if is_too_long(ids, size) and self._pinned_turns(state):
            raise WindowFull(
                f"this message does not fit next to the pinned turns in a window of {size:,} "
                "tokens: shorten it, or unpin them (/unpin)"
            )
        quoted, tokens = recall(state), 0
        if quoted:
            state, ids, quoted, tokens = self._with_quote(state, ids, quoted)
        self.state, self.prompt = state, ids
        forgotten, evicted = self._leaving(self.window)
        if forgotten:
            self.window.evict(ids, evicted)
            yield self._forgot(forgotten, evicted)
        if quoted:
            self.recalled = tuple(quoted)
            yield Recalled(self.recalled, tokens)

    def _with_quote(
        self, plain: State, ids: TokenIds, quoted: Sequence[Quoted]
    ) -> tuple[State, TokenIds, Sequence[Quoted], int]:
        """The state with these turns quoted before the message, its rendering, which of them are
        quoted, and the quote's tokens: only the last turn, if there is no room for more; none, if
        they do not fit."""
        size = self.settings.max_kv_size

        def tokens_of(text: str) -> int:
            return len(self.rendering.ids(replace(plain, quote=text))) - len(ids)

        quote, quoted, tokens = fitting_quote(quoted, plain.turns[-1].user, size, tokens_of)
        if quoted:
            state, with_quote = fitted(self.rendering, replace(plain, quote=quote), size)
            if not is_too_long(with_quote, size):
                return state, with_quote, quoted, tokens
        return plain, ids, (), 0

    def _leaving(self, window: Window) -> tuple[tuple[int, ...], int]:
        """The turns that a window was for and that have been forgotten, and their tokens."""
        turns = self.state.turns
        leaving = tuple(n for n in window.turns if n <= len(turns) and turns[n - 1].forgotten)
        if not leaving:
            return (), 0
        before = self.state.change(leaving, forgotten=False)
        return leaving, len(self.rendering.ids(before)) - len(self.rendering.ids(self.state))

    def _forgot(self, numbers: tuple[int, ...], tokens: int) -> Forgot:
        window, oldest = self.settings.max_kv_size, self.state.turns[numbers[0] - 1]
        # If a turn is larger than the window, most of its tokens left before the turn does.
        in_view = tokens if window is None else min(tokens, window - self.pinned_tokens)
        return Forgot(len(numbers), in_view, numbers, oldest.user)

    def _pinned_turns(self, state: State) -> list[Turn]:
        """All but the one that is being answered."""
        return [turn for turn in state.retained[:-1] if turn.pinned]

    def room_next_to_pins(self, written: int) -> int | None:
        """How many tokens may follow those `written` of a reply before it would push out a pinned
        turn; None: any number."""
        window, pinned = self.settings.max_kv_size, self._pinned_turns(self.state)
        if window is None or not pinned:
            return None
        others = self.state.only(*pinned, self.state.turns[-1])
        return window - len(self.rendering.ids(others)) - written

    def become(self, ids: TokenIds) -> int:
        """Let the window hold as much of `ids` as it can without computing, from earlier windows
        and from known prefixes too; return how many tokens that gives, at most `len(ids) - 1`."""
        cached = self.window.become(ids, self._earlier_windows())
        if cached == 0 and self.prefixes is not None:
            cached = self.window.fill(ids, self.prefixes)
        self.window.turns = self.state.in_view
        return cached

    def _earlier_windows(self) -> Iterator[Window]:
        """Forks of those before the latest turns, without the turns that were forgotten."""
        for each in reversed(self._past):
            if each.window is not None and each.window.cache:
                window = each.window.fork()
                forgotten, tokens = self._leaving(window)
                if not forgotten or window.evict(self.rendering.ids(self.state), tokens):
                    yield window

    @property
    def is_full(self) -> bool:
        window = self.settings.max_kv_size
        return window is not None and len(self.window.ledger) >= window

    def evict_in_place(self) -> bool | Forgot:
        """Evict the quote, or else the oldest turn, while the last turn is being answered. False if
        nothing is left that can be evicted."""
        if self.state.quote and self._shrink(replace(self.state, quote="")):
            return True
        leaving = ()
        for number in self.state.may_be_forgotten:
            leaving = (*leaving, number)
            # A turn that the template rejects has no tokens.
            if tokens := self._shrink(self.state.forget(leaving)):
                return self._forgot(leaving, tokens)
        return False

    def _shrink(self, state: State) -> int:
        """Evict what this state lacks; return its tokens, 0 if nothing was evicted."""
        ids = self.rendering.ids(state)
        tokens = len(self.prompt) - len(ids)
        if not self.window.evict(ids, tokens):
            return 0
        self.state, self.prompt, self.window.turns = state, ids, state.in_view
        return tokens

    def end_quote(self) -> None:
        """Take the quote out of the window. If layers would remember it, or it cannot be evicted,
        what follows it goes too, and the next turn prefills that again."""
        if not self.recalled:
            return
        state = replace(self.state, quote="")
        remembered = bool(recurrent_states(self.window.cache))
        if remembered or (self.state.quote and not self._shrink(state)):
            self.state = state
            self.window.become(self.rendering.ids(state), self._earlier_windows())
            self.window.turns = state.in_view[:-1]

    # Going back

    def remember(self) -> None:
        """Remember the state before a turn."""
        self.recalled = ()
        self._past.append(Earlier(self.state, self.window.fork()))
        if len(self._past) > WINDOWS:
            self._past[-1 - WINDOWS].window = None

    def go_back(self, turns: int) -> None:
        """Return to the latest state that had this many turns; if none is remembered, drop those
        after it. Turns that were pinned since then stay pinned."""
        while self._past:
            before = self._past.pop()
            if len(before.state.turns) == turns:
                self._restore(before)
                return
        while len(self.state.turns) > turns:
            self.state = self.state.without_last()

    def _restore(self, before: Earlier) -> None:
        state = before.state.with_pins(self.state.pinned)
        if before.window is not None:
            self.window, self.state = before.window, state
            self.pinned_tokens = self.rendering.count_pinned(state)
        elif state.note != self.state.note:
            self._open(state)
        else:
            self.state = state

    def take_back(self, *, note: bool) -> bool:
        """Take back what a continuation added to the last reply, or what was changed of the `note`;
        False if the last change was another."""
        last = self._past[-1].state if self._past else None
        if last is None or len(last.turns) != len(self.state.turns):
            return False
        if (last.note != self.state.note) != note:
            return False
        self.go_back(len(last.turns))
        return True

    def drop(self) -> None:
        """Drop the window: the next turn starts with an empty one."""
        self.window.drop()
        self.state = replace(self.state, quote="")
        self._past.clear()
