"""A conversation: say something, retry an answer, continue a reply. Does no input or output.

`view` decides what the model sees of it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Unpack

from mlxchat.cache import Cache
from mlxchat.chat.answering import Answering
from mlxchat.chat.ledger import Ledger
from mlxchat.chat.memory import Memory
from mlxchat.chat.note import compact
from mlxchat.chat.rendering import NOTHING, Rejected, Rendering
from mlxchat.chat.turn import Compacted, Quoted, Said, Turn, Usage
from mlxchat.chat.turns import Turns
from mlxchat.chat.view import KnownPrefixes, View
from mlxchat.chat.watch import StoppedEncoding, Watch, Watching
from mlxchat.engine.drafts import Drafter
from mlxchat.engine.pace import Pace, first_step
from mlxchat.engine.reply import Stats
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
from mlxchat.request.pairs import refuse_pairs
from mlxchat.request.template_args import thinking_variables
from mlxchat.settings import (
    CacheSettings,
    GenerationSettings,
    SamplingSettings,
    random_seed,
)
from mlxchat.text.spans import TokenIds

RETRY = 1_000_003
SEEDS = 2**64


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
        prefixes: KnownPrefixes | None = None,
        drafter: Drafter | None = None,
        recalls: int = 0,
    ) -> None:
        self.recalls = recalls
        self._memory = Memory()
        self.sampling = sampling or SamplingSettings()
        self.generation = generation or GenerationSettings()
        self._any_seed = random_seed()
        self._retries = 0
        self._drafter = drafter
        # The last answer, or the one in progress.
        self._answering: Answering | None = None
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
        return None if self._answering is None else self._answering.stats

    @property
    def reply_seed(self) -> int:
        """The seed of the last reply."""
        seed = None if self._answering is None else self._answering.sampling.seed
        return seed or 0

    # The conversation so far

    def resume(self, system: str | None, turns: Sequence[Turn], note: str | None = None) -> None:
        """Replace everything with a saved conversation. The next turn prefills as much of it as
        fits. Raises CacheError if its pinned tokens leave no room."""
        self.view.begin_with(system, note)
        self.turns.become(turns)
        for turn in self.turns:
            # Transcripts of other programs have the thought and the reply in one text.
            if not turn.thought:
                turn.thought, turn.reply = self.model.tokenizer.replies.split(turn.reply)
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

    def take_back(self, *, note: bool) -> bool:
        """Take back what `continue_reply` added to the last reply, or what `compact` or `set_note`
        changed, if `note`; False if the last action was something else."""
        return self.view.take_back(note=note)

    def pin(self, number: int) -> None:
        """Never forget turn `number`, counted from 1. Raises UsageError for an unknown turn, or if
        the pinned turns would leave no room in the window."""
        self.view.check_pin(self.turns.in_view(number))
        self.turns.pin(number)

    def compact(self, words: str = "", **watching: Unpack[Watching]) -> Compacted | None:
        """Have the model write a note about the turns in view, except pinned ones and the last, and
        forget them. The note replaces the one before, which it was written from; `words` say what
        matters most in it. None, with nothing changed, if stopped.

        Raises UsageError if there is nothing to compact or the note is useless, DeviceError if the
        device fails; then nothing changes either.
        """
        sampling = replace(self.sampling, seed=self._next_stream())
        return compact(self.view, words, sampling, self._pace, Watch(**watching))

    def set_note(self, text: str | None) -> None:
        """Change the note, or remove it; the turns it was written about stay forgotten. Raises
        UsageError if it is empty or does not fit."""
        if text is not None and not text.strip():
            raise UsageError("the note is empty")
        self.view.set_note(None if text is None else text.strip())

    def clear(self) -> None:
        """Forget all turns, pinned ones and the note included, and start over. The transcript keeps
        the turns."""
        self.turns.clear_away()
        self.view.begin_with(self.system, None)

    def set_system(self, text: str | None) -> None:
        """Change the system prompt. The next turn prefills all retained turns again."""
        self.view.begin_with(text, self.note)

    def think(self, wanted: bool) -> None:
        """Turn thinking on or off, overriding the user's own variables. Raises what
        `set_template_args` raises."""
        names = thinking_variables(False)
        args = {name: each for name, each in self.template_args.items() if name not in names}
        self.view.set_variables(thinking_variables(wanted), args)

    def set_template_args(self, args: Mapping[str, Any]) -> None:
        """Replace the user's own template variables. Raises TemplateError if the template rejects
        them, CacheError if the pinned tokens leave no room; either way, nothing changes."""
        self.view.set_variables(self.view.rendering.variables, args)

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
    def template_args(self) -> Mapping[str, Any]:
        return self.view.rendering.template_args

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
        tokens_of = self.view.rendering.tokens_of
        return tokens_of(Turn(f"{text}\n\na")) - tokens_of(Turn("a"))

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
            refuse_pairs(self.generation, constraint=watch.constraint.kind)
        return self._say(text, self._next_stream(), watch)

    def retry(self, **watching: Unpack[Watching]) -> Generator[Said]:
        """Answer the last turn again with different random numbers. If this produces nothing, the
        old reply stays. Raises what `say` raises, UsageError if there is no turn."""
        self._check_has_turn()
        self._retries += 1
        seed = self._next_stream()
        old = self.undo()
        before = len(self.turns)
        reply = self._say(old.user, seed, Watch(**watching))
        return self._or_else(reply, before, old)

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
            variables=self.view.rendering.variables,
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

    def _next_stream(self, written: int = 0) -> int:
        """The seed of the next reply, which has its own stream, or of its rest."""
        return (self.seed + len(self.turns) + RETRY * self._retries + (written << 32)) % SEEDS

    def _say(self, text: str, seed: int, watch: Watch) -> Generator[Said]:
        answering = self._begin_answer(seed, watch)
        turn = Turn(text, time=datetime.now(UTC).isoformat(timespec="seconds"))
        self.turns.append(turn)
        return self._or_drop(self._reply(turn, answering))

    def _begin_answer(self, seed: int, watch: Watch) -> Answering:
        self.view.begin_turn()
        sampling = replace(self.sampling, seed=seed)
        self._answering = Answering(
            self.view, watch, sampling, self.generation, self._pace, self._drafter
        )
        return self._answering

    def _reply(self, turn: Turn, answering: Answering) -> Generator[Said]:
        watch = answering.watch

        def recall() -> Sequence[Quoted]:
            if not self.recalls:
                return ()
            numbers = self._memory.find(turn.user, self.turns, self.recalls)
            return [Quoted(self.turns[number - 1], number) for number in numbers]

        def has_answer() -> bool:
            return bool(turn.thought) or turn.reply not in ("", watch.prefill)

        try:
            yield from self.view.make_room(watch.count_encoding, recall)
            yield from answering.tokens(turn, NOTHING)
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

    def _continuation(self, turn: Turn, watch: Watch) -> Generator[Said]:
        answering = self._begin_answer(0, watch)
        turn.forgotten = False
        try:
            yield from self.view.make_room(watch.count_encoding)
            written = turn.ids
            if written is None:
                tokenizer = self.model.tokenizer
                written = tokenizer.encode_reply(turn.reply, turn.thought, self.view.prompt)
        except (WindowFull, *Rejected):
            self.view.take_back(note=False)
            raise
        except StoppedEncoding:
            self.view.take_back(note=False)
            return
        seed = self._next_stream(len(written))
        answering.sampling = replace(answering.sampling, seed=seed)
        old, has_text, failed = replace(turn), False, True
        try:
            for said in answering.tokens(turn, written):
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
