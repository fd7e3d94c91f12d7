"""A conversation: saying something, answering again, continuing a reply. No input, no output.

What the model sees of it is `memory`'s business.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from mlxchat.cache import Cache
from mlxchat.cache.layers import windows
from mlxchat.chat.ledger import TokenIds
from mlxchat.chat.memory import Memory
from mlxchat.chat.random_streams import random_seed, stream_of
from mlxchat.chat.rendering import NOTHING, Rendering
from mlxchat.chat.turn import Forgot, Said, Turn
from mlxchat.chat.watch import StoppedEncoding, Watch
from mlxchat.engine.generate import (
    Generation,
    OnHeld,
    Progress,
    ShouldStop,
    Stats,
    nothing_done,
)
from mlxchat.engine.pace import Pace
from mlxchat.errors import DeviceError, WindowFull
from mlxchat.failures import device_failures
from mlxchat.models.model import Model
from mlxchat.settings import CacheSettings, GenerationSettings, Roll, SamplingSettings
from mlxchat.text.reply_reader import Reader
from mlxchat.text.thinking import joined


class Prefixes(Protocol):
    """Remembers prompt prefixes across conversations."""

    def begin(
        self, model: Model, cache: Cache, ids: TokenIds, window: int | None
    ) -> tuple[int, OnHeld | None]:
        """Fill the empty cache with the known prefix of `ids`; return how many tokens that is, and
        what to call with the ids of each step that is prefilled after it."""
        ...


class Conversation(Memory):
    """Turns with a model at a fixed window.

        conversation = Conversation(model, CacheSettings(512), system="Be brief.")
        for said in conversation.say("The capital of France?"):
            print(said.text, end="", flush=True)

    `system` is pinned: it is in the cache once and is never evicted. If fewer than `settings.keep`
    tokens come before the first user's text, as many of the first turn stay as well.
    `variables` go to the chat template, and the user's own `template_args` override them.

    One seed, `sampling.seed` or one that nobody chose, is enough: each turn, each retry and each
    continuation draws from a stream of its own, derived from it.

    Raises TemplateError if the model has no template, CacheError if the pinned beginning leaves no
    room in the window.
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
        self.sampling = sampling or SamplingSettings()
        self.generation = generation or GenerationSettings()
        # The seed that the last reply was drawn with.
        self.reply_seed = 0
        self._any_seed = random_seed()
        self._retries = 0
        self._prefixes = prefixes
        self._pace = Pace.of(model.network)
        self._stats: Stats | None = None
        self._generation: Generation | None = None
        args = dict(template_args or {})
        rendering = Rendering(model.tokenizer, system, dict(variables or {}), args)
        super().__init__(model, settings or CacheSettings(keep=0), rendering, roll)

    @property
    def seed(self) -> int:
        """What all streams of random numbers are derived from."""
        return self._any_seed if self.sampling.seed is None else self.sampling.seed

    @property
    def stats(self) -> Stats | None:
        """What the last reply took, or so far the one that is being written."""
        return self._stats if self._generation is None else self._generation.stats

    # Turns

    def say(
        self,
        text: str,
        *,
        on_encode: Progress | None = None,
        on_prefill: Progress | None = None,
        should_stop: ShouldStop | None = None,
    ) -> Generator[Said]:
        """Add a turn; the iterator returned yields the tokens of the reply, and what was forgotten
        to make room for it. `on_encode` counts characters of long texts that are turned into
        tokens, `on_prefill` tokens.

        A reply that ends early, for whatever reason, is closed properly when the next turn begins.
        Stopped before its first token, the turn is taken back. The iterator raises WindowFull if
        the turn does not fit and nothing may be forgotten; then it is as if it had not been said.
        It raises DeviceError if the device gives out: the turn stays, with what was said of the
        reply, and the next turn reads again all that is retained.
        """
        self._retries = 0
        return self._say(text, self._next_stream(), Watch(on_encode, on_prefill, should_stop))

    def retry(
        self,
        *,
        on_encode: Progress | None = None,
        on_prefill: Progress | None = None,
        should_stop: ShouldStop | None = None,
    ) -> Generator[Said]:
        """Answer the last turn again, with other random numbers. If nothing new comes of it, the
        old reply stays. Raises as `say` does."""
        self._retries += 1
        seed = self._next_stream()
        old = self.undo()
        before = len(self.turns)
        reply = self._say(old.user, seed, Watch(on_encode, on_prefill, should_stop))
        return self._or_else(reply, before, old)

    def continue_reply(
        self,
        *,
        on_encode: Progress | None = None,
        on_prefill: Progress | None = None,
        should_stop: ShouldStop | None = None,
    ) -> Generator[Said]:
        """Continue the last reply where it ended, as if it had not. If nothing comes of it, the
        reply stays as it is. Raises DeviceError as `say` does."""
        watch = Watch(on_encode, on_prefill, should_stop)
        return self._or_let_go(self._continuation(self.turns[-1], watch))

    def with_model(
        self, model: Model, settings: CacheSettings, sampling: SamplingSettings
    ) -> Conversation:
        """The same conversation with another model, which reads again what is retained. Raises
        what making a conversation raises; then this one can still be used."""
        other = Conversation(
            model,
            settings,
            system=self.system,
            roll=self.roll,
            sampling=sampling,
            generation=self.generation,
            variables=self.variables,
            template_args=self.template_args,
            prefixes=self._prefixes,
        )
        other.resume(self.system, self.turns)
        other._any_seed, other._retries = self._any_seed, self._retries
        for turn in other.turns:
            # Another tokenizer spells otherwise.
            turn.ids, turn.exact = None, False
        return other

    # Saying

    def _next_stream(self, written: int = 0) -> int:
        return stream_of(self.seed, len(self.turns), self._retries, written)

    def _say(self, text: str, seed: int, watch: Watch) -> Generator[Said]:
        self._begin_turn()
        self._stats = nothing_done(self.cache)
        self.reply_seed = seed
        turn = Turn(text)
        self.turns.append(turn)
        return self._or_let_go(self._reply(turn, watch))

    def _reply(self, turn: Turn, watch: Watch) -> Generator[Said]:
        try:
            yield from self._make_room(watch.count_encoding)
        except WindowFull:
            self.undo()
            raise
        except StoppedEncoding:
            self.undo()
            return
        yield from self._answer(turn, NOTHING, watch)
        if not (turn.reply or turn.thought) and turn.finish_reason == "interrupted":
            self.undo()

    def _continuation(self, turn: Turn, watch: Watch) -> Generator[Said]:
        self._begin_turn()
        self._stats = nothing_done(self.cache)
        turn.forgotten = False
        try:
            yield from self._make_room(watch.count_encoding)
        except StoppedEncoding:
            self.take_back_continuation()
            return
        written = turn.ids
        if written is None:
            tokenizer = self.model.tokenizer
            written = tokenizer.encode_reply(turn.reply, turn.thought, self._prompt)
        self.reply_seed = self._next_stream(len(written))
        old, has_text, failed = replace(turn), False, True
        try:
            for said in self._answer(turn, written, watch):
                has_text = has_text or bool(said.text)
                yield said
            failed = turn.finish_reason == "interrupted"
        finally:
            if failed and not has_text:
                turn.become(old)

    def _or_else(self, reply: Generator[Said], before: int, old: Turn) -> Generator[Said]:
        """The reply; if nothing new comes of it, the old turn is put back."""
        try:
            yield from reply
        except DeviceError:
            if not (self.turns[-1].reply or self.turns[-1].thought):
                del self.turns[before:]
            raise
        finally:
            if len(self.turns) == before:
                self.turns.append(old)

    def _or_let_go(self, reply: Generator[Said]) -> Generator[Said]:
        """The reply. If the device gives out anywhere in the turn, what the cache holds is let go:
        it may be half moved, and what was computed cannot be trusted."""
        try:
            with device_failures():
                yield from reply
        except DeviceError:
            self._let_go()
            raise

    # Answering

    def _answer(self, turn: Turn, written: TokenIds, watch: Watch) -> Generator[Said]:
        """Generate the reply, or what follows the tokens of it that are `written` already."""
        if not self.cache:
            self.restart()
        ids = np.concatenate([self._prompt, written])
        reader = self._reader_after(turn, written)
        cached, on_held = self._place(ids), self.ledger.add
        if cached == 0:
            cached, on_held = self._begin_with_known_prefix(ids)
        self._held.turns = self.retained
        generation = Generation(
            self.model,
            ids,
            self.cache,
            sampling=replace(self.sampling, seed=self.reply_seed),
            settings=self._within_window(self.generation, len(ids)),
            prefill_step_size=self.settings.prefill_step_size,
            pace=self._pace,
            cached_tokens=cached,
            reply=reader,
            on_prefill=watch.on_prefill,
            on_held=on_held,
            should_stop=watch.should_stop,
        )
        self._generation = generation
        overflowed = self.ledger.overflowed
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
                while in_place and self._is_full():
                    tokens = self._forget_oldest_in_place()
                    in_place = tokens > 0
                    if in_place:
                        yield Forgot(1, tokens)
        finally:
            turn.ids = np.concatenate([written, np.array(generated, np.int32)])
            turn.exact = self.model.tokenizer.spells(turn.ids, turn.reply, turn.thought)
            self._stats, self._generation = generation.stats, None
            turn.finish_reason = self._stats.finish_reason
        if self.ledger.overflowed > overflowed:
            yield Forgot(0, self.ledger.overflowed - overflowed)

    def _reader_after(self, turn: Turn, written: TokenIds) -> Reader:
        """What reads the rest of the reply, once the tokens of it that are `written` are read."""
        reader = self.model.tokenizer.reader(self._prompt)
        pieces = [piece for id_ in written.tolist() for piece in reader.add(id_)]
        if turn.exact:
            # What may be half a character or half a tag will be read with what completes it.
            turn.thought, turn.reply = joined(pieces)
        return reader

    def _begin_with_known_prefix(self, ids: TokenIds) -> tuple[int, OnHeld]:
        """Fill the empty cache with what is known of the prompt; return how many tokens that is,
        and what to call with those that are prefilled after it."""
        if self._prefixes is None:
            return 0, self.ledger.add
        if any(part.total for part in windows(self.cache)):
            # What was rewound has left its positions behind.
            self.restart()
        ledger, window = self.ledger, self.settings.max_kv_size
        cached, record = self._prefixes.begin(self.model, self.cache, ids, window)
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
