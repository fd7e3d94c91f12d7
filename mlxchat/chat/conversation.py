"""A conversation: its transcript, its ledger and its cache, kept in step. No input, no output.

The transcript keeps every turn for ever; the window forgets the oldest whole turns. What the
template renders for the turns that are retained is compared, token by token, with what the cache
holds, and only what differs is prefilled.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np

from mlxchat.cache import Cache
from mlxchat.cache.layers import windows
from mlxchat.chat.ledger import Ledger, TokenIds
from mlxchat.engine.generate import (
    Generation,
    OnHeld,
    Progress,
    ShouldStop,
    Stats,
    Token,
    nothing_done,
)
from mlxchat.engine.pace import Pace
from mlxchat.errors import CacheError, DeviceError, TemplateError, WindowFull
from mlxchat.failures import device_failures
from mlxchat.models.model import Model
from mlxchat.settings import CacheSettings, GenerationSettings, Roll, SamplingSettings
from mlxchat.text.reply_reader import Reader
from mlxchat.text.template import thinking_variables
from mlxchat.text.thinking import joined
from mlxchat.text.tokens import ChatMessage
from mlxchat.wording import Action, Field

NOTHING = np.empty(0, np.int32)

# Tokens left free for a reply, at the least, when a turn begins.
RESERVE = 64


@dataclass(slots=True)
class Turn:
    """What the user said and what was answered: all of it, whatever the window has forgotten.

    `thought` is what the model thought before its `reply`. `ids` are the tokens of both as they
    were generated, with the markers of the model's format; `exact` is whether they spell just that,
    and not something cut off or left out.
    """

    user: str
    reply: str = ""
    ids: TokenIds | None = None
    exact: bool = False
    pinned: bool = False
    forgotten: bool = False
    finish_reason: str = ""
    thought: str = ""


@dataclass(frozen=True, slots=True)
class Forgot:
    """So many whole turns, the oldest, have just left the window; or, where there were none left to
    leave it, so many single tokens of this very turn."""

    turns: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens in the window: of the pinned beginning, of each retained turn, and how many it can
    hold (None: any number)."""

    pinned: int
    turns: tuple[tuple[Turn, int], ...]
    held: int
    window: int | None


class Prefixes(Protocol):
    """Who remembers what prompts begin with, whoever said them."""

    def begin(
        self,
        model: Model,
        cache: Cache,
        ids: TokenIds,
        window: int | None,
    ) -> tuple[int, OnHeld | None]:
        """Fill the empty cache with the known prefix of `ids`; how many tokens that is, and what is
        to be told the ids of each step that is prefilled."""
        ...


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """All that a turn changes, from before it: a fork costs no copy until the cache is written.

    `last` is the last turn as it was then: a reply that goes on changes it.
    """

    turns: int
    last: Turn | None
    forgotten: tuple[bool, ...]
    held_turns: tuple[Turn, ...]
    cache: Cache
    ledger: Ledger


class _StoppedEncoding(Exception):
    """It was asked to stop while text was turned into tokens."""


def _until(should_stop: ShouldStop | None, on_encode: Progress | None) -> Progress:
    """`on_encode`, which raises _StoppedEncoding once `should_stop` says so."""

    def count(done: int, total: int) -> None:
        if on_encode is not None:
            on_encode(done, total)
        if done < total and should_stop is not None and should_stop():
            raise _StoppedEncoding

    return count


class Conversation:
    """Turns with a model at a fixed window. `say` answers; everything else changes what it sees.

    `system` is pinned: it is in the cache once and is never evicted. Where the tokens before the
    first user's text are fewer than `settings.keep`, as many of the first turn stay as well.
    `variables` go to the chat template, and the user's own `template_args`, which have the last
    word. Raises TemplateError where the model has no template,
    CacheError where the pinned beginning leaves no room in the window.
    """

    def __init__(
        self,
        model: Model,
        settings: CacheSettings | None = None,
        *,
        system: str | None = None,
        roll: Roll = Roll.SHIFT,
        sampling: SamplingSettings | None = None,
        generation: GenerationSettings | None = None,
        variables: Mapping[str, Any] | None = None,
        template_args: Mapping[str, Any] | None = None,
        prefixes: Prefixes | None = None,
    ) -> None:
        self.model = model
        self._pace = Pace.of(model.network)
        self._prefixes = prefixes
        self.settings = settings or CacheSettings(keep=0)
        self.system = system
        self.roll = roll
        self.sampling = sampling or SamplingSettings()
        self.generation = generation or GenerationSettings()
        self.variables = dict(variables or {})
        self.template_args = dict(template_args or {})
        self.turns: list[Turn] = []
        self._stats: Stats | None = None
        self._generation: Generation | None = None
        self.notices: tuple[str, ...] = ()
        # Turns before this one were cleared away, and no later one stands behind them.
        self._begins_at = 0
        # The turns that the ledger is made of, and what was rendered for them last.
        self._held_turns: list[Turn] = []
        self._prompt = NOTHING
        # From before the last turn, and from before the one before it.
        self._before: _Snapshot | None = None
        self._earlier: _Snapshot | None = None
        self.restart()

    # Turns

    def say(
        self,
        text: str,
        *,
        on_encode: Progress | None = None,
        on_prefill: Progress | None = None,
        should_stop: ShouldStop | None = None,
    ) -> Iterator[Token | Forgot]:
        """Add a turn; the iterator that is returned yields the reply's tokens, and what was
        forgotten to make room for it. `on_encode` counts characters of long texts that are turned
        into tokens, `on_prefill` tokens.

        A reply that ends early, for whatever reason, is closed properly when the next turn begins.
        Stopped before its first token, the turn is taken back. The iterator raises WindowFull where
        nothing may be forgotten and the turn does not fit; then it is as if it had not been said.
        It raises DeviceError if the device gives out: the turn stays, with what was said of the
        reply, and the next turn reads again all that is retained.
        """
        self._begin_turn()
        turn = Turn(text)
        self.turns.append(turn)
        return self._or_let_go(self._reply(turn, on_encode, on_prefill, should_stop))

    def _reply(
        self,
        turn: Turn,
        on_encode: Progress | None,
        on_prefill: Progress | None,
        should_stop: ShouldStop | None,
    ) -> Iterator[Token | Forgot]:
        try:
            yield from self._make_room(_until(should_stop, on_encode))
        except WindowFull:
            self.undo()
            raise
        except _StoppedEncoding:
            self.undo()
            self._stats = nothing_done(self._cache)
            return
        yield from self._answer(turn, NOTHING, on_prefill, should_stop)
        if not (turn.reply or turn.thought) and turn.finish_reason == "interrupted":
            self.undo()

    def go_on(
        self,
        *,
        on_encode: Progress | None = None,
        on_prefill: Progress | None = None,
        should_stop: ShouldStop | None = None,
    ) -> Iterator[Token | Forgot]:
        """Continue the last reply where it ended, as if it had not. If nothing comes of it, the
        reply stays as it is. Raises DeviceError as `say` does."""
        return self._or_let_go(
            self._continuation(self.turns[-1], on_encode, on_prefill, should_stop)
        )

    def _continuation(
        self,
        turn: Turn,
        on_encode: Progress | None,
        on_prefill: Progress | None,
        should_stop: ShouldStop | None,
    ) -> Iterator[Token | Forgot]:
        self._begin_turn()
        turn.forgotten = False
        try:
            yield from self._make_room(_until(should_stop, on_encode))
        except _StoppedEncoding:
            self.take_back_continuation()
            self._stats = nothing_done(self._cache)
            return
        written = turn.ids
        if written is None:
            tokenizer = self.model.tokenizer
            written = tokenizer.encode_reply(turn.reply, turn.thought, self._prompt)
        old, has_text = replace(turn), False
        failed = True
        try:
            for said in self._answer(turn, written, on_prefill, should_stop):
                has_text = has_text or (isinstance(said, Token) and bool(said.text))
                yield said
            failed = turn.finish_reason == "interrupted"
        finally:
            if failed and not has_text:
                _put_back(turn, old)

    def retry(
        self,
        *,
        on_encode: Progress | None = None,
        on_prefill: Progress | None = None,
        should_stop: ShouldStop | None = None,
    ) -> Iterator[Token | Forgot]:
        """Answer the last turn again; where nothing new comes of it, the old reply stays."""
        old = self.undo()
        before = len(self.turns)
        reply = self.say(
            old.user, on_encode=on_encode, on_prefill=on_prefill, should_stop=should_stop
        )
        return self._or_else(reply, before, old)

    def _or_else(
        self, reply: Iterator[Token | Forgot], before: int, old: Turn
    ) -> Iterator[Token | Forgot]:
        try:
            yield from reply
        except DeviceError:
            if not (self.turns[-1].reply or self.turns[-1].thought):
                del self.turns[before:]
            raise
        finally:
            if len(self.turns) == before:
                self.turns.append(old)

    def _or_let_go(self, reply: Iterator[Token | Forgot]) -> Iterator[Token | Forgot]:
        """The reply. If the device gives out anywhere in the turn, what the cache holds is let go:
        it may be half moved, and what was computed cannot be trusted."""
        try:
            with device_failures():
                yield from reply
        except DeviceError:
            self._let_go()
            raise

    def _begin_turn(self) -> None:
        self._earlier, self._before = self._before, self._snapshot()

    def undo(self) -> Turn:
        """Take the last turn back, with all that it made the window forget."""
        turn = self.turns[-1]
        for before in (self._before, self._earlier):
            if before is not None and before.turns == len(self.turns) - 1:
                self._restore(before)
                self._before = self._earlier = None
                break
        del self.turns[-1]
        self._begins_at = min(self._begins_at, len(self.turns))
        return turn

    def take_back_continuation(self) -> bool:
        """Take back what `go_on` added to the last reply; False where it was not what came last."""
        before = self._before
        if before is None or before.last is None or before.turns != len(self.turns):
            return False
        self._restore(before)
        _put_back(self.turns[-1], before.last)
        self._before, self._earlier = self._earlier, None
        return True

    def restart(self) -> None:
        """Begin with an empty cache: whatever is retained is prefilled by the next turn.

        Raises CacheError where the pinned beginning leaves no room in the window.
        """
        window = self.settings.max_kv_size
        pinned_tokens = self._count_pinned()
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
        self._cache, self._ledger, self._held_turns = Cache(), Ledger(window, keep), []
        self._pinned_tokens = pinned_tokens
        self._cache = self.model.make_cache(window, keep)

    def set_system(self, text: str | None) -> None:
        """Change the system prompt: all that is retained will be prefilled afresh behind it."""
        before, self.system = self.system, text
        try:
            self.restart()
        except CacheError:
            self.system = before
            self.restart()
            raise
        self._before = None

    def think(self, wanted: bool) -> None:
        """Turn thoughts on or off, whatever the user's own variables said of them. Raises what
        `set_template_args` raises."""
        variables = thinking_variables(wanted)
        names = thinking_variables(False)
        args = {name: each for name, each in self.template_args.items() if name not in names}
        self._set_variables(variables, args)

    def set_template_args(self, args: Mapping[str, Any]) -> None:
        """Replace the user's own variables of the template. Raises TemplateError if the template
        refuses them, CacheError if the beginning leaves no room; then they are as they were."""
        self._set_variables(self.variables, args)

    def _set_variables(self, variables: Mapping[str, Any], args: Mapping[str, Any]) -> None:
        before = self.variables, self.template_args
        self.variables, self.template_args = dict(variables), dict(args)
        try:
            self._restart_if_pinned_changed()
        except (CacheError, TemplateError):
            self.variables, self.template_args = before
            raise

    def _restart_if_pinned_changed(self) -> None:
        if self._count_pinned() != self._pinned_tokens:
            self.restart()

    def go_on_with(self, system: str | None, turns: Sequence[Turn]) -> None:
        """Replace everything by a conversation that was saved: as much of it as fits is prefilled
        by its next turn. Raises CacheError where its pinned beginning leaves no room."""
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
        """Take over what another process held of `turns`: where it is what the template renders
        for them, nothing has to be prefilled."""
        self._cache, self._ledger, self._held_turns = cache, ledger, list(turns)

    def forget(self, count: int) -> int:
        """Forget so many of the oldest turns that are not pinned; return how many there were."""
        oldest = [turn for turn in self.retained if not turn.pinned][:count]
        for turn in oldest:
            turn.forgotten = True
        return len(oldest)

    def clear(self) -> None:
        """Forget all turns, pinned ones too, and begin anew; the transcript keeps them."""
        for turn in self.turns:
            turn.forgotten, turn.pinned = True, False
        self._begins_at = len(self.turns)
        self._before = None
        self.restart()

    # What is there

    @property
    def retained(self) -> list[Turn]:
        """The turns that the model can see."""
        return [turn for turn in self.turns if not turn.forgotten]

    @property
    def last(self) -> Turn | None:
        """The last turn, if there is one since all was cleared."""
        return self.turns[-1] if len(self.turns) > self._begins_at else None

    @property
    def forgotten(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.forgotten]

    @property
    def held_ids(self) -> TokenIds:
        """What the cache holds, `(T,)`, in temporal order."""
        return self._ledger.ids

    @property
    def held_turns(self) -> list[Turn]:
        """The turns that the cache was filled for."""
        return self._held_turns

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    @property
    def cache(self) -> Cache:
        return self._cache

    @property
    def stats(self) -> Stats | None:
        """What the last reply took, or so far the one that is being written."""
        return self._stats if self._generation is None else self._generation.stats

    def usage(self) -> Usage:
        """What the window holds, by turns; tokens are counted as the template renders them."""
        counted: list[tuple[Turn, int]] = []
        so_far = len(self._render([Turn("a")]))
        for n, turn in enumerate(self._held_turns, start=1):
            rendered = len(self._render([*self._held_turns[:n], Turn("a")]))
            counted.append((turn, rendered - so_far))
            so_far = rendered
        pinned = self._pinned_tokens + len(self._kept_of_first_turn([]))
        return Usage(pinned, tuple(counted), len(self._ledger), self.settings.max_kv_size)

    # Rendering

    def _render(self, turns: Sequence[Turn], on_encode: Progress | None = None) -> TokenIds:
        """Token ids of complete turns and one to be answered, up to where its reply begins.

        Where the first turn of all is forgotten, what `keep` holds of it stands before them.
        """
        ids = self._render_alone(turns, on_encode)
        kept = self._kept_of_first_turn(turns)
        return np.concatenate([ids[: self._pinned_tokens], kept, ids[self._pinned_tokens :]])

    def _render_alone(self, turns: Sequence[Turn], on_encode: Progress | None = None) -> TokenIds:
        messages: list[ChatMessage] = []
        for turn in turns:
            messages.append(ChatMessage("user", turn.user))
            ids = turn.ids if turn.exact else None
            messages.append(ChatMessage("assistant", turn.reply, ids, turn.thought))
        variables = {**self.variables, **self.template_args}
        prompt = self.model.tokenizer.chat(
            messages[:-1], self.system, variables=variables, on_progress=on_encode
        )
        self.notices = prompt.notices
        return prompt.ids

    def _kept_of_first_turn(self, turns: Sequence[Turn]) -> TokenIds:
        start, stop = self._pinned_tokens, self.settings.keep
        first = next(iter(self.turns[self._begins_at :]), None)
        if self.settings.max_kv_size is None or start >= stop or first is None:
            return NOTHING
        if not first.forgotten or any(turn is first for turn in turns):
            return NOTHING
        alone, with_first = (self._render_alone([*t, Turn("a")]) for t in ([], [first]))
        return with_first[start : min(stop, start + len(with_first) - len(alone))]

    def _count_pinned(self) -> int:
        """Tokens before the first user's text, which no turn can change."""
        one, other = self._render_alone([Turn("a")]), self._render_alone([Turn("b")])
        return Ledger(None, 0, one).common_prefix(other)

    # Making room

    def _make_room(self, on_encode: Progress) -> Iterator[Forgot]:
        """Forget the oldest turns until the rendered ones fit, and render what is left.

        The result is in `_prompt`: an iterator cannot return it in a for loop. `on_encode` may
        raise, to stop before anything is evicted.
        """
        # Nothing of a turn need be held for it to be missed: the cache may have been let go.
        known = {id(turn) for turn in [*self._held_turns, *self.retained]}
        ids = self._render(self.retained, on_encode)
        if self._is_too_long(ids):
            if self.roll is Roll.STOP:
                raise WindowFull(
                    f"the window of {self.settings.max_kv_size:,} tokens is full, and ",
                    Field("roll"),
                    " stop lets nothing be forgotten: ",
                    Action("clear", "start a new conversation"),
                    ", or use ",
                    Field("roll", Roll.SHIFT),
                )
            ids = self._forget_until_it_fits(on_encode)
        before = [turn for turn in self.turns if id(turn) in known]
        gone = [turn for turn in before if turn.forgotten]
        if gone:
            held = self._render(before, on_encode)
            if self.roll is Roll.REFILL:
                self.restart()
            else:
                self._evict_in_place(ids, len(held) - len(ids))
            yield Forgot(len(gone), len(held) - len(ids))
        self._prompt = ids

    def _forget_until_it_fits(self, on_encode: Progress) -> TokenIds:
        """Forget as few of the oldest turns as will do, or all; return what is then rendered."""
        oldest = [turn for turn in self.retained[:-1] if not turn.pinned]

        def render_without(count: int) -> TokenIds:
            for n, turn in enumerate(oldest):
                turn.forgotten = n < count
            return self._render(self.retained, on_encode)

        counts = range(len(oldest))
        count = bisect_left(counts, True, key=lambda n: not self._is_too_long(render_without(n)))
        return render_without(count)

    def _is_too_long(self, ids: TokenIds) -> bool:
        window = self.settings.max_kv_size
        return window is not None and len(ids) + RESERVE > window

    def _oldest(self) -> Turn | None:
        """The turn to be forgotten next: never the one that is being answered."""
        return next((turn for turn in self.retained[:-1] if not turn.pinned), None)

    def _evict_in_place(self, ids: TokenIds, tokens: int) -> bool:
        """Evict a span of so many tokens after which the cache holds a beginning of `ids`, or what
        continues them. False, and nothing done, where there is none or keys cannot be shifted: then
        what differs is rewound and prefilled."""
        start = self._ledger.common_prefix(ids)
        rest, wanted = self._ledger.ids[start + tokens :], ids[start:]
        n = min(len(rest), len(wanted))
        if tokens <= 0 or n == 0 or not np.array_equal(rest[:n], wanted[:n]):
            return False
        # What the template writes before each turn is the same: each turn keeps its own.
        start = self._ledger.earliest_span(start, tokens)
        try:
            self._cache.evict(start, start + tokens)
        except CacheError:
            return False
        self._ledger.evict(start, start + tokens)
        return True

    def _place(self, ids: TokenIds) -> int:
        """Rewind the cache to what it has in common with `ids`; return how many tokens that is,
        one short of all of them at most."""
        cached = min(self._ledger.common_prefix(ids), len(ids) - 1)
        surplus = len(self._ledger) - cached
        if surplus:
            try:
                self._cache.rewind(surplus)
            except CacheError:
                return self._place_recurrent(ids)
            self._ledger.rewind(surplus)
        return cached

    def _place_recurrent(self, ids: TokenIds) -> int:
        """Recurrent layers cannot be rewound: go back to before the last turn, or begin again."""
        earlier = self._earlier
        if earlier is not None and len(earlier.ledger) < len(ids):
            n = len(earlier.ledger)
            if earlier.ledger.common_prefix(ids) == n:
                self._cache, self._ledger = earlier.cache.fork(), earlier.ledger.copy()
                return n
        self.restart()
        return 0

    # Answering

    def _answer(
        self,
        turn: Turn,
        written: TokenIds,
        on_prefill: Progress | None,
        should_stop: ShouldStop | None,
    ) -> Iterator[Token | Forgot]:
        """Generate the reply, or what follows the tokens of it that are `written` already."""
        if not self._cache:
            self.restart()
        ids = np.concatenate([self._prompt, written])
        reader = self._reader_behind(turn, written)
        cached = self._place(ids)
        on_held: OnHeld = self._ledger.add
        if cached == 0:
            cached, on_held = self._begin_with_known_prefix(ids)
        self._held_turns = self.retained
        generation = Generation(
            self.model,
            ids,
            self._cache,
            sampling=self.sampling,
            settings=self._within_window(self.generation, len(ids)),
            prefill_step_size=self.settings.prefill_step_size,
            pace=self._pace,
            cached_tokens=cached,
            reply=reader,
            on_prefill=on_prefill,
            on_held=on_held,
            should_stop=should_stop,
        )
        self._generation = generation
        overflowed = self._ledger.overflowed
        generated: list[int] = []
        in_place = True
        try:
            for token in generation:
                if token.thought:
                    turn.thought += token.text
                else:
                    turn.reply += token.text
                if token.id is not None:
                    generated.append(token.id)
                yield token
                while in_place and self._is_full() and (oldest := self._oldest()) is not None:
                    tokens = self._forget_while_answering(oldest)
                    in_place = tokens > 0
                    if in_place:
                        yield Forgot(1, tokens)
        finally:
            turn.ids = np.concatenate([written, np.array(generated, np.int32)])
            turn.exact = self.model.tokenizer.spells(turn.ids, turn.reply, turn.thought)
            self._stats, self._generation = generation.stats, None
            turn.finish_reason = self._stats.finish_reason
        if self._ledger.overflowed > overflowed:
            yield Forgot(0, self._ledger.overflowed - overflowed)

    def _let_go(self) -> None:
        """Hold nothing any more: the next turn begins with an empty cache."""
        self._cache, self._ledger = Cache(), Ledger(self._ledger.window, self._ledger.keep)
        self._held_turns = []
        self._before = self._earlier = None

    def _reader_behind(self, turn: Turn, written: TokenIds) -> Reader:
        """What reads the rest of the reply, once the tokens of it that are `written` are read."""
        reader = self.model.tokenizer.reader(self._prompt)
        pieces = [piece for id_ in written.tolist() for piece in reader.add(id_)]
        if turn.exact:
            # What may be half a character or half a tag will be read with what completes it.
            turn.thought, turn.reply = joined(pieces)
        return reader

    def _begin_with_known_prefix(self, ids: TokenIds) -> tuple[int, OnHeld]:
        """Fill the empty cache from what is known of the prompt; whom to tell what it holds."""
        if self._prefixes is None:
            return 0, self._ledger.add
        if any(part.total for part in windows(self._cache)):
            # What was rewound has left its positions behind.
            self.restart()
        ledger, window = self._ledger, self.settings.max_kv_size
        cached, record = self._prefixes.begin(self.model, self._cache, ids, window)
        ledger.add(ids[:cached])

        def on_held(step: TokenIds) -> None:
            ledger.add(step)
            if record is not None:
                record(step)

        return cached, on_held

    def _within_window(
        self, settings: GenerationSettings, prompt_tokens: int
    ) -> GenerationSettings:
        window = self.settings.max_kv_size
        if self.roll is not Roll.STOP or window is None:
            return settings
        room = window - prompt_tokens
        most = settings.max_tokens
        return replace(settings, max_tokens=room if most < 0 else min(most, room))

    def _is_full(self) -> bool:
        window = self.settings.max_kv_size
        return window is not None and len(self._ledger) >= window

    def _forget_while_answering(self, oldest: Turn) -> int:
        """Evict the oldest turn while its successor is being answered; return its tokens, or 0."""
        oldest.forgotten = True
        ids = self._render(self.retained)
        tokens = len(self._prompt) - len(ids)
        if not self._evict_in_place(ids, tokens):
            oldest.forgotten = False
            return 0
        self._prompt = ids
        self._held_turns = self.retained
        return tokens

    # Going back

    def _snapshot(self) -> _Snapshot:
        return _Snapshot(
            len(self.turns),
            replace(self.turns[-1]) if self.turns else None,
            tuple(turn.forgotten for turn in self.turns),
            tuple(self._held_turns),
            self._cache.fork(),
            self._ledger.copy(),
        )

    def _restore(self, snapshot: _Snapshot) -> None:
        for turn, forgotten in zip(self.turns, snapshot.forgotten, strict=False):
            turn.forgotten = forgotten
        self._held_turns = list(snapshot.held_turns)
        self._cache, self._ledger = snapshot.cache, snapshot.ledger


def _put_back(turn: Turn, old: Turn) -> None:
    for field in fields(Turn):
        setattr(turn, field.name, getattr(old, field.name))
