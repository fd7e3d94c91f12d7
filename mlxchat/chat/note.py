"""Has the model write a note about turns that it is going to forget, in a prompt of its own.

`view` pins the note and forgets the turns.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from mlxchat.chat.rendering import Rejected, Rendering
from mlxchat.chat.room import room_for_note
from mlxchat.chat.turn import Compacted, Turn
from mlxchat.chat.view import View
from mlxchat.chat.watch import StoppedEncoding, Watch
from mlxchat.engine.brief import MAX_TEMP, SPARE_TOKENS, write_brief
from mlxchat.engine.prefill import Pace
from mlxchat.engine.reply import Reply
from mlxchat.errors import DeviceError, UsageError, device_failures
from mlxchat.request.template_args import thinking_variables
from mlxchat.settings import GenerationSettings, SamplingSettings
from mlxchat.text.spans import TokenIds

# A note's maximum share of the window, and its maximum tokens.
NOTE_SHARE = 4
NOTE_TOKENS = 512
# A note needs at least this many tokens to be of use.
MIN_NOTE_TOKENS = 32
# Tokens of thoughts before a note, if there is no window.
THOUGHT_TOKENS = 4_096


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


def compact(
    view: View, words: str, sampling: SamplingSettings, pace: Pace | None, watch: Watch
) -> Compacted | None:
    """Have a note written about the turns that may be forgotten, and forget them: if they do not
    fit in the window next to the note, the oldest, as many as do. None if stopped."""
    numbers = view.state.may_be_forgotten
    if not numbers:
        raise UsageError("nothing to compact: only the last turn is in view, or pinned ones")
    started_s = time.perf_counter()
    try:
        with device_failures():
            reply, limit, count = _begin(view, numbers, words=words, sampling=sampling, watch=watch)
            text = write_brief(
                reply,
                limit,
                watch.is_stopped,
                on_tokens=lambda tokens: watch.count_note(tokens, limit),
                step_size=view.settings.prefill_step_size,
                pace=pace,
                on_prefill=watch.on_prefill,
            )
        stats = reply.stats
        if stats.finish_reason == "interrupted":
            return None
        if stats.finish_reason == "loop":
            raise UsageError("the note repeats itself")
        if not text:
            raise UsageError("the note is empty")
        view.set_note(text, numbers[:count])
    except StoppedEncoding:
        return None
    except DeviceError:
        view.drop()
        raise
    except (UsageError, *Rejected) as error:
        raise UsageError(f"{error}: nothing has changed") from error
    return Compacted(
        text,
        numbers[:count],
        view.note_tokens,
        stats.prefilled_tokens,
        stats.generated_tokens,
        time.perf_counter() - started_s,
    )


def _begin(
    view: View,
    numbers: Sequence[int],
    *,
    words: str,
    sampling: SamplingSettings,
    watch: Watch,
) -> tuple[Reply, int, int]:
    """The note that is to be written, its maximum tokens, and how many of the turns it is about."""
    window = view.settings.max_kv_size
    limit = note_limit(window, room_for_note(view.rendering, view.state, window))
    if limit < MIN_NOTE_TOKENS:
        raise UsageError(
            f"no room for a note: it needs {MIN_NOTE_TOKENS} tokens, and the window has room "
            f"for {limit}"
        )
    rendering = _without_thinking(view.rendering)
    turns = [view.state.turns[number - 1] for number in numbers]
    asked = Turn(request(limit, words, has_note=view.state.note is not None))

    def prompt(count: int) -> TokenIds:
        return rendering.ids(view.state.only(*turns[:count], asked), watch.count_encoding)

    def is_too_long(count: int) -> bool:
        return window is not None and len(prompt(count)) + limit > window

    count = bisect_right(range(1, len(turns) + 1), False, key=is_too_long)
    if count == 0:
        raise UsageError("no room in the window to write a note")
    ids = prompt(count)
    cache, cached = view.aside(ids)
    max_tokens = limit + THOUGHT_TOKENS if window is None else window - len(ids)
    reply = Reply(
        view.model,
        ids,
        cache,
        sampling=replace(sampling, temp=min(sampling.temp, MAX_TEMP)),
        settings=GenerationSettings(max_tokens=max_tokens),
        cached_tokens=cached,
        reader=view.model.tokenizer.reader(ids),
    )
    return reply, limit, count


def _without_thinking(rendering: Rendering) -> Rendering:
    off = thinking_variables(False)
    args = {name: each for name, each in rendering.template_args.items() if name not in off}
    return replace(rendering, variables={**rendering.variables, **off}, template_args=args)
