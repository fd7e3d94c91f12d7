"""A conversation: say something, retry an answer, continue a reply. Does no input or output.

`view` decides what the model sees of it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Unpack

import numpy as np

from mlxchat.cache import Cache
from mlxchat.chat.eviction import may_be_forgotten
from mlxchat.chat.ledger import Ledger
from mlxchat.chat.memory import Memory
from mlxchat.chat.note import NoteWriter, note_limit
from mlxchat.chat.random_streams import stream_of
from mlxchat.chat.rendering import NOTHING, Rejected, Rendering
from mlxchat.chat.turn import Compacted, Forgot, Mention, Quoted, Said, Turn, Usage
from mlxchat.chat.turns import Turns
from mlxchat.chat.view import Prefixes, View
from mlxchat.chat.watch import StoppedEncoding, Watch, Watching
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.constrained import Constrained
from mlxchat.engine.drafts import Drafter
from mlxchat.engine.generate import Generation, Stats, nothing_done
from mlxchat.engine.pace import Pace, first_step
from mlxchat.engine.repetition import LoopDetector
from mlxchat.engine.reply import Token
from mlxchat.errors import (
    DeviceError,
    InputError,
    MlxchatError,
    RanksError,
    UsageError,
    WindowFull,
)
from mlxchat.failures import device_failures
from mlxchat.models.model import Model
from mlxchat.settings import (
    CacheSettings,
    GenerationSettings,
    SamplingSettings,
    random_seed,
)
from mlxchat.template_args import allows_thinking, thinking_variables
from mlxchat.text.reply_reader import Reader
from mlxchat.text.spans import TokenIds
from mlxchat.text.thinking import joined
from mlxchat.text.tokens import Prompt


class Conversation:
    """Turns with a model at a fixed window.

        conversation = Conversation(model, CacheSettings(512), system="Be brief.")
        for said in conversation.say("The capital of France?"):
            print(said.text, end="", flush=True)

    `system` is pinned: it is in the cache once and is never evicted. If fewer than `settings.keep`
    tokens come before the first user's text, the start of the first turn fills up the rest.
    `variables` go to the chat template; the user's own `template_args` override them.

    All random numbers derive from one seed: `sampling.seed`, or a random one. Each turn, retry and
    continuation draws from its own stream.

    Before a message, at most `recalls` forgotten turns that it needs are quoted to the model. The
    quote is not part of the turn and leaves the window after the reply.

    Raises TemplateError if the model has no template, CacheError if the pinned tokens leave no
    room in the window.
    """

    def __init__(
        self,
        model: Model,
        settings: CacheSettings | None = None,
        *,
        system: str | None = None,
        sampling: SamplingSettings | None = None,
        generation: GenerationSettings | None = None,
        variables: Mapping[str, Any] | None = None,
        template_args: Mapping[str, Any] | None = None,
        prefixes: Prefixes | None = None,
        drafter: Drafter | None = None,
        recalls: int = 0,
    ) -> None:
        self.recalls = recalls
        self._memory = Memory()
        self.sampling = sampling or SamplingSettings()
        self.generation = generation or GenerationSettings()
        # The seed of the last reply.
        self.reply_seed = 0
        self._any_seed = random_seed()
        self._retries = 0
        self._drafter = drafter
        self._stats: Stats | None = None
        self._generation: Generation | None = None
        # Whether the last answer was what its constraint describes; None without one.
        self.is_complete: bool | None = None
        # Why it was not, if it was not cut off.
        self.problem: str | None = None
        self.turns = Turns()
        args = dict(template_args or {})
        rendering = Rendering(model.tokenizer, system, dict(variables or {}), args)
        settings = settings or CacheSettings(keep=0)
        self._pace = Pace(first_step(model.network))
        self.view = View(model, settings, rendering, self.turns, prefixes=prefixes)

    @property
    def seed(self) -> int:
        """The seed from which every stream of random numbers is derived."""
        return self._any_seed if self.sampling.seed is None else self.sampling.seed

    @property
    def recalled(self) -> tuple[Quoted, ...]:
        """The turns that were quoted for the last message."""
        return self.view.recalled

    @property
    def stats(self) -> Stats | None:
        """Statistics of the last reply, or of the one in progress."""
        return self._stats if self._generation is None else self._generation.stats

    # The conversation so far

    def resume(self, system: str | None, turns: Sequence[Turn], note: str | None = None) -> None:
        """Replace everything with a saved conversation. The next turn prefills as much of it as
        fits. Raises CacheError if its pinned tokens leave no room."""
        self.view.begin_with(system, note)
        self.turns.become(turns)
        for turn in self.turns:
            # Transcripts of other programs have the thought and the reply in one text.
            if not turn.thought:
                turn.thought, turn.reply = self.model.tokenizer.split(turn.reply)
        self.draft_with(self._drafter)

    def draft_with(self, drafter: Drafter | None) -> None:
        """Draft from all turns, forgotten ones included; None drafts nothing."""
        self._drafter = drafter
        if drafter is None:
            return
        encode = self.model.tokenizer.encode
        for turn in self.turns:
            # A text that the tokenizer rejects is not in view either.
            with suppress(InputError):
                drafter.history.extend(encode(turn.user))
                written = turn.ids if turn.ids is not None else encode(turn.thought + turn.reply)
                drafter.history.extend(written)

    def undo(self) -> Turn:
        """Take back the last turn, and restore the turns it made the window forget. Raises
        UsageError if there is none."""
        self._check_has_turn()
        self.view.go_back_to(len(self.turns) - 1)
        return self.turns.take_back()

    def _check_has_turn(self) -> None:
        """Raise UsageError if no message was sent since everything was cleared."""
        if self.last is None:
            raise UsageError("no messages yet")

    def take_back_continuation(self) -> bool:
        """Take back what `continue_reply` added to the last reply; False if the last action was
        something else."""
        return self.view.take_back_continuation()

    def pin(self, number: int) -> None:
        """Never forget turn `number`, counted from 1. Raises UsageError for an unknown turn, or if
        the pinned turns would leave no room in the window."""
        self.view.check_pin(self.turns.in_view(number))
        self.turns.pin(number)

    def unpin(self) -> None:
        """Allow all pinned turns to be forgotten again."""
        self.turns.unpin()

    def forget(self, count: int) -> int:
        """Forget the `count` oldest turns that are not pinned; return how many were forgotten."""
        return self.turns.forget(count)

    def recall(self, word: str) -> list[Mention]:
        """Every line that contains the word, ignoring case, forgotten turns included, oldest
        first."""
        return self.turns.recall(word)

    def compact(self, words: str = "", **watching: Unpack[Watching]) -> Compacted | None:
        """Have the model write a note about the turns in view, except pinned ones and the last, and
        forget them. The note replaces the one before, which it was written from; `words` say what
        matters most in it. None, with nothing changed, if stopped.

        Raises UsageError if there is nothing to compact or the note is useless, DeviceError if the
        device fails; then nothing changes either.
        """
        turns = may_be_forgotten(self.turns.retained)
        if not turns:
            raise UsageError("nothing to compact: only the last turn is in view, or pinned ones")
        return self._compact(turns, words, Watch(**watching))

    def set_note(self, text: str | None) -> None:
        """Change the note, or remove it; the turns it was written about stay forgotten. Raises
        UsageError if it is empty or does not fit."""
        if text is not None and not text.strip():
            raise UsageError("the note is empty")
        self.view.set_note(None if text is None else text.strip())

    def take_back_note(self) -> bool:
        """Restore what was before `compact` or `set_note`, with the turns in view; False if the
        last action was something else."""
        return self.view.take_back_note()

    def clear(self) -> None:
        """Forget all turns, pinned ones and the note included, and start over. The transcript keeps
        the turns."""
        self.turns.clear_away()
        self.view.begin_with(self.system, None)

    def set_system(self, text: str | None) -> None:
        """Change the system prompt. The next turn prefills all retained turns again."""
        self.view.set_system(text)

    def think(self, wanted: bool) -> None:
        """Turn thinking on or off, overriding the user's own variables. Raises what
        `set_template_args` raises."""
        names = thinking_variables(False)
        args = {name: each for name, each in self.template_args.items() if name not in names}
        self.view.set_variables(thinking_variables(wanted), args)

    def set_template_args(self, args: Mapping[str, Any]) -> None:
        """Replace the user's own template variables. Raises TemplateError if the template rejects
        them, CacheError if the pinned tokens leave no room; either way, nothing changes."""
        self.view.set_variables(self.variables, args)

    @property
    def model(self) -> Model:
        return self.view.model

    @property
    def settings(self) -> CacheSettings:
        return self.view.settings

    @property
    def system(self) -> str | None:
        return self.view.rendering.system

    @property
    def note(self) -> str | None:
        """The note on forgotten turns, after the system prompt."""
        return self.view.rendering.note

    @property
    def variables(self) -> Mapping[str, Any]:
        return self.view.rendering.variables

    @property
    def template_args(self) -> Mapping[str, Any]:
        return self.view.rendering.template_args

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the user about the interpretation of the template."""
        return self.view.rendering.notices

    @property
    def retained(self) -> list[Turn]:
        """The turns that the model can see."""
        return self.turns.retained

    @property
    def forgotten(self) -> list[Turn]:
        return self.turns.forgotten

    @property
    def last(self) -> Turn | None:
        """The last turn since everything was cleared, if any."""
        return self.turns.last

    @property
    def cache(self) -> Cache:
        return self.view.cache

    @property
    def ledger(self) -> Ledger:
        return self.view.ledger

    def usage(self) -> Usage:
        """Tokens in the window, by turn, counted as the template renders them."""
        return self.view.usage()

    @property
    def tokens(self) -> int:
        """The total of `usage`, without counting each turn."""
        return self.view.tokens

    def tokens_of_text(self, text: str) -> int:
        """How many tokens this text adds to the next message, in front of it."""
        with_text, without = (self.view.tokens_of(Turn(f"{each}a")) for each in (f"{text}\n\n", ""))
        return with_text - without

    @property
    def held_ids(self) -> TokenIds:
        """Token ids in the cache, `(T,)`, in temporal order."""
        return self.view.ledger.ids

    # Turns

    def say(self, text: str, **watching: Unpack[Watching]) -> Generator[Said]:
        """Add a turn and return an iterator over the tokens of the reply and the turns forgotten
        to make room for it. `Watching` lists the callbacks.

        A reply that ends early, for any reason, is closed properly when the next turn begins. If
        stopped before its first token, the turn is taken back. The iterator takes it back and
        raises WindowFull if the turn does not fit and nothing may be forgotten, TemplateError or
        InputError if it is rejected. It raises DeviceError if the device fails: the turn stays,
        with the reply so far, and the next turn prefills all retained turns again. Raises
        UsageError if the settings rule out a constraint.
        """
        self._retries = 0
        watch = Watch(**watching)
        if watch.constraint is not None:
            self.generation.check_constraint(watch.constraint.kind)
        return self._say(text, self._next_stream(), watch)

    def retry(self, **watching: Unpack[Watching]) -> Generator[Said]:
        """Answer the last turn again with different random numbers. If this produces nothing, the
        old reply stays. Turns that were forgotten already are not reported again. Raises what `say`
        raises, UsageError if there is no turn."""
        self._check_has_turn()
        self._retries += 1
        seed = self._next_stream()
        forgotten = {number for number, turn in enumerate(self.turns, 1) if turn.forgotten}
        old = self.undo()
        before = len(self.turns)
        reply = self._say(old.user, seed, Watch(**watching))
        return _without_reports_of(forgotten, self._or_else(reply, before, old))

    def continue_reply(self, **watching: Unpack[Watching]) -> Generator[Said]:
        """Continue the last reply as if it had never ended. If this produces nothing, the reply
        stays as it is. Raises DeviceError as `say` does, UsageError if there is no turn."""
        self._check_has_turn()
        watch = Watch(**watching)
        return self._or_drop(self._continuation(self.turns[-1], watch))

    def with_model(
        self,
        model: Model,
        settings: CacheSettings,
        sampling: SamplingSettings,
        drafter: Drafter | None = None,
    ) -> Conversation:
        """The same conversation with another model, which prefills the retained turns again.
        Raises what the constructor raises; this conversation remains usable."""
        other = Conversation(
            model,
            settings,
            system=self.system,
            sampling=sampling,
            generation=self.generation,
            variables=self.variables,
            template_args=self.template_args,
            prefixes=self.view.prefixes,
            drafter=drafter,
            recalls=self.recalls,
        )
        other.resume(self.system, self.turns, self.note)
        other.turns.cleared = self.turns.cleared
        other._any_seed, other._retries = self._any_seed, self._retries
        for turn in other.turns:
            # Another tokenizer produces other ids.
            turn.ids, turn.exact = None, False
        return other

    # Saying

    def _compact(self, turns: Sequence[Turn], words: str, watch: Watch) -> Compacted | None:
        """Have a note written about the turns, and forget them. None if stopped."""
        limit = note_limit(self.settings.max_kv_size, self.view.room_for_note())
        writer = NoteWriter(
            self.model,
            self.settings,
            self.view.rendering,
            self.view.aside,
            limit=limit,
            sampling=replace(self.sampling, seed=self._next_stream()),
            pace=self._pace,
            watch=watch,
        )
        try:
            with device_failures():
                note = writer.write(turns, words)
        except StoppedEncoding:
            return None
        except DeviceError:
            self.view.drop()
            raise
        cost = note.prefilled_tokens, note.generated_tokens, note.seconds
        problem = note.problem
        if note.text:
            try:
                self.view.set_note(note.text, turns)
            except (UsageError, *Rejected) as error:
                problem = str(error)
        if problem:
            raise UsageError(f"{problem}: nothing has changed")
        if not note.text:
            return None
        noted = {id(turn) for turn in turns}
        numbers = tuple(n for n, turn in enumerate(self.turns, 1) if id(turn) in noted)
        return Compacted(note.text, numbers, self.view.note_tokens, *cost)

    def _next_stream(self, written: int = 0) -> int:
        return stream_of(self.seed, len(self.turns), self._retries, written)

    def _say(self, text: str, seed: int, watch: Watch) -> Generator[Said]:
        self.view.begin_turn()
        self._stats = nothing_done(self.cache)
        self.is_complete, self.problem = None if watch.constraint is None else False, None
        self.reply_seed = seed
        turn = Turn(text, time=datetime.now(UTC).isoformat(timespec="seconds"))
        self.turns.append(turn)
        return self._or_drop(self._reply(turn, watch))

    def _reply(self, turn: Turn, watch: Watch) -> Generator[Said]:
        def recall() -> Sequence[Quoted]:
            return self._recall(turn.user) if self.recalls else ()

        def has_answer() -> bool:
            return bool(turn.thought) or turn.reply not in ("", watch.prefill)

        try:
            yield from self.view.make_room(watch.count_encoding, recall)
            yield from self._answer(turn, NOTHING, watch)
        except StoppedEncoding:
            self.undo()
            return
        except (DeviceError, RanksError):
            raise
        except (MlxchatError, KeyboardInterrupt, GeneratorExit) as error:
            if not has_answer():
                self.undo()
            elif isinstance(error, KeyboardInterrupt):
                # It came in the middle of a step: the cache may be half updated.
                self.view.drop()
            else:
                self.view.end_quote()
            raise
        self.view.end_quote()
        if turn.finish_reason == "interrupted" and not has_answer():
            self.undo()

    def _recall(self, message: str) -> Sequence[Quoted]:
        """The forgotten turns that the message needs."""
        numbers = self._memory.find(message, self.turns, self.recalls)
        return [Quoted(self.turns[number - 1], number) for number in numbers]

    def _continuation(self, turn: Turn, watch: Watch) -> Generator[Said]:
        self.view.begin_turn()
        self._stats = nothing_done(self.cache)
        self.is_complete = None
        turn.forgotten = False
        try:
            yield from self.view.make_room(watch.count_encoding)
            written = turn.ids
            if written is None:
                tokenizer = self.model.tokenizer
                written = tokenizer.encode_reply(turn.reply, turn.thought, self.view.prompt)
        except (WindowFull, *Rejected):
            self.view.take_back_continuation()
            raise
        except StoppedEncoding:
            self.view.take_back_continuation()
            return
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
        """The reply; if it produces nothing, restore the old turn."""
        try:
            yield from reply
        except DeviceError:
            if not (self.turns[-1].reply or self.turns[-1].thought):
                del self.turns[before:]
            raise
        finally:
            if len(self.turns) == before:
                self.turns.append(old)

    def _or_drop(self, reply: Generator[Said]) -> Generator[Said]:
        """The reply. If the device fails during the turn, drop the cache: it may be half updated,
        and its contents cannot be trusted."""
        try:
            with device_failures(), closing(reply):
                yield from reply
        except DeviceError:
            self.view.drop()
            raise

    # Answering

    def _answer(self, turn: Turn, written: TokenIds, watch: Watch) -> Generator[Said]:
        """Generate the reply, or the rest of it after the tokens already `written`."""
        tokenizer = self.model.tokenizer
        prompt = tokenizer.with_beginning(
            Prompt(self.view.prompt), watch.prefill, newlines=watch.constraint is None
        )
        is_new = watch.prefill is not None or watch.constraint is not None
        assert not (is_new and len(written)), "only a new answer can be begun or constrained"
        written = np.concatenate([written, prompt.begun])
        ids = np.concatenate([self.view.prompt, written])
        reader = self._reader_after(turn, written)
        loop = LoopDetector() if watch.stop_loops else None
        constrained = self._constrained(watch.constraint, prompt)
        cached, on_held = self.view.begin(ids)
        if self._drafter is not None and not len(self._drafter.history):
            self._drafter.history.extend(ids[:cached])
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
            drafter=self._drafter,
            constrained=constrained,
            on_prefill=watch.on_prefill,
            on_held=on_held,
            should_stop=lambda: _repeats(loop) or watch.is_stopped(),
        )
        self._generation = generation
        overflowed = self.view.ledger.overflowed
        generated: list[int] = []
        in_place = True
        _, begun = tokenizer.reader_after(prompt)
        try:
            for token in chain([Token(begun, None)] if begun else [], generation):
                if token.another:
                    turn.later_thoughts += (len(turn.thought),)
                if token.thought:
                    turn.thought += token.text
                else:
                    turn.reply += token.text
                if token.id is not None:
                    generated.append(token.id)
                    if loop is not None:
                        loop.add(token.id)
                yield token
                while in_place and self.view.is_full and not self.view.evict_quote():
                    forgot = self.view.forget_oldest_in_place()
                    in_place = forgot is not None
                    if forgot is not None:
                        yield forgot
        finally:
            turn.ids = np.concatenate([written, np.array(generated, np.int32)])
            turn.exact = self.model.tokenizer.spells(turn.ids, turn.reply, turn.thought)
            self._stats, self._generation = _stats_of(generation, loop), None
            self.is_complete, self.problem = generation.is_complete, generation.problem
            turn.finish_reason = self._stats.finish_reason
        if self.view.ledger.overflowed > overflowed:
            evicted = self.view.ledger.overflowed - overflowed
            yield Forgot(0, evicted, (len(self.turns),), turn.user)

    def _constrained(self, constraint: Constraint | None, prompt: Prompt) -> Constrained | None:
        """The constraint on the reply that the prompt asks for, and may have begun."""
        if constraint is None:
            return None
        return Constrained.begin(
            constraint,
            self.model.tokenizer,
            prompt.asked,
            may_think=allows_thinking({**self.variables, **self.template_args}),
            beginning=prompt.beginning,
        )

    def _reader_after(self, turn: Turn, written: TokenIds) -> Reader:
        """A reader for the rest of the reply, having read the tokens already `written`."""
        reader = self.model.tokenizer.reader(self.view.prompt)
        pieces = [piece for id_ in written.tolist() for piece in reader.add(id_)]
        if turn.exact:
            # The reader holds back half a character or half a tag until the rest arrives.
            turn.thought, turn.reply = joined(pieces)
            end = len(turn.thought)
            turn.later_thoughts = tuple(min(place, end) for place in turn.later_thoughts)
        return reader

    def _within_window(
        self, settings: GenerationSettings, prompt_tokens: int
    ) -> GenerationSettings:
        room = self.view.room_next_to_pins(prompt_tokens - len(self.view.prompt))
        if room is None:
            return settings
        if room < 1:
            raise self.view.full()
        maximum = settings.max_tokens
        return replace(settings, max_tokens=room if maximum < 0 else min(maximum, room))


def _repeats(loop: LoopDetector | None) -> bool:
    return loop is not None and loop.looping


def _stats_of(generation: Generation, loop: LoopDetector | None) -> Stats:
    """The generation's figures; one stopped for its loop has the finish reason "loop"."""
    stats = generation.stats
    stopped_for_loop = stats.finish_reason == "interrupted" and _repeats(loop)
    return replace(stats, finish_reason="loop") if stopped_for_loop else stats


def _without_reports_of(forgotten: set[int], reply: Generator[Said]) -> Generator[Said]:
    with closing(reply):
        for said in reply:
            if not (isinstance(said, Forgot) and said.turns and forgotten.issuperset(said.numbers)):
                yield said
