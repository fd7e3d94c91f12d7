"""The answer to one turn: room is made, then its tokens come, and turns that no longer fit leave.

What the template renders is compared with the window, token by token; the rest is prefilled.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mlxchat.cache.layers import recurrent_states
from mlxchat.chat.memory import with_quote
from mlxchat.chat.rendering import RESERVE, Rendering, fitted, is_too_long
from mlxchat.chat.state import Forgot, Said, State, Turn
from mlxchat.chat.window import BeginPrefix, Window
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.constrained import Constrained
from mlxchat.engine.drafts import Drafter
from mlxchat.engine.generate import after_reading, generate
from mlxchat.engine.prefill import Pace
from mlxchat.engine.reply import LoopDetector, Reply, Stats, asked, nothing_done
from mlxchat.engine.sampling import SEEDS, Token
from mlxchat.errors import WindowFull
from mlxchat.models.model import Model
from mlxchat.settings import CacheSettings, GenerationSettings, SamplingSettings
from mlxchat.text.encoder import TokenIds
from mlxchat.text.tokens import Prompt
from mlxchat.units import Progress


class StoppedEncoding(Exception):
    """The turn was stopped before its prompt was ready."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What a caller of a turn watches, and how it ends the turn early.

    `on_encode` counts characters while a long text is tokenized, `on_prefill` the tokens that are
    read, and `on_note` those written of a note. `should_stop` is called between steps, `on_end`
    when the reply has ended, before it is saved.
    """

    on_encode: Progress | None = None
    on_prefill: Progress | None = None
    on_note: Progress | None = None
    should_stop: Callable[[], bool] = lambda: False
    on_end: Callable[[], object] = lambda: None

    def count_encoding(self, done: int, total: int) -> None:
        """Raises StoppedEncoding if the turn should stop before the end."""
        if self.on_encode is not None:
            self.on_encode(done, total)
        if done < total and self.should_stop():
            raise StoppedEncoding


UNWATCHED = Watch()


@dataclass(eq=False)
class Means:
    """What replies are written with: the model, its template, and settings."""

    model: Model
    settings: CacheSettings
    rendering: Rendering
    sampling: SamplingSettings
    generation: GenerationSettings
    begin_prefix: BeginPrefix | None
    drafter: Drafter | None
    pace: Pace


@dataclass(frozen=True, slots=True)
class Earlier:
    """A state to go back to, and the window as it was."""

    state: State
    window: Window | None


@dataclass(slots=True)
class Answering:
    """Answers the last turn of `state`, or continues its answer, in `window`: `said` changes both.

    `earlier` are states of before, the latest last. `recall` finds the turns to quote before the
    message. The `prefill` begins the answer. `read` may hold more of the `prompt`, which is
    rendered for the turn. `recalled` are the turns quoted, `has_answer` is whether any text came.
    """

    means: Means
    state: State
    window: Window
    seed: int
    watch: Watch
    earlier: Sequence[Earlier]
    recall: Callable[[State], Sequence[int]]
    constraint: Constraint | None = None
    prefill: str | None = None
    read: Window | None = None
    prompt: TokenIds = field(init=False)
    recalled: tuple[int, ...] = field(default=(), init=False)
    has_answer: bool = field(default=False, init=False)
    _stats: Stats = field(init=False)
    # Tokens that had been evicted before, and those that left to make room.
    _evicted: int = field(init=False)
    _left: int = field(default=0, init=False)
    # While tokens are generated.
    _reply: Reply | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        complete = None if self.constraint is None else False
        self._stats = replace(nothing_done(self.window.cache), complete=complete)
        self._evicted = self._stats.evicted_tokens

    @property
    def stats(self) -> Stats:
        stats = self._stats if self._reply is None else self._reply.stats
        evicted = max(stats.evicted_tokens - self._evicted, 0)
        return replace(stats, evicted_tokens=evicted + self._left)

    @property
    def rendering(self) -> Rendering:
        return self.means.rendering

    def said(self) -> Generator[Said]:
        """The tokens of the reply, or of the rest of it, and what leaves the window. Raises
        StoppedEncoding, with nothing changed, WindowFull, and what rejects the message."""
        yield from self.make_room()
        try:
            yield from self._tokens()
        except GeneratorExit:
            self._end_quote()
            raise
        self._end_quote()

    def make_room(self) -> Iterator[Said]:
        """Forget the oldest turns until the rest fits, and render it as `prompt`."""
        window, size = self.window, self.window.ledger.window
        # Turns that are not in the cache too: a device failure may have dropped it.
        window.turns = tuple(sorted({*window.turns, *self.state.in_view}))
        state, ids = fitted(self.rendering, self.state, self._limit(), self.watch.count_encoding)
        if is_too_long(ids, size) and state.pinned_earlier:
            less = "attach less (/file off)" if state.turns[-1].documents else "shorten it"
            raise WindowFull(
                f"this message does not fit next to the pinned turns in a window of {size:,} "
                f"tokens: {less}, shorten /system, or unpin them (/unpin)"
            )
        recalled = None
        if numbers := self.recall(state):
            state, ids, recalled = with_quote(self.rendering, state, ids, numbers, size)
        self.state, self.prompt = state, ids
        forgotten, evicted = leaving(self.rendering, self.state, window)
        if forgotten:
            window.evict(self.prompt, evicted)
            self._left = (forgot := self._forgot(forgotten, evicted)).tokens
            yield forgot
        if self.read is not None and self.read.holds_more(ids, window):
            window.ledger, window.cache = self.read.ledger, self.read.cache
        if recalled is not None:
            self.recalled = recalled.numbers
            yield recalled

    def _limit(self) -> int | None:
        """The window to fit the prompt in. A reply that continues evicts older turns once it fills
        the window, as it would while being written, before any of its own tokens."""
        turn, size = self.state.turns[-1], self.window.ledger.window
        if size is None or not (begun := turn.thought + turn.reply):
            return size
        encode = self.rendering.tokenizer.encode
        written = encode(begun, begins=False) if turn.ids is None else turn.ids
        return size - len(written) + RESERVE - 1

    def _tokens(self) -> Generator[Said]:
        means, window, turn = self.means, self.window, self.state.turns[-1]
        prompt = self._begun(turn)
        reader, thought, answer = means.rendering.tokenizer.reader_after(prompt)
        begun = Token(None, answer if self.prefill else "")
        if not self.prefill:
            # The rest of a reply has its own stream of random numbers.
            self.seed = (self.seed + (prompt.written << 32)) % SEEDS
        if (
            turn.ids is not None
            and turn.thought.startswith(thought)
            and turn.reply.startswith(answer)
        ):
            # Without half a character or half a tag: the reader holds it back.
            later = tuple(min(place, len(thought)) for place in turn.later_thoughts)
            turn = replace(turn, thought=thought, reply=answer, later_thoughts=later)
        settings, constrained = self._within_window(prompt.written), self._constrained(prompt)
        lost = 0 if window.ledger.window is None else len(prompt.ids) - window.ledger.window
        if lost > 0:
            yield Forgot(0, lost, (len(self.state.turns),), turn.user)
        cached = window.become(prompt.ids, self._earlier_windows(), means.begin_prefix)
        window.turns = self.state.in_view
        # Also if no turn stays, or the cache is made anew.
        self._evicted = nothing_done(window.cache).evicted_tokens
        if means.drafter is not None and not len(means.drafter.history):
            means.drafter.history.extend(prompt.ids[:cached])
        self._reply = reply = Reply(
            window.model,
            prompt.ids,
            window.cache,
            sampling=replace(means.sampling, seed=self.seed),
            settings=settings,
            cached_tokens=cached,
            reader=reader,
            constrained=constrained,
            drafter=means.drafter,
        )
        tokens = generate(
            reply,
            ends=[LoopDetector(), asked(self.watch.should_stop)],
            step_size=means.settings.prefill_step_size,
            pace=means.pace,
            on_prefill=self.watch.on_prefill,
            on_held=window.add,
        )
        # With what had left before a reply that goes on in its window.
        overflowed = window.ledger.overflowed - max(cached - len(window.ledger), 0)
        generated: list[int] = []
        in_place = True
        try:
            for token in after_reading([begun] if begun.text else [], tokens):
                # Nothing has been shown yet: the message can still be taken back.
                if not self.has_answer and self.watch.should_stop():
                    break
                if token.id is not None:
                    generated.append(token.id)
                if token.text and token is not begun:
                    self.has_answer = True
                turn = turn.plus(token)
                self.state = self.state.with_last(turn)
                yield token
                while in_place and window.is_full:
                    forgot, in_place = self._evict_in_place()
                    if forgot is not None:
                        yield forgot
        finally:
            self._stats, self._reply = reply.stats, None
            written = np.concatenate([prompt.begun, np.array(generated, np.int32)])
            turn = replace(turn, ids=written, finish_reason=self._stats.finish_reason)
            self.state = self.state.with_last(turn)
        if (evicted := window.ledger.overflowed - overflowed) > max(lost, 0):
            yield Forgot(0, evicted, (len(self.state.turns),))

    def _begun(self, turn: Turn) -> Prompt:
        """The prompt, and what there is of the reply, or is given of it."""
        if turn.ids is not None:
            return Prompt(np.concatenate([self.prompt, turn.ids]), written=len(turn.ids))
        text, newlines = self.prefill or turn.reply, self.constraint is None
        return self.rendering.tokenizer.with_beginning(
            Prompt(self.prompt), text, thought=turn.thought, newlines=newlines
        )

    def _constrained(self, prompt: Prompt) -> Constrained | None:
        """The constraint on the reply that the prompt asks for, and may have begun."""
        if self.constraint is None:
            return None
        rendering = self.rendering
        return Constrained(self.constraint, rendering.tokenizer, prompt, may_think=rendering.thinks)

    def _within_window(self, written: int) -> GenerationSettings:
        """The settings with no more tokens than there is room for, next to the pinned turns."""
        size, pinned = self.window.ledger.window, self.state.pinned_earlier
        if size is None or not pinned:
            return self.means.generation
        others = self.rendering.ids(self.state.only(*pinned, self.state.turns[-1]))
        room = size - len(others) - written
        if room < 1:
            window = f"the window of {size:,} tokens is full"
            raise WindowFull(f"{window} next to the pinned turns: unpin them (/unpin)")
        most = self.means.generation.max_tokens
        return replace(self.means.generation, max_tokens=room if most < 0 else min(most, room))

    # What leaves the window

    def _forgot(self, numbers: tuple[int, ...], tokens: int) -> Forgot:
        size, oldest = self.window.ledger.window, self.state.turns[numbers[0] - 1]
        # If a turn is larger than the window, most of its tokens left before the turn does.
        if len(numbers) == 1 and size is not None:
            tokens = min(tokens, size - self.window.pinned)
        return Forgot(len(numbers), tokens, numbers, oldest.question)

    def _earlier_windows(self) -> Iterator[Window]:
        """Forks of those before the latest turns, without the turns that were forgotten."""
        for each in reversed(self.earlier):
            if each.window is not None and each.window.cache:
                window = each.window.fork()
                forgotten, tokens = leaving(self.rendering, self.state, window)
                if not forgotten or window.evict(self.rendering.ids(self.state), tokens):
                    yield window

    def _evict_in_place(self) -> tuple[Forgot | None, bool]:
        """Evict the quote, or else the oldest turn, during the answer. False if nothing can be."""
        if self.state.quote and self._shrink(replace(self.state, quote="")):
            return None, True
        leaving = ()
        for number in self.state.may_be_forgotten:
            leaving = (*leaving, number)
            # A turn that the template rejects has no tokens.
            if tokens := self._shrink(self.state.forget(leaving)):
                return self._forgot(leaving, tokens), True
        return None, False

    def _shrink(self, state: State) -> int:
        """Evict what this state lacks; return its tokens, 0 if nothing was evicted."""
        ids = self.rendering.ids(state)
        tokens = len(self.prompt) - len(ids)
        if not self.window.evict(ids, tokens):
            return 0
        self.state, self.prompt, self.window.turns = state, ids, state.in_view
        return tokens

    def _end_quote(self) -> None:
        """Take the quote out of the window. If layers would remember it, or it cannot be evicted,
        what follows it goes too, and the next turn prefills that again."""
        if not self.recalled:
            return
        state = replace(self.state, quote="")
        if recurrent_states(self.window.cache) or (self.state.quote and not self._shrink(state)):
            self.state = state
            self.window.become(self.rendering.ids(state), self._earlier_windows())
            self.window.turns = state.in_view[:-1]


def leaving(rendering: Rendering, state: State, window: Window) -> tuple[tuple[int, ...], int]:
    """The turns that a window was for and that have been forgotten, and their tokens."""
    turns = state.turns
    forgotten = tuple(n for n in window.turns if n <= len(turns) and turns[n - 1].forgotten)
    if not forgotten:
        return (), 0
    before = state.change(forgotten, forgotten=False)
    return forgotten, len(rendering.ids(before)) - len(rendering.ids(state))
