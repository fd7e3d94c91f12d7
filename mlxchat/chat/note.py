"""Has the model write a note about turns that it is going to forget, in a prompt of its own.

The conversation stays as it is: `view` pins the note and forgets the turns.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mlxchat.cache import Cache
from mlxchat.chat.rendering import Rejected, Rendering
from mlxchat.chat.turn import Turn
from mlxchat.chat.watch import Watch
from mlxchat.engine.brief import MAX_TEMP, SPARE_TOKENS, Brief
from mlxchat.engine.pace import Pace
from mlxchat.models.model import Model
from mlxchat.settings import CacheSettings, SamplingSettings
from mlxchat.template_args import thinking_variables
from mlxchat.text.spans import TokenIds

# A note's maximum share of the window, and its maximum tokens.
NOTE_SHARE = 4
NOTE_TOKENS = 512
# A note needs at least this many tokens to be of use.
MIN_NOTE_TOKENS = 32
# Tokens of thoughts before a note, if there is no window.
THOUGHT_TOKENS = 4_096
# Characters of a text that is cut, at least.
MIN_CUT_CHARS = 40


class Aside(Protocol):
    """Makes a cache for a prompt that is not part of the conversation; returns it, and how many of
    the prompt's tokens it holds."""

    def __call__(self, ids: TokenIds) -> tuple[Cache, int]: ...


@dataclass(frozen=True, slots=True)
class Note:
    """A note, and what it cost to write. Without a text, there was a `problem`, or the model was
    stopped."""

    text: str
    prefilled_tokens: int
    generated_tokens: int
    seconds: float
    problem: str = ""


def note_limit(window: int | None, room: int | None) -> int:
    """How many tokens a note may have in this window, with this `room` in it; None: any number."""
    limits = [NOTE_TOKENS]
    if window is not None:
        limits.append(window // NOTE_SHARE)
    if room is not None:
        limits.append(max(room - SPARE_TOKENS, 0))
    return min(limits)


def request(limit: int, words: str, *, has_note: bool) -> str:
    """The message that asks for a note of at most `limit` tokens; `words` are what matters most."""
    parts = [
        f"Summarize our conversation so far in at most {limit // 2} words, in its language. Keep "
        "what I told you about myself, all names, numbers, dates and decisions, and what is still "
        "open.",
        "Include your earlier note." if has_note else "",
        f"Most important: {words}." if words else "",
        "Write only the summary.",
    ]
    return " ".join(filter(None, parts))


class _NoNote(Exception):
    """Why nothing useful was written."""


class NoteWriter:
    """Writes a note of at most `limit` tokens. `rendering` has the note that it replaces."""

    def __init__(
        self,
        model: Model,
        settings: CacheSettings,
        rendering: Rendering,
        aside: Aside,
        *,
        limit: int,
        sampling: SamplingSettings,
        pace: Pace | None,
        watch: Watch,
    ) -> None:
        self._model = model
        self._settings = settings
        self._rendering = _without_thinking(rendering)
        self._aside = aside
        self._limit = limit
        self._sampling = replace(sampling, temp=min(sampling.temp, MAX_TEMP))
        self._pace = pace
        self._watch = watch
        self._prefilled = self._generated = 0

    def write(self, turns: Sequence[Turn], words: str) -> Note:
        """A note about the turns. If they do not fit in the window at once, notes about the first
        ones are read with the rest.

        Raises StoppedEncoding if stopped before anything was read.
        """
        started_s = time.perf_counter()
        text = problem = ""
        try:
            text = self._write(list(turns), words)
        except (_NoNote, *Rejected) as error:
            problem = str(error)
        seconds = time.perf_counter() - started_s
        return Note(text, self._prefilled, self._generated, seconds, problem)

    def _write(self, turns: list[Turn], words: str) -> str:
        if self._limit < MIN_NOTE_TOKENS:
            raise _NoNote(
                f"no room for a note: it needs {MIN_NOTE_TOKENS} tokens, and the window has room "
                f"for {self._limit}"
            )
        text = ""
        while turns:
            count, ids = self._prompt(turns, words)
            text = self._written(ids)
            if not text:
                break
            self._rendering = replace(self._rendering, note=text)
            turns = turns[count:]
        return text

    def _prompt(self, turns: list[Turn], words: str) -> tuple[int, TokenIds]:
        """A prompt about as many of the turns as fit, at least the first, and how many it has."""
        has_note = self._rendering.note is not None
        asked = Turn(request(self._limit, words, has_note=has_note))

        def render(turns: Sequence[Turn]) -> TokenIds:
            return self._rendering.ids([*turns, asked], self._watch.count_encoding)

        count = bisect_right(
            range(1, len(turns) + 1),
            False,
            key=lambda count: not self._fits(render(turns[:count])),
        )
        if count:
            return count, render(turns[:count])
        first, chars = turns[0], max(len(turns[0].user), len(turns[0].reply))
        while chars > MIN_CUT_CHARS:
            chars //= 2
            ids = render([_cut(first, chars)])
            if self._fits(ids):
                return 1, ids
        raise _NoNote("no room in the window to write a note")

    def _fits(self, ids: TokenIds) -> bool:
        window = self._settings.max_kv_size
        return window is None or len(ids) + self._limit <= window

    def _written(self, ids: TokenIds) -> str:
        """The model's answer; empty if it was stopped."""
        cache, cached = self._aside(ids)
        watch, window = self._watch, self._settings.max_kv_size
        brief = Brief(
            self._model,
            ids,
            cache,
            limit=self._limit,
            max_tokens=self._limit + THOUGHT_TOKENS if window is None else window - len(ids),
            is_stopped=watch.is_stopped,
            on_tokens=lambda tokens: watch.count_note(tokens, self._limit),
            sampling=self._sampling,
            prefill_step_size=self._settings.prefill_step_size,
            pace=self._pace,
            cached_tokens=cached,
            on_prefill=watch.on_prefill,
        )
        text = brief.write()
        self._prefilled += brief.stats.prefilled_tokens
        self._generated += brief.stats.generated_tokens
        if brief.stopped:
            return ""
        if brief.looping:
            raise _NoNote("the note repeats itself")
        if not text:
            raise _NoNote("the note is empty")
        return text


def _without_thinking(rendering: Rendering) -> Rendering:
    off = thinking_variables(False)
    args = {name: each for name, each in rendering.template_args.items() if name not in off}
    return replace(rendering, variables={**rendering.variables, **off}, template_args=args)


def _cut(turn: Turn, chars: int) -> Turn:
    """The turn with the beginning and the end of each text."""
    return Turn(_ends(turn.user, chars), _ends(turn.reply, chars))


def _ends(text: str, chars: int) -> str:
    half = chars // 2
    return text if len(text) <= chars else f"{text[:half]} … {text[-half:]}"
