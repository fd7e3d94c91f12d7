"""The answer to one turn: its tokens one by one, and the turns that leave the window meanwhile."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from mlxchat.chat.turn import Forgot, Said, Turn
from mlxchat.chat.view import View
from mlxchat.chat.watch import Watch
from mlxchat.constraint.constraint import Constraint
from mlxchat.engine.constrained import Constrained
from mlxchat.engine.drafts import Drafter
from mlxchat.engine.ends import Asked, LoopDetector
from mlxchat.engine.generate import generate
from mlxchat.engine.prefill import Pace
from mlxchat.engine.reply import Reply, Stats, nothing_done
from mlxchat.engine.sampling import Token
from mlxchat.errors import WindowFull
from mlxchat.request.template_args import allows_thinking
from mlxchat.settings import GenerationSettings, SamplingSettings
from mlxchat.text.pieces import joined
from mlxchat.text.reply_reader import Reader
from mlxchat.text.spans import TokenIds
from mlxchat.text.tokens import Prompt


@dataclass(slots=True)
class Answering:
    """Answers the last turn in `view`."""

    view: View
    watch: Watch
    sampling: SamplingSettings
    settings: GenerationSettings
    pace: Pace | None
    drafter: Drafter | None
    _stats: Stats = field(init=False)
    # While tokens are generated.
    _reply: Reply | None = None

    def __post_init__(self) -> None:
        complete = None if self.watch.constraint is None else False
        self._stats = replace(nothing_done(self.view.window.cache), complete=complete)

    @property
    def stats(self) -> Stats:
        return self._stats if self._reply is None else self._reply.stats

    def tokens(self, written: TokenIds) -> Generator[Said]:
        """Generate the reply, or the rest of it after the tokens already `written`."""
        turn = self.view.state.turns[-1]
        view, watch, tokenizer = self.view, self.watch, self.view.model.tokenizer
        prompt = tokenizer.with_beginning(
            Prompt(view.prompt), watch.prefill, newlines=watch.constraint is None
        )
        is_new = watch.prefill is not None or watch.constraint is not None
        assert not (is_new and len(written)), "only a new answer can be begun or constrained"
        written = np.concatenate([written, prompt.begun])
        ids = np.concatenate([view.prompt, written])
        reader, turn = self._reader_after(turn, written)
        constrained = self._constrained(watch.constraint, prompt)
        cached = view.become(ids)
        if self.drafter is not None and not len(self.drafter.history):
            self.drafter.history.extend(ids[:cached])
        self._reply = reply = Reply(
            view.model,
            ids,
            view.window.cache,
            sampling=self.sampling,
            settings=self._within_window(len(written)),
            cached_tokens=cached,
            reader=reader,
            constrained=constrained,
            drafter=self.drafter,
        )
        generated_tokens = generate(
            reply,
            ends=[*([LoopDetector()] if watch.stop_loops else []), Asked(watch.is_stopped)],
            step_size=view.settings.prefill_step_size,
            pace=self.pace,
            on_prefill=watch.on_prefill,
            on_held=view.window.add,
        )
        overflowed = view.window.ledger.overflowed
        generated: list[int] = []
        in_place: bool | Forgot = True
        _, begun = tokenizer.reader_after(prompt)
        try:
            for token in chain([Token(None, begun)] if begun else [], generated_tokens):
                turn = _with_token(turn, token)
                view.state = view.state.with_last(turn)
                if token.id is not None:
                    generated.append(token.id)
                yield token
                while in_place and view.is_full:
                    in_place = view.evict_in_place()
                    if isinstance(in_place, Forgot):
                        yield in_place
        finally:
            self._stats, self._reply = reply.stats, None
            written = np.concatenate([written, np.array(generated, np.int32)])
            exact = tokenizer.replies.spells(written, turn.reply, turn.thought)
            reason = self._stats.finish_reason
            turn = replace(turn, ids=written, exact=exact, finish_reason=reason)
            view.state = view.state.with_last(turn)
        if view.window.ledger.overflowed > overflowed:
            evicted = view.window.ledger.overflowed - overflowed
            yield Forgot(0, evicted, (len(view.state.turns),), turn.user)

    def _constrained(self, constraint: Constraint | None, prompt: Prompt) -> Constrained | None:
        """The constraint on the reply that the prompt asks for, and may have begun."""
        if constraint is None:
            return None
        rendering = self.view.rendering
        return Constrained.begin(
            constraint,
            rendering.tokenizer,
            prompt.asked,
            may_think=allows_thinking({**rendering.variables, **rendering.template_args}),
            beginning=prompt.beginning,
        )

    def _reader_after(self, turn: Turn, written: TokenIds) -> tuple[Reader, Turn]:
        """A reader for the rest of the reply, having read the tokens already `written`, and the
        turn with what it read of them."""
        reader = self.view.model.tokenizer.reader(self.view.prompt)
        pieces = [piece for id_ in written.tolist() for piece in reader.add(id_)]
        if turn.exact:
            # The reader holds back half a character or half a tag until the rest arrives.
            thought, reply = joined(pieces)
            later = tuple(min(place, len(thought)) for place in turn.later_thoughts)
            turn = replace(turn, thought=thought, reply=reply, later_thoughts=later)
        return reader, turn

    def _within_window(self, written: int) -> GenerationSettings:
        """The settings with no more tokens than there is room for, next to the pinned turns."""
        room = self.view.room_next_to_pins(written)
        if room is None:
            return self.settings
        if room < 1:
            window = f"the window of {self.view.settings.max_kv_size:,} tokens is full"
            raise WindowFull(f"{window} next to the pinned turns: unpin them (/unpin)")
        maximum = self.settings.max_tokens
        return replace(self.settings, max_tokens=room if maximum < 0 else min(maximum, room))


def _with_token(turn: Turn, token: Token) -> Turn:
    """The turn with the token's text."""
    if token.another:
        turn = replace(turn, later_thoughts=(*turn.later_thoughts, len(turn.thought)))
    if token.thought:
        return replace(turn, thought=turn.thought + token.text)
    return replace(turn, reply=turn.reply + token.text)
