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
from mlxchat.chat.rendering import NOTHING, Rendering
from mlxchat.chat.room import check_pin
from mlxchat.chat.state import State
from mlxchat.chat.turn import Compacted, Quoted, Said, Turn, Usage
from mlxchat.chat.view import View
from mlxchat.chat.watch import StoppedEncoding, Watch, Watching
from mlxchat.chat.window import KnownPrefixes
from mlxchat.engine.drafts import Drafter
from mlxchat.engine.prefill import Pace, first_step
from mlxchat.engine.reply import Stats
from mlxchat.errors import (
    DeviceError,
    InputError,
    MlxchatError,
    RanksError,
    UsageError,
    device_failures,
)
from mlxchat.models.model import Model
from mlxchat.request.pairs import refuse_pairs
from mlxchat.request.template_args import thinking_variables
from mlxchat.settings import (
    CacheSettings,
    GenerationSettings,
    SamplingSettings,
    random_seed,
)

RETRY = 1_000_003
SEEDS = 2**64


class Conversation:
    """Turns with a model at a fixed window.

        conversation = Conversation(model, CacheSettings(512), system="Be brief.")
        for said in conversation.say("The capital of France?"):
            print(said.text, end="", flush=True)

    `system` is pinned: it is in the cache once and is never evicted. `settings.keep` is for texts
    without one. `variables` go to the chat template; the user's own `template_args` override them.

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
        rendering = Rendering(model.tokenizer, dict(variables or {}), dict(template_args or {}))
        settings = settings or CacheSettings(keep=0)
        self._pace = Pace(first_step(model.network))
        self.view = View(model, settings, rendering, State(system), prefixes=prefixes)

    @property
    def seed(self) -> int:
        """The seed from which every stream of random numbers is derived."""
        return self._any_seed if self.sampling.seed is None else self.sampling.seed

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

    @property
    def state(self) -> State:
        return self.view.state

    @property
    def turns(self) -> tuple[Turn, ...]:
        """All turns, forgotten or not."""
        return self.state.turns

    def resume(self, system: str | None, turns: Sequence[Turn], note: str | None = None) -> None:
        """Replace everything with a saved conversation. The next turn prefills as much of it as
        fits. Raises CacheError if its pinned tokens leave no room."""
        split = self.model.tokenizer.replies.split
        # Transcripts of other programs have the thought and the reply in one text.
        texts = [
            (turn.thought, turn.reply) if turn.thought else split(turn.reply) for turn in turns
        ]
        state = State(
            system,
            note,
            tuple(
                turn
                if (turn.thought, turn.reply) == (thought, reply)
                else replace(turn, thought=thought, reply=reply)
                for turn, (thought, reply) in zip(turns, texts, strict=True)
            ),
        )
        # If everything is forgotten, the conversation was saved right after it was cleared.
        self.view.begin(state if state.retained else replace(state, cleared=len(turns)))
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

    def add(self, *turns: Turn) -> None:
        """Add turns that were said elsewhere."""
        for turn in turns:
            self.view.state = self.state.add(turn)

    def undo(self) -> Turn:
        """Take back the last turn, and restore the turns it made the window forget. Raises
        UsageError if there is none."""
        self._check_has_turn()
        turn = self.turns[-1]
        self.view.go_back(len(self.turns) - 1)
        return turn

    def _check_has_turn(self) -> None:
        """Raise UsageError if no message was sent since everything was cleared."""
        if self.state.last is None:
            raise UsageError("no messages yet")

    def take_back(self, *, note: bool) -> bool:
        """Take back what `continue_reply` added to the last reply, or what `compact` or `set_note`
        changed, if `note`; False if the last action was something else."""
        return self.view.take_back(note=note)

    def pin(self, number: int) -> None:
        """Never forget turn `number`, counted from 1. Raises UsageError for an unknown turn, or if
        the pinned turns would leave no room in the window."""
        turn = self.state.turn_in_view(number)
        check_pin(self.view.rendering, self.state, self.settings.max_kv_size, turn)
        self.view.state = self.state.change({number}, pinned=True)

    def unpin(self) -> None:
        """Allow all pinned turns to be forgotten again."""
        self.view.state = self.state.with_pins(())

    def forget(self, count: int) -> int:
        """Forget the `count` oldest turns that are not pinned; return how many were forgotten."""
        in_view = [n for n in self.state.in_view if not self.turns[n - 1].pinned]
        self.view.state = self.state.forget(in_view[:count])
        return len(in_view[:count])

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
        self.view.begin(self.state.clear())

    def set_system(self, text: str | None) -> None:
        """Change the system prompt. The next turn prefills all retained turns again."""
        self.view.begin(replace(self.state, system=text))

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
        return self.state.system

    @property
    def note(self) -> str | None:
        """The note on forgotten turns, after the system prompt."""
        return self.state.note

    @property
    def template_args(self) -> Mapping[str, Any]:
        return self.view.rendering.template_args

    @property
    def cache(self) -> Cache:
        return self.view.window.cache

    @property
    def ledger(self) -> Ledger:
        return self.view.window.ledger

    def usage(self) -> Usage:
        """Tokens in the window, by turn, counted as the template renders them."""
        return self.view.usage()

    @property
    def tokens(self) -> int:
        """The total of `usage`, without counting each turn."""
        return self.view.tokens

    def tokens_of_text(self, text: str) -> int:
        """How many tokens this text adds to the next message, in front of it."""
        with_text, without = (
            self.view.rendering.tokens_of(self.state, Turn(each)) for each in (f"{text}\n\na", "a")
        )
        return with_text - without

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
        return self._or_drop(self._continuation(watch))

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
        # Another tokenizer produces other ids.
        turns = [replace(turn, ids=None, exact=False) for turn in self.turns]
        other.resume(self.system, turns, self.note)
        other.view.state = replace(other.state, cleared=self.state.cleared)
        other._any_seed, other._retries = self._any_seed, self._retries
        return other

    # Saying

    def _next_stream(self, written: int = 0) -> int:
        """The seed of the next reply, which has its own stream, or of its rest."""
        return (self.seed + len(self.turns) + RETRY * self._retries + (written << 32)) % SEEDS

    def _say(self, text: str, seed: int, watch: Watch) -> Generator[Said]:
        answering = self._begin_answer(seed, watch)
        turn = Turn(text, time=datetime.now(UTC).isoformat(timespec="seconds"))
        self.view.state = self.state.add(turn)
        return self._or_drop(self._reply(answering))

    def _begin_answer(self, seed: int, watch: Watch) -> Answering:
        self.view.remember()
        sampling = replace(self.sampling, seed=seed)
        self._answering = Answering(
            self.view, watch, sampling, self.generation, self._pace, self._drafter
        )
        return self._answering

    def _reply(self, answering: Answering) -> Generator[Said]:
        watch = answering.watch

        def recall(state: State) -> Sequence[Quoted]:
            if not self.recalls:
                return ()
            numbers = self._memory.find(state.turns[-1].user, state, self.recalls)
            return [Quoted(state.turns[number - 1], number) for number in numbers]

        def has_answer() -> bool:
            turn = self.turns[-1]
            return bool(turn.thought) or turn.reply not in ("", watch.prefill)

        try:
            yield from self.view.make_room(watch.count_encoding, recall)
            yield from answering.tokens(NOTHING)
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
        if self.turns[-1].finish_reason == "interrupted" and not has_answer():
            self.undo()

    def _continuation(self, watch: Watch) -> Generator[Said]:
        answering = self._begin_answer(0, watch)
        before = self.turns[-1]
        self.view.state = self.state.with_last(replace(before, forgotten=False))
        failed = True
        try:
            yield from self.view.make_room(watch.count_encoding, lambda _: ())
            written = before.ids
            if written is None:
                beginning = self.model.tokenizer.beginning
                written = beginning(before.reply, self.view.prompt, thought=before.thought).ids
            seed = self._next_stream(len(written))
            answering.sampling = replace(answering.sampling, seed=seed)
            for said in answering.tokens(written):
                failed = failed and not said.text
                yield said
            failed = failed and self.turns[-1].finish_reason == "interrupted"
        except StoppedEncoding:
            pass
        finally:
            if failed:
                self.view.go_back(len(self.turns))

    def _or_else(self, reply: Generator[Said], before: int, old: Turn) -> Generator[Said]:
        """The reply; if it produces nothing, restore the old turn."""
        try:
            yield from reply
        except DeviceError:
            if not (self.turns[-1].reply or self.turns[-1].thought):
                self.view.state = self.state.without_last()
            raise
        finally:
            if len(self.turns) == before:
                self.view.state = self.state.add(old)

    def _or_drop(self, reply: Generator[Said]) -> Generator[Said]:
        """The reply. If the device fails during the turn, drop the cache: it may be half updated,
        and its contents cannot be trusted."""
        try:
            with device_failures(), closing(reply):
                yield from reply
        except DeviceError:
            self.view.drop()
            raise
