"""A conversation: say something, retry an answer, continue a reply. Does no input or output.

`answering` writes the replies, and decides what the window holds meanwhile.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

from mlxchat.cache.layers import Cache
from mlxchat.chat.answering import UNWATCHED, Answering, Earlier, Means, StoppedEncoding, Watch
from mlxchat.chat.memory import Memory
from mlxchat.chat.note import with_remembered, with_system, write_note
from mlxchat.chat.rendering import Rejected, Rendering, check_note, check_pin, check_room
from mlxchat.chat.state import Compacted, Said, State, Turn, Usage
from mlxchat.chat.window import BeginPrefix, Ledger, Window
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.drafts import Drafter
from mlxchat.engine.prefill import Pace, first_step
from mlxchat.engine.reply import Stats
from mlxchat.engine.sampling import SEEDS, Token
from mlxchat.errors import DeviceError, InputError, RanksError, UsageError, device_failures
from mlxchat.models.model import Model
from mlxchat.options import refuse_pairs
from mlxchat.settings import CacheSettings, GenerationSettings, SamplingSettings, random_seed

# Added to the seed for each turn undone, or answered again, in the same place.
UNDONE = 1_000_003
# Earlier states that can be gone back to, and of how many the window is kept.
STATES = 64
WINDOWS = 2


class Conversation(Means):
    """Turns with a model at a fixed window.

        conversation = Conversation(model, CacheSettings(512), system="Be brief.")
        for said in conversation.say("The capital of France?"):
            print(said.text, end="", flush=True)

    `system` is pinned: it is in the cache once and is never evicted. `settings.keep` is for texts
    without one. `variables` go to the chat template; the user's own `template_args` override them.

    All random numbers derive from one seed: `sampling.seed`, or a random one. Each reply draws from
    its own stream. It ends when the conversation goes on, even if it is not read to its end.

    At most `recalls` forgotten turns that a message needs are quoted until its reply is over.

    Raises TemplateError if the model has no template, CacheError if the pinned tokens fill it.
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
        begin_prefix: BeginPrefix | None = None,
        drafter: Drafter | None = None,
        recalls: int = 0,
    ) -> None:
        super().__init__(
            model,
            settings or CacheSettings(keep=0),
            Rendering(model.tokenizer, dict(variables or {}), dict(template_args or {})),
            sampling or SamplingSettings(),
            generation or GenerationSettings(),
            begin_prefix,
            drafter,
            Pace(first_step(model.network), model.ranks.lead),
        )
        self.recalls = recalls
        self.answering: Answering | None = None
        self._reply: Generator[Said] = (said for said in ())
        self._memory = Memory()
        self._any_seed, self._undone = random_seed(), Counter[int]()
        self._past = deque[Earlier](maxlen=STATES)
        self._begin(State(system))

    def _use(
        self, model: Model, settings: CacheSettings, rendering: Rendering, state: State
    ) -> None:
        """Take up this state with an empty window: the next turn prefills the retained turns. If it
        raises, nothing changes: CacheError if the pinned tokens leave no room, TemplateError or
        InputError if they are rejected."""
        pinned = check_room(rendering, state, settings.max_kv_size)
        self.window = Window.make(model, settings.max_kv_size, pinned, state.in_view)
        self.model, self.settings, self.rendering = model, settings, rendering
        self.state = state
        self._past.clear()

    def _begin(self, state: State, *past: Earlier) -> None:
        self._use(self.model, self.settings, self.rendering, state)
        self._past.extend(past)

    @property
    def stats(self) -> Stats | None:
        """Statistics of the last reply, or of the one in progress."""
        return None if self.answering is None else self.answering.stats

    @property
    def reply_seed(self) -> int:
        """The seed of the last reply."""
        return 0 if self.answering is None else self.answering.seed

    @property
    def recalled(self) -> tuple[int, ...]:
        """The turns that were quoted for the last message."""
        latest = self.answering
        return latest.recalled if latest and latest.state.last is self.state.last else ()

    # The conversation so far

    @property
    def turns(self) -> tuple[Turn, ...]:
        """All turns, forgotten or not."""
        return self.state.turns

    @property
    def cache(self) -> Cache:
        return self.window.cache

    @property
    def ledger(self) -> Ledger:
        return self.window.ledger

    @property
    def is_current(self) -> bool:
        """Whether the window holds the retained turns; not after /forget, for example."""
        return self.window.turns == self.state.in_view != () and len(self.ledger) > 0

    @property
    def tokens(self) -> int:
        """Tokens in the window; if it is out of date, the tokens before the next message."""
        if self.is_current:
            return len(self.ledger)
        return self.window.pinned + self.rendering.tokens_of(self.state, *self.state.retained)

    def usage(self) -> Usage:
        """Tokens in the window, by turn, as the template renders them; the last as in the cache."""
        rendering, state, turns = self.rendering, self.state, self.state.retained
        sizes = [rendering.tokens_of(state, turn) for turn in turns]
        if turns:
            sizes[-1] = max(self.tokens - self.window.pinned - sum(sizes[:-1]), 0)
        counted = tuple(zip(turns, sizes, strict=True))
        more = rendering.note_tokens(state), rendering.remembered_tokens(state)
        return Usage(self.window.pinned, counted, self.settings.max_kv_size, *more)

    # Changes

    def end_reply(self) -> State:
        """End a reply that is read no further, and return the state after it."""
        self._reply.close()
        return self.state

    def resume(self, saved: State) -> None:
        """Replace everything with what was saved. Raises CacheError if that leaves no room."""
        self.end_reply()
        decode, split = self.model.tokenizer.decode, self.model.tokenizer.replies.split
        whole = tuple(turn.read_by(decode, split) for turn in saved.turns)
        self._begin(replace(saved, turns=whole))
        self.answering = None
        self.draft_with(self.drafter)

    def change_model(
        self,
        model: Model,
        settings: CacheSettings,
        sampling: SamplingSettings,
        drafter: Drafter | None = None,
    ) -> None:
        """Continue with another model, or raise what the constructor raises: nothing changes."""
        # Another tokenizer produces other ids.
        turns = tuple(replace(turn, ids=None) for turn in self.end_reply().turns)
        rendering = replace(self.rendering, tokenizer=model.tokenizer, left_out=0)
        self._use(model, settings, rendering, replace(self.state, turns=turns))
        self.sampling, self.pace = sampling, Pace(first_step(model.network), model.ranks.lead)
        self.answering = None
        self.draft_with(drafter)

    def draft_with(self, drafter: Drafter | None) -> None:
        """Draft from all turns, forgotten ones included; None drafts nothing."""
        self.drafter = drafter
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
        self.state = self.state.add(*turns)

    def pin(self, number: int) -> None:
        """Never forget turn `number`, counted from 1. Raises UsageError if unknown or too large."""
        check_pin(self.rendering, self.end_reply(), self.settings.max_kv_size, number)
        self.state = self.state.change({number}, pinned=True)

    def unpin(self) -> None:
        """Allow all pinned turns to be forgotten again."""
        self.state = self.end_reply().with_pins(())

    def forget(self, count: int) -> Sequence[int]:
        """Forget the `count` oldest turns that are not pinned; return the numbers of those."""
        oldest = [n for n in self.end_reply().in_view if not self.turns[n - 1].pinned][:count]
        if oldest:
            self._past.append(Earlier(self.state, None))
            self.state = self.state.forget(oldest)
        return oldest

    def clear(self) -> None:
        """Forget all turns, pinned ones too, and the note; the transcript keeps the turns."""
        cleared = self.end_reply().clear()
        if self.state.last is None and self.state.note is None:
            # What was done before is still what `take_back` finds.
            self.state = cleared
        else:
            self._revise(cleared)

    def set_system(self, text: str | None) -> None:
        """Change the system prompt; the next turn prefills all retained ones. Raises UsageError."""
        if text != self.end_reply().system:
            window = self.settings.max_kv_size
            self._revise(with_system(self.rendering, self.state, window, text))

    def set_note(self, text: str | None, about: Sequence[int] = ()) -> None:
        """Change the note, or remove it, and forget the turns it is about. Raises UsageError."""
        if text is not None:
            text = text.strip()
            check_note(self.rendering, self.end_reply(), self.settings.max_kv_size, text)
        self._revise(replace(self.end_reply().forget(about), note=text))

    def remember(self, what: str | int) -> None:
        """Keep a text, or the message of turn `what`, after the system prompt for ever. The next
        turn prefills all retained turns again. Raises UsageError if there is no room for it."""
        window = self.settings.max_kv_size
        self._revise(with_remembered(self.rendering, self.end_reply(), window, what))

    def unremember(self, number: int) -> None:
        """Remove that line, counted from 1. Raises UsageError if there is none."""
        lines = self.end_reply().remembered
        if not 1 <= number <= len(lines):
            raise UsageError(f"no line {number}: /remember lists them")
        self._revise(replace(self.state, remembered=lines[: number - 1] + lines[number:]))

    def _revise(self, state: State) -> None:
        """Change what comes before the turns, or raise what `_use` raises. It can be taken back."""
        # What was to leave with the next message still does.
        left = tuple(n for n in self.window.turns if n not in self.state.in_view)
        past = (replace(each, window=None) for each in self._past)
        self._begin(state, *past, Earlier(self.state, self.window))
        self.window.turns += left * (state.last is not None)

    def compact(self, words: str = "", watch: Watch = UNWATCHED) -> Compacted | None:
        """Have the model write a note about the turns in view, except pinned ones and the last, and
        forget them. It is also written from the note before; `words` say what matters most. None if
        stopped. Raises UsageError for no turns or a useless note, DeviceError; nothing changes."""
        seed = self._next_seed()
        try:
            with device_failures():
                compacted = write_note(self, self.window, self.state, words, seed=seed, watch=watch)
            compacted = None if watch.should_stop() else compacted
            if compacted is not None:
                self.set_note(compacted.note, compacted.numbers)
            return compacted
        except StoppedEncoding:
            return None
        except DeviceError:
            self._drop()
            raise
        except (UsageError, *Rejected) as error:
            raise UsageError(f"{error}: nothing has changed") from error

    def render_with(self, rendering: Rendering) -> None:
        """Render with other variables. Raises TemplateError if the template rejects them,
        CacheError if the pinned tokens leave no room; either way, nothing changes."""
        if rendering.count_pinned(self.state) != self.window.pinned:
            self._use(self.model, self.settings, rendering, self.state)
        self.rendering = rendering

    # Going back

    def undo(self) -> Turn:
        """Take back the last turn and what it made the window forget. Raises UsageError."""
        turn = self.last_turn()
        count, kept = len(self.turns) - 1, (self.state.beginning, self.state.cleared)
        self._undone[count] += 1
        while self._past:
            before = self._past.pop()
            # What was remembered or noted since then stays.
            state = before.state
            if len(state.turns) == count and (state.beginning, state.cleared) == kept:
                self._go_back(before)
                return turn
        self.state = self.state.without_last()
        return turn

    def take_back(self) -> str | None:
        """Take back the last action if all was "cleared", or a note alone "emptied", or it changed
        the "system" prompt, what is "remembered", the "note" (`compact`, `set_note`), the "reply"
        (`continue_reply`) or what is "forgotten"; return which."""
        last = self._past[-1].state if self._past else None
        if last is None or len(last.turns) != len(self.turns):
            return None
        changed = last.changed_in(self.state)
        if changed == "forgotten" and self._past[-1].window is not None:
            # A new note may have the words of the one before.
            changed = "note"
        self._go_back(self._past.pop())
        return changed

    def _go_back(self, before: Earlier) -> None:
        """Turns that were pinned since then stay pinned."""
        was_cleared = self.state.cleared > before.state.cleared
        state = before.state if was_cleared else before.state.with_pins(self.state.pinned)
        if before.window is None and state.beginning != self.state.beginning:
            self._begin(state, *self._past)
        elif before.window is not None:
            self.window = before.window
        elif before.state.turns and before.state.changed_in(self.state) == "reply":
            # The window ends with what is taken back.
            self.window.turns = (*self.window.turns, len(self.turns) + 1)
        self.state = state

    def last_turn(self) -> Turn:
        """The last turn, which is over. Raises UsageError if there is none since `clear`."""
        if self.end_reply().last is None:
            since = "no messages since /clear; /recall finds earlier ones"
            raise UsageError(since if self.turns else "no messages yet")
        return self.turns[-1]

    def _drop(self) -> None:
        """Drop the window: the next turn starts with an empty one."""
        self.window.drop()
        self._past.clear()

    # Turns

    def say(
        self,
        text: str,
        watch: Watch = UNWATCHED,
        *,
        constraint: Constraint | None = None,
        prefill: str | None = None,
        documents: int = 0,
    ) -> Generator[Said]:
        """Add a turn and return an iterator over the tokens of the reply and the turns forgotten
        to make room for it. The `prefill` begins the reply, and the constraint rules out the rest.
        The first `documents` characters of the text are not the user's own words.
        A reply that repeats itself ends with the finish reason "loop".

        If stopped before its first token, the turn is taken back. The iterator takes it back and
        raises WindowFull if the turn does not fit and nothing may be forgotten, TemplateError or
        InputError if it is rejected. It raises DeviceError if the device fails: the turn stays,
        with the reply so far, and the next turn prefills all retained turns again. Raises
        UsageError if the settings rule out a constraint.
        """
        if not isinstance(text, str):
            raise TypeError(f"a message is text, not {type(text).__name__}")
        if constraint is not None:
            refuse_pairs(self.generation, constraint=constraint.kind)
        state, seed = self.end_reply().ask(text, documents), self._next_seed()
        return self._answer(state, seed, watch, constraint=constraint, prefill=prefill)

    def retry(
        self, watch: Watch = UNWATCHED, *, constraint: Constraint | None = None
    ) -> Generator[Said]:
        """Answer the last turn again with different random numbers. If this produces nothing, the
        old reply stays. Raises what `say` raises, UsageError if there is no turn."""
        self.last_turn()
        before, read = self.state, self.window
        # Answering again changes the window that is gone back to.
        past = [replace(each, window=None) for each in self._past]
        states = [*(each.state for each in past), before]
        turn, seed = self.undo(), self._next_seed()
        # What was forgotten on request since then stays so, and what had left before it.
        asked = [one.forgotten_only_in(other) for one, other in pairwise(states)]
        latest = max(frozenset[int]().union(*asked), default=0)
        self.state = self.state.forget({*range(1, latest + 1)} - {*before.in_view})
        state = self.state.ask(turn.user, turn.documents, pinned=turn.pinned)
        how = {"constraint": constraint, "read": read}
        return self._answer(state, seed, watch, before=before, undone=past, **how)

    def continue_reply(self, watch: Watch = UNWATCHED) -> Generator[Said]:
        """Continue the last reply as if it had never ended. If this produces nothing, the reply
        stays as it is. Raises DeviceError as `say` does, UsageError if there is no turn."""
        state = self.state.with_last(replace(self.last_turn(), forgotten=False))
        return self._answer(state, self._next_seed(), watch)

    def _next_seed(self) -> int:
        """The seed of the next reply, which has its own stream of random numbers."""
        seed = self._any_seed if self.sampling.seed is None else self.sampling.seed
        return (seed + len(self.turns) + UNDONE * self._undone[len(self.turns)]) % SEEDS

    def _answer(
        self,
        state: State,
        seed: int,
        watch: Watch,
        *,
        before: State | None = None,
        undone: Sequence[Earlier] = (),
        **how: Any,
    ) -> Generator[Said]:
        """Answer the last turn of this state, or continue its answer, as Answering is given it. If
        nothing comes, `before` is back, and the past that was `undone`."""
        before, asked = before or self.state, state.turns[-1]
        at_most = 0 if (begun := bool(asked.reply or asked.thought)) else self.recalls

        def recall(now: State) -> Sequence[int]:
            finds = at_most and now.forgotten
            return self._memory.find(asked.question, now, at_most) if finds else ()

        self._past.append(Earlier(self.state, self.window.fork()))
        if len(self._past) > WINDOWS:
            self._past[-1 - WINDOWS] = replace(self._past[-1 - WINDOWS], window=None)
        self.state = state
        past, window = self._past, self.window
        self.answering = Answering(self, state, window, seed, watch, past, recall, **how)
        self._reply = self._answered(self.answering, before, begun, undone)
        # Up to its first `yield`, so that closing it also takes back what is never read.
        next(self._reply)
        return self._reply

    def _answered(
        self, answering: Answering, before: State, begun: bool, undone: Sequence[Earlier]
    ) -> Generator[Said]:
        """A message stays if the device or a rank fails. A window that may be half updated goes."""
        keeps = False
        try:
            with device_failures(), closing(answering.said()) as reply:
                yield Token(None, "")
                for said in reply:
                    self.state = answering.state
                    yield said
            is_left = begun or answering.stats.finish_reason == "interrupted"
            keeps = answering.has_answer or not is_left
        except StoppedEncoding:
            pass
        except BaseException as error:
            keeps = answering.has_answer
            if isinstance(error, DeviceError | RanksError):
                keeps = keeps or len(before.turns) < len(answering.state.turns)
            if isinstance(error, DeviceError) or (isinstance(error, KeyboardInterrupt) and keeps):
                self._drop()
            raise
        finally:
            self.state = replace(answering.state, quote="") if keeps else before
            if not keeps and self._past:
                self.window = self._past.pop().window or self.window
                self._past.extend(undone[len(self._past) :])
                if answering.read is not None:
                    # It may hold an earlier reply than the one that stays.
                    self.window.turns = (*self.window.turns, len(before.turns) + 1)
